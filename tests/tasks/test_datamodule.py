"""The loaders of a run: their time limit, their skipped samples, and images that are on the device."""

from types import SimpleNamespace

import pytest
import torch

from vit.tasks import Batches, DeviceBatches


def trainer(device):
    return SimpleNamespace(global_rank=1, world_size=2, strategy=SimpleNamespace(root_device=torch.device(device)))


def test_both_loaders_have_the_time_limit_and_their_skipped_samples_are_listed():
    def loader(name):
        return lambda rank, world: SimpleNamespace(bad={f"{name} {rank} of {world}": "is cut"})

    batches = Batches(loader("train"), loader("val"))
    batches.trainer = trainer("cpu")
    assert batches.train_dataloader().timeout == 0
    batches.timeout = 5.0
    assert batches.val_dataloader().timeout == 5.0
    assert batches.bad == {"train 1 of 2": "is cut", "val 1 of 2": "is cut"}


@pytest.mark.parametrize(("device", "pinned"), [("cpu", False), ("cuda:1", True), ("mps", False)])
def test_batches_are_pinned_for_gpus_only(device, pinned):
    batches = Batches(*[lambda rank, world: SimpleNamespace()] * 2)
    batches.trainer = trainer(device)
    assert batches.train_dataloader().pin_memory is batches.val_dataloader().pin_memory is pinned


def test_only_a_batch_without_images_gets_those_of_the_device():
    batches, images = DeviceBatches(None, None), SimpleNamespace(add_images=lambda batch: batch | {"image": "added"})
    assert batches.on_after_batch_transfer({"images": images}, 0)["image"] == "added"
    assert batches.on_after_batch_transfer({"image": "filler"}, 0) == {"image": "filler"}
