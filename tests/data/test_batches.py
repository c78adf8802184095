"""Batches as a function of (seed, epoch, batch), for any number of workers and ranks, and after a restart."""

import multiprocessing
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from timm.data.distributed_sampler import RepeatAugSampler

from vit.counters import permutation
from vit.data import (
    Augment,
    BadImage,
    DataError,
    EvalBatches,
    ImageDataset,
    Preprocessing,
    RandAugment,
    RandomCrop,
    RandomResizedCrop,
    TrainBatches,
    digits,
    folder,
)
from vit.data.batching.balancing import balance_classes
from vit.data.splits.split import array_split
from vit.evaluation.classification import readable_batches

P8 = Preprocessing(size=8)


def toy(n=50, size=8, labels=None):
    rng = np.random.default_rng(0)
    labels = np.arange(n) % 3 if labels is None else labels
    return array_split(rng.integers(0, 256, (n, size, size, 3), dtype=np.uint8), labels, "toy")


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def passes(batches, count):
    return [batch for _ in range(count) for batch in batches]


@pytest.fixture
def files(class_folders):
    source = folder(class_folders({"a": 20, "b": 20}, size=(20, 30)), fractions=(1, 0, 0))
    return source.splits["train"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are not forked by default")
def test_workers_share_the_data_set(monkeypatch):
    """Also where another start method is the default, as in Python 3.14: a function within a function has no pickle."""
    before = multiprocessing.get_start_method(allow_none=True)
    monkeypatch.setattr("vit.data.batching.loading.sys", SimpleNamespace(version_info=(3, 14), platform="linux"))
    multiprocessing.set_start_method("forkserver", force=True)
    split = toy()
    try:
        dataset = ImageDataset(replace(split, pixels=None, read=lambda row: split.pixels[row]), P8, cache=False)
        loaded, expected = (next(iter(TrainBatches(dataset, 10, workers=workers))) for workers in (1, 0))
    finally:
        multiprocessing.set_start_method(before, force=True)
    assert same(loaded, expected)


def test_an_epoch_has_every_sample_once_in_a_new_order():
    split = toy(48)
    batches = TrainBatches(ImageDataset(split, P8), 12, seed=3)
    first, second = passes(batches, 1), passes(batches, 1)
    for epoch in (first, second):
        assert sorted(torch.cat([b["index"] for b in epoch]).tolist()) == list(range(48))
    assert not torch.equal(first[0]["index"], second[0]["index"])
    for batch in first:
        assert batch["image"].dtype == torch.uint8 and batch["image"].shape == (12, 3, 8, 8)
        assert (batch["epoch"] == 0).all()
        pixels = torch.from_numpy(split.pixels[batch["index"]]).permute(0, 3, 1, 2)
        assert torch.equal(batch["image"], pixels)
        assert batch["label"].tolist() == split.labels[batch["index"]].tolist()
    assert (second[0]["epoch"] == 1).all()


def test_the_incomplete_batch_is_dropped_and_differs_between_epochs():
    batches = TrainBatches(ImageDataset(toy(50), P8), 12)
    first, second = ({*range(50)} - {i for batch in batches for i in batch["index"].tolist()} for _ in range(2))
    assert len(batches) == 4 and len(first) == len(second) == 2 and first != second


@pytest.mark.parametrize(("workers", "repeats"), [(0, 1), (2, 1), (2, 3)])
@pytest.mark.parametrize("sizing", [None, RandomResizedCrop(seed=1)], ids=["plain", "crop"])
def test_resume_at_every_batch_equals_no_interruption(files, sizing, workers, repeats):
    dataset = ImageDataset(files, P8, sizing, cache=False)
    expected = passes(TrainBatches(dataset, 10, seed=1, workers=0, repeats=repeats), 2)  # 2 epochs of 4
    resumed = TrainBatches(dataset, 10, seed=1, workers=workers, repeats=repeats)
    for done in range(8):
        resumed.epoch, resumed.start = divmod(done, 4)
        rest = passes(resumed, 2)[: 8 - done]
        assert all(same(a, b) for a, b in zip(rest, expected[done:], strict=True))


def test_start_at_the_end_of_an_epoch_is_the_next_one():
    batches = TrainBatches(ImageDataset(toy(40), P8), 10)
    batches.epoch, batches.start = 2, 4
    assert {int(b["epoch"][0]) for b in batches} == {3} and batches.epoch == 3


def test_iter_alone_has_no_effect():
    """Lightning calls iter() before it sets the position, and does not consume the StopIteration of a full epoch."""
    batches = TrainBatches(ImageDataset(toy(40), P8), 10)
    iter(batches)
    early = iter(batches)
    batches.epoch, batches.start = 5, 3
    assert len(batches) == 4
    assert [int(b["epoch"][0]) for b in early] == [5]
    following = iter(batches)
    assert [int(next(following)["epoch"][0]) for _ in range(4)] == [6] * 4
    assert int(next(iter(batches))["epoch"][0]) == 7
    assert batches.state_dict() == {} and batches.load_state_dict({}) is None


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("balance", ["none", "sampler"])
def test_ranks_share_the_same_global_batches(balance, repeats):
    dataset, options = ImageDataset(toy(50), P8), {"balance": balance, "repeats": repeats}
    whole = passes(TrainBatches(dataset, 12, seed=2, **options), 2)
    for world in (2, 4):
        ranks = [passes(TrainBatches(dataset, 12, 2, rank, world, **options), 2) for rank in range(world)]
        for b, batch in enumerate(whole):
            joined = {k: torch.cat([r[b][k] for r in ranks]) for k in batch if k != "samples"}
            assert same(joined | {"samples": ranks[0][b]["samples"]}, batch)
            assert batch["samples"] == 12


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("accumulate", [2, 3])
def test_micro_batches_divide_the_same_steps(accumulate, world):
    """50 samples in steps of 12: 4 steps per epoch for any division; the last 2 samples are dropped."""
    dataset = ImageDataset(toy(50), P8)
    whole = passes(TrainBatches(dataset, 12, seed=2), 2)
    parts = [
        passes(TrainBatches(dataset, 12, 2, rank, world, accumulate=accumulate), 2) for rank in range(world)
    ]
    assert {len(part) for part in parts} == {len(whole) * accumulate}
    for step, batch in enumerate(whole):
        micros = [part[step * accumulate + micro] for micro in range(accumulate) for part in parts]
        assert same({k: torch.cat([m[k] for m in micros]) for k in ("image", "index")},
                    {k: batch[k] for k in ("image", "index")})
        assert all(m["samples"] == 12 and len(m["index"]) == 12 // world // accumulate for m in micros)


def test_balanced_sampling_draws_classes_equally():
    labels = np.repeat([0, 1, 2], [60, 12, 3])
    dataset = ImageDataset(toy(75, labels=labels), P8)
    batches = TrainBatches(dataset, 15, balance="sampler")
    assert not np.array_equal(batches.order(0), batches.order(1))
    order = batches.order(0)
    assert np.bincount(labels[order[:, 1]]).tolist() == [25, 25, 25]
    assert len({tuple(key) for key in order}) == 75  # a repeated image has another counter, hence another augmentation
    assert np.bincount(order[:, 1])[-3:].tolist() in ([9, 8, 8], [8, 9, 8], [8, 8, 9])
    seen = np.unique(np.concatenate([batches.order(e)[:, 1] for e in range(10)]))
    assert len(seen) > 70


def test_balanced_sampling_uses_a_permutation_of_each_class_in_each_round():
    labels = np.repeat([0, 1, 2], [60, 12, 3])
    keys = balance_classes(labels, 5, 2)
    for label, first, count in ((0, 0, 60), (1, 60, 12), (2, 72, 3)):
        drawn = keys[labels[keys[:, 1]] == label]
        rounds = [first + permutation(5 + label, 2 + (again << 32), count).numpy() for again in range(-(-25 // count))]
        assert drawn[:, 1].tolist() == np.concatenate(rounds)[: len(drawn)].tolist()


def test_balanced_sampling_of_many_classes_has_each_sample_once():
    labels = np.arange(300_000) % 20_000
    keys = balance_classes(labels, 0, 0)
    assert sorted(keys[:, 1]) == list(range(300_000))


def by_first_use(steps):
    """The samples of each step, numbered in the order of their first use and sorted."""
    numbers = {}
    return [sorted(numbers.setdefault(index, len(numbers)) for index in step) for step in steps]


@pytest.mark.parametrize(("n", "batch", "world", "repeats"), [
    (48, 12, 1, 3), (50, 12, 4, 3), (50, 16, 4, 3), (301, 32, 8, 3), (50, 10, 1, 2), (23, 10, 2, 5), (50, 12, 4, 1),
])
def test_repeats_are_those_of_timm(n, batch, world, repeats):
    """Each step has the same samples equally often, up to the permutation."""
    samplers = [RepeatAugSampler(range(n), world, rank, num_repeats=repeats, selected_round=0) for rank in range(world)]
    streams = [list(sampler) for sampler in samplers]
    share = batch // world
    theirs = [[index for row in zip(*(stream[step * share:(step + 1) * share] for stream in streams), strict=True)
               for index in row] for step in range(len(streams[0]) // share)]
    batches = TrainBatches(ImageDataset(toy(n), P8), batch, seed=1, repeats=repeats)
    ours = [keys[:, 1].tolist() for keys in batches.keys(3)]
    assert len(ours) == len(batches) == n // batch
    assert by_first_use(ours) == by_first_use(theirs[:len(ours)])


@pytest.mark.parametrize("drop_last", [True, False])
def test_repeats_have_different_counters_and_are_apart_from_each_other(drop_last):
    batches = TrainBatches(ImageDataset(toy(50), P8), 12, seed=3, repeats=3, drop_last=drop_last)
    keys = batches.keys(7)
    assert len({tuple(key) for key in np.concatenate(keys)}) == sum(map(len, keys)) == (48 if drop_last else 50)
    drawn = np.concatenate(keys)
    assert sorted(np.unique(drawn[:, 0]).tolist()) == [7, 7 + (1 << 32), 7 + (2 << 32)]
    first = drawn[drawn[:, 0] == 7, 1].tolist()  # an epoch of other images, as without repeats
    assert first == permutation(3, 7, 50).tolist()[:len(first)] and first != batches.order(8)[:len(first), 1].tolist()
    for step in keys:
        assert (step[1:, 1] != step[:-1, 1]).all()
        assert not drop_last or len(np.unique(step[:4, 1])) == 4  # four images, each three times


def test_repeats_are_augmented_differently(files):
    dataset = ImageDataset(files, P8, RandomResizedCrop(seed=1), cache=False)
    batch = next(iter(TrainBatches(dataset, 12, repeats=3, workers=0)))
    augmented = Augment([RandAugment()], seed=0)(batch["image"][:1].expand(12, -1, -1, -1), batch["index"],
                                                 batch["epoch"])
    for index in batch["index"].unique():
        rows = (batch["index"] == index).nonzero().flatten().tolist()
        assert len(rows) == 3 and len({int(batch["label"][row]) for row in rows}) == 1
        for images in (batch["image"], augmented):
            assert len({images[row].numpy().tobytes() for row in rows}) == 3


def test_repeats_of_balanced_sampling_draw_classes_equally():
    labels = np.repeat([0, 1, 2], [60, 12, 3])
    batches = TrainBatches(ImageDataset(toy(75, labels=labels), P8), 15, balance="sampler", repeats=2)
    order = batches.order(0)
    assert len(order) == 75 and len({tuple(key) for key in order}) == 75
    assert sorted(np.bincount(labels[order[:, 1]]).tolist()) in ([24, 25, 26], [25, 25, 25], [24, 24, 27])
    several = toy(75, labels=np.stack([labels != 2, labels != 0], axis=1).astype(np.float32))
    order = TrainBatches(ImageDataset(several, P8), 15, balance="sampler", repeats=5).order(0)
    assert len(order) == 75 and len({tuple(key) for key in order}) == 75


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("n", [16, 17, 23, 3])
def test_evaluation_has_every_sample_once(n, world):
    dataset = ImageDataset(toy(n), P8)
    ranks = [list(EvalBatches(dataset, 8, rank, world)) for rank in range(world)]
    assert len({len(r) for r in ranks}) == 1 and len(ranks[0]) == len(EvalBatches(dataset, 8))
    real = [int(i) for r in ranks for b in r for i, w in zip(b["index"], b["weight"], strict=True) if w == 1]
    assert sorted(real) == list(range(n))
    for parts in zip(*ranks, strict=True):
        assert len({len(p["index"]) for p in parts}) == 1
    assert sum(int((b["weight"] == 0).sum()) for r in ranks for b in r) < world
    assert set(ranks[0][0]) == {"image", "label", "index", "weight"}


@pytest.mark.parametrize("sizing", [None, RandomResizedCrop(), RandomCrop()], ids=["plain", "resized", "crop"])
def test_cached_and_decoded_samples_are_equal(files, sizing):
    memory = passes(TrainBatches(ImageDataset(files, P8, sizing, cache=True), 10), 2)
    stream = passes(TrainBatches(ImageDataset(files, P8, sizing, cache=False), 10, workers=2), 2)
    assert ImageDataset(files, P8, sizing).cached
    for a, b in zip(memory, stream, strict=True):
        assert torch.equal(a["index"], b["index"])
        assert (a["image"].int() - b["image"].int()).abs().max() <= 1
    if sizing is not None:
        assert not torch.equal(memory[0]["image"], memory[4]["image"])


def test_arrays_have_the_same_pixels_in_batches_with_and_without_a_cache():
    """Arrays that need no resizing are not preprocessed one by one."""
    rng = np.random.default_rng(0)
    for shape in ((9, 8, 8), (9, 8, 8, 3), (9, 8, 8, 1), (9, 6, 10, 3)):
        split = array_split(rng.integers(0, 256, shape, dtype=np.uint8), np.arange(9), "toy")
        expected = torch.stack([P8.image(pixels) for pixels in split.pixels])
        assert torch.equal(ImageDataset(split, P8).images, expected)
        uncached = ImageDataset(split, P8, cache=False)
        assert uncached.is_final_array is (shape[1:3] == (8, 8))
        found = uncached.__getitems__([(0, 7), (0, 2)])
        assert torch.equal(found["image"], expected[[7, 2]]) and found["label"].tolist() == [7, 2]
        batches = list(readable_batches(uncached, 4, []))
        assert torch.equal(torch.cat([images for images, _, _ in batches]), expected)
        assert [rows.tolist() for _, _, rows in batches] == [labels.tolist() for _, labels, _ in batches] == [
            [0, 1, 2, 3], [4, 5, 6, 7], [8]]
    gray = Preprocessing(size=8, mode="L", mean=(0.5,), std=(0.5,))
    split = array_split(rng.integers(0, 256, (9, 8, 8, 3), dtype=np.uint8), np.zeros(9), "toy")
    assert not ImageDataset(split, gray).is_final_array
    assert torch.equal(ImageDataset(split, gray).images, torch.stack([gray.image(pixels) for pixels in split.pixels]))


def test_crops_have_the_distribution_of_torchvision():
    from torchvision.transforms import RandomResizedCrop as Reference

    sizing, image = RandomResizedCrop((0.2, 0.8), (0.5, 2.0)), torch.zeros(3, 300, 400)
    draws = sizing.draws(torch.zeros(3000, dtype=torch.int64), torch.arange(3000)).tolist()
    boxes = np.array([sizing.box(400, 300, (8, 8), d) for d in draws])
    torch.manual_seed(0)
    expected = np.array(
        [Reference.get_params(image, [0.2, 0.8], [0.5, 2.0]) for _ in range(3000)]
    )  # top, left, height, width
    found = np.stack([boxes[:, 1], boxes[:, 0], boxes[:, 3] - boxes[:, 1], boxes[:, 2] - boxes[:, 0]], axis=1)
    assert (boxes >= 0).all() and (boxes[:, 2] <= 400).all() and (boxes[:, 3] <= 300).all()
    assert np.abs(found.mean(0) - expected.mean(0)).max() < 5 and np.abs(found.std(0) - expected.std(0)).max() < 4


def test_crops_of_extreme_images_fall_back_to_the_centre():
    sizing = RandomResizedCrop()
    assert sizing.box(1, 5000, (8, 8), [0.5] * 40) == (0, 2500, 1, 2501)
    assert sizing.box(1, 1, (8, 8), [0.5] * 40) == (0, 0, 1, 1)
    assert RandomCrop().box(400, 100, (8, 8), [0.999, 0.5]) == (300, 0, 400, 100)


def test_draft_decoding_stays_close(photos):
    split = folder(photos, fractions=(1, 0, 0)).splits["train"]
    sizing = RandomResizedCrop((0.5, 1.0))
    full, fast = (ImageDataset(split, Preprocessing(size=32, draft=d), sizing) for d in (False, True))
    assert full.cached and not fast.cached
    keys = [(0, i) for i in range(6)]
    assert 0 < (full.__getitems__(keys)["image"].float() - fast.__getitems__(keys)["image"].float()).abs().mean() < 5


def spoil(split, rows=(3, 7)):
    for i in rows:
        (split.read.read.root / split.names[i]).write_bytes(b"not an image")
    return [split.names[i] for i in rows]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_image_stops_the_run_with_its_name(files, workers):
    names = spoil(files)
    batches = TrainBatches(ImageDataset(files, P8, cache=False), 20, workers=workers)
    with pytest.raises(BadImage, match=f"({'|'.join(names)}): cannot be opened") as error:
        passes(batches, 1)
    assert "\n" not in str(error.value)
    with pytest.raises(BadImage, match="cannot be opened"):
        ImageDataset(files, P8, cache=True)


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("sizing", [None, RandomCrop()], ids=["plain", "crop"])
def test_skipped_images_are_listed_and_not_replaced(files, cache, sizing):
    names = spoil(files)
    dataset = ImageDataset(files, P8, sizing, cache=cache, on_bad_sample="skip")
    batches = TrainBatches(dataset, 20, workers=0)
    seen = torch.cat([b["index"] for b in batches]).tolist()
    assert sorted(seen) == [i for i in range(40) if i not in (3, 7)]
    assert sorted(batches.bad) == sorted(names) and all("cannot be opened" in r for r in batches.bad.values())
    if sizing is None:
        spoil(files, [39])
        dataset = ImageDataset(files, P8, cache=cache, on_bad_sample="skip")
        whole = list(EvalBatches(dataset, 16, workers=0))
        assert [len(b["index"]) for b in whole] == [14, 16, 7] and all((b["weight"] == 1).all() for b in whole)


@pytest.mark.parametrize("cache", [True, False])
def test_an_empty_batch_is_a_filler(files, cache):
    spoil(files, range(39))
    dataset = ImageDataset(files, P8, cache=cache, on_bad_sample="skip")
    batches = passes(TrainBatches(dataset, 5, workers=0), 1)
    assert len(batches) == 8 and sorted("filler" in batch for batch in batches) == [False] + 7 * [True]
    assert {len(batch["index"]) for batch in batches} == {1} and {int(batch["samples"]) for batch in batches} == {5}
    weights = torch.cat([batch["weight"] for batch in EvalBatches(dataset, 5, workers=0)])
    assert weights.sum() == 1 and len(weights) == 8


def test_a_split_without_readable_images_is_an_error(files):
    spoil(files, range(40))
    dataset = ImageDataset(files, P8, cache=False, on_bad_sample="skip")
    with pytest.raises(BadImage, match="all 40 images are unreadable"):
        passes(TrainBatches(dataset, 20, workers=0), 1)


def test_loading_does_not_change_the_global_random_state(files):
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    passes(TrainBatches(ImageDataset(files, P8, RandomCrop(), cache=False), 20, workers=1), 2)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"batch_size": 10, "world": 4, "rank": 0},
            "batch_size 10 is not divisible by 4 devices; nearest valid: 8, 12",
        ),
        ({"batch_size": 64}, "batch_size=64 is larger than the training set of 50 images; set batch_size=25"),
        ({"batch_size": 8, "world": 2, "rank": 2}, "rank 2 must be 0..1"),
        ({"batch_size": 8, "workers": "many"}, "workers='many'"),
        ({"batch_size": 8, "balance": "classes"}, "balance='classes' is not one of none, sampler, loss"),
        ({"batch_size": 8, "repeats": 0}, r"repeats=0 must be in 1\.\.8, the batch_size"),
        ({"batch_size": 8, "repeats": 9}, r"repeats=9 must be in 1\.\.8, the batch_size"),
    ],
)
def test_wrong_options(options, text):
    with pytest.raises(ValueError, match=text):
        TrainBatches(ImageDataset(toy(), P8), **options)


def test_wrong_dataset_options():
    for options in ({"on_bad_sample": "ignore"}, {"cache": "yes"}):
        with pytest.raises(ValueError, match="is not one of"):
            ImageDataset(toy(), P8, **options)
    with pytest.raises(DataError, match="0 images"):
        EvalBatches(ImageDataset(toy(0), P8), 8)


def test_works_in_lightnings_fit_loop(tmp_path):
    """The trainer gets epochs in order, even with limit_train_batches."""
    from pytorch_lightning import LightningModule, Trainer

    class Recorder(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), []

        def training_step(self, batch, number):
            self.seen.append((int(batch["epoch"][0]), batch["index"].tolist()))
            return self.layer(torch.ones(1, 1)).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options = {"max_epochs": 3, "accelerator": "cpu", "default_root_dir": tmp_path} | dict.fromkeys(off, False)
    for limit in (1.0, 2):
        batches, module = TrainBatches(ImageDataset(toy(40), P8), 10), Recorder()
        Trainer(limit_train_batches=limit, **options).fit(module, batches)
        per_epoch = 4 if limit == 1.0 else 2
        expected = [(e, batches.keys(e)[b][:, 1].tolist()) for e in range(3) for b in range(per_epoch)]
        assert module.seen == expected


@pytest.mark.parametrize("n", [25, 41, 58, 122])
@pytest.mark.parametrize(("world", "accumulate"), [(1, 1), (2, 1), (1, 4), (3, 2), (4, 6)])
def test_without_drop_last_no_sample_is_left_out(n, world, accumulate):
    """The steps equal those of one process; (4, 6) divides steps of 12 to 21 samples into 24 parts, some empty."""
    dataset, size = ImageDataset(toy(n), P8), 24
    options = {"accumulate": accumulate, "drop_last": False}
    whole = list(TrainBatches(dataset, size, 2, drop_last=False))
    found = [list(TrainBatches(dataset, size, 2, r, world, **options)) for r in range(world)]
    assert [len(batches) for batches in found] == [len(whole) * accumulate] * world
    for step, batch in enumerate(whole):
        parts = [batches[step * accumulate + micro] for micro in range(accumulate) for batches in found]
        index = [part["index"] for part in parts if not part.get("filler")]
        assert torch.equal(torch.cat(index), batch["index"])
        assert {int(part["samples"]) for part in parts} == {len(batch["index"])} == {int(batch["samples"])}
        assert max(map(len, index)) - min(map(len, index)) <= 1
        assert len(index) == min(len(parts), len(batch["index"])) and all(len(part["index"]) for part in parts)
    sizes = [len(batch["index"]) for batch in whole]
    assert sum(sizes) == n == len(torch.cat([batch["index"] for batch in whole]).unique())
    assert max(sizes) - min(sizes) <= 1 and max(sizes) <= size
    resumed = TrainBatches(dataset, size, 2, 0, world, **options)
    resumed.start = accumulate
    assert all(torch.equal(a["index"], b["index"]) for a, b in zip(found[0][accumulate:], resumed, strict=True))


def test_the_order_is_the_permutation_of_seed_and_epoch():
    batches = TrainBatches(ImageDataset(toy(), P8), 10, seed=3)
    assert batches.order(7).tolist() == [[7, row] for row in permutation(3, 7, 50).tolist()]


def test_batches_that_cannot_be_divided_are_an_error():
    dataset = ImageDataset(toy(), P8)
    with pytest.raises(ValueError, match="accumulate=0 must be 1 or more"):
        TrainBatches(dataset, 10, accumulate=0)
    with pytest.raises(DataError, match="batch_size 9 is not divisible by 2 devices; nearest valid: 8, 10"):
        EvalBatches(dataset, 9, world=2)


def test_a_torch_loader_with_indices_is_refused():
    """Four indices are not two pairs of epoch and index."""
    dataset = ImageDataset(digits().splits["val"], Preprocessing((8, 8)))
    with pytest.raises(TypeError, match=r"by pairs \(epoch, index\), not by \[0, 1, 2\]; load .* TrainBatches or"):
        next(iter(torch.utils.data.DataLoader(dataset, 4)))
    assert dataset.__getitems__([])["image"].shape[0] == 0
