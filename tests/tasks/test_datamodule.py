"""The loaders of a run: their time limit, their skipped samples, and images that are on the device."""

from types import SimpleNamespace

from vit.tasks import Batches, DeviceBatches


def test_both_loaders_have_the_time_limit_and_their_skipped_samples_are_listed():
    def loader(name):
        return lambda rank, world: SimpleNamespace(bad={f"{name} {rank} of {world}": "is cut"})

    batches = Batches(loader("train"), loader("val"))
    batches.trainer = SimpleNamespace(global_rank=1, world_size=2)
    assert batches.train_dataloader().timeout == 0
    batches.timeout = 5.0
    assert batches.val_dataloader().timeout == 5.0
    assert batches.bad == {"train 1 of 2": "is cut", "val 1 of 2": "is cut"}


def test_only_a_batch_without_images_gets_those_of_the_device():
    batches, images = DeviceBatches(None, None), SimpleNamespace(add_images=lambda batch: batch | {"image": "added"})
    assert batches.on_after_batch_transfer({"images": images}, 0)["image"] == "added"
    assert batches.on_after_batch_transfer({"image": "filler"}, 0) == {"image": "filler"}
