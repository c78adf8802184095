"""Splits by fractions: the split of a sample depends only on the sample, and no class is left without samples."""

import unicodedata

import numpy as np
import pytest

from vit.counters import permutation
from vit.data import DataError, PairSplit, folder, imagenet, parallel, table, text_table
from vit.data.identity import hash_positions
from vit.data.sample_names import RowNames
from vit.data.splits.split import Split, array_split, evenly_spaced
from vit.data.splits.splitting import _Rebalancer, assign_splits, hold_out, validation_fraction, with_validation

SHARES = (0.8, 0.1, 0.1)


def parts(keys, labels, fractions=SHARES, seed=0):
    found = assign_splits(keys, np.asarray(labels), fractions, seed)
    return {keys[i]: part for part, rows in found.items() for i in rows}


def photos(classes, each):
    return [f"{c}/{i}.jpg" for c in range(classes) for i in range(each)], np.repeat(np.arange(classes), each)


@pytest.mark.parametrize("seed", range(5))
def test_adding_and_removing_samples_does_not_move_others(seed):
    keys, labels = photos(4, 300)
    before = parts(keys, labels, seed=seed)
    some = np.random.default_rng(seed).permutation(1200)[:900]
    after = parts([keys[i] for i in some], labels[some], seed=seed)
    assert all(before[key] == part for key, part in after.items())
    more = [f"{c}/new{i}.jpg" for c in range(4) for i in range(50)]
    after = parts(more + keys, np.concatenate([np.repeat(np.arange(4), 50), labels]), seed=seed)
    assert all(after[key] == part for key, part in before.items())
    assert before != parts(keys, labels, seed=seed + 1)


def test_a_concatenation_has_the_samples_of_its_parts_in_order(class_folders):
    files = folder(class_folders({"a": 2, "b": 1}), fractions=(1, 0, 0)).splits["train"]
    first, second = (array_split(np.random.default_rng(s).integers(0, 256, (2, 3, 4), np.uint8), np.arange(2), f"p{s}")
                     for s in (1, 2))
    for parts in ([first, files], [files, first, second], [first, second]):
        whole = Split.concat(parts)
        assert (whole.pixels is None) == any(part is files for part in parts) and len(whole) == sum(map(len, parts))
        expected = [(part.names[i], part.labels[i], part.read(i)) for part in parts for i in range(len(part))]
        for i, (name, label, content) in enumerate(expected):
            assert whole.names[i] == name and whole.labels[i] == label and np.array_equal(whole.read(i), content)


def test_few_samples_move_in_small_classes():
    moved = 0
    for seed in range(100):
        keys, labels = photos(5, 6)
        before, after = parts(keys, labels, seed=seed), parts(["0/new.jpg", *keys], [0, *labels], seed=seed)
        moved += sum(after[key] != part for key, part in before.items())
    assert moved <= 15


@pytest.mark.parametrize("each", [1, 2, 3, 5, 12, 50])
@pytest.mark.parametrize("fractions", [SHARES, (0.34, 0.33, 0.33), (0.9, 0.1, 0)])
def test_every_class_has_samples(each, fractions):
    keys, labels = photos(60, each)
    found = assign_splits(keys, labels, fractions, 0)
    assert sorted(np.concatenate(list(found.values()))) == list(range(len(keys)))
    for part, share in zip(("train", "val", "test"), fractions, strict=True):
        counts = np.bincount(labels[found[part]], minlength=60)
        least = 1 if part == "train" else max(int(each * share / 2 + 1e-6), int(each * share > 0.999))
        assert counts.min() >= least, (part, counts)
        assert part == "train" or counts.max() <= np.ceil(2 * each * share - 1e-6)
        total = each * 60 * share
        assert part == "train" or each == 1 or total / 2 <= counts.sum() <= 1.5 * total
        assert len(found[part]) > 0 or share == 0 or each == 1


def test_classes_in_test_do_not_depend_on_their_order():
    """5 images per class, half a test image each: ties must not be broken by the order of classes."""
    keys, labels = photos(100, 5)
    seen = [np.unique(labels[assign_splits(keys, labels, SHARES, seed)["test"]]) for seed in range(3)]
    assert all(len(np.intersect1d(classes, np.arange(50, 100))) > 10 for classes in seen)
    held = [np.unique(labels[hold_out(labels, 50, seed)[1]]) for seed in range(3)]
    assert all(10 < (classes >= 50).sum() < 40 for classes in held) and not np.array_equal(held[0], held[1])


def test_multi_label_classes_keep_their_shares():
    labels = np.random.default_rng(0).random((600, 6)) < (0.5, 0.2, 0.1, 0.05, 0.02, 0.003)
    found = assign_splits([str(i) for i in range(600)], labels, SHARES, 0)
    total = labels.sum(0)
    assert (labels[found["train"]].sum(0) >= np.maximum(total * 0.4, total > 0) - 1e-6).all()
    for part in ("val", "test"):
        assert (labels[found[part]].sum(0) >= np.floor(total * 0.05)).all()
        assert (labels[found[part]].sum(0) >= (total * 0.1 >= 1)).all()


def test_samples_with_equal_keys_stay_together_in_all_unicode_forms():
    keys = [f"patient {i // 7}" for i in range(700)]
    found = assign_splits(keys, np.arange(700) % 3, SHARES, 0)
    sets = [{keys[i] for i in rows} for rows in found.values()]
    assert sum(map(len, sets)) == len(set.union(*sets)) == 100
    names = [f"é/{i}.jpg" for i in range(200)]
    apart = [unicodedata.normalize("NFD", name) for name in names]
    assert list(parts(names, [0] * 200).values()) == list(parts(apart, [0] * 200).values())


def test_fractions_are_checked():
    for fractions in ((0.5, 0.1, 0.1), (0.8, 0.3, -0.1), (float("nan"), 0.1, 0.1), (0.8, float("nan"), 0.1)):
        with pytest.raises(ValueError, match="fractions"):
            assign_splits(["a", "b"], np.zeros(2, int), fractions, 0)
    with pytest.raises(DataError, match="data.val=5000 must be a fraction of the training images"):
        imagenet("missing", val=5000)


def test_the_number_of_held_out_samples_is_checked():
    train = array_split(np.zeros((20, 2, 2), np.uint8), np.arange(20) % 2, "toy")
    assert [len(each) for each in with_validation({"train": train}, 6, 0, 0).values()] == [14, 6]
    assert list(with_validation({"train": train}, 0, 0, 0)) == ["train"]
    with pytest.raises(DataError, match="data.val=-5 must be at least 0, the number of images to hold out"):
        with_validation({"train": train}, -5, 0, 0)


def belongs(source):
    return {name: key for key, split in source.splits.items() for name in split.names}


def test_adding_a_photo_to_a_folder(class_folders):
    root = class_folders({"cat": 60, "dog": 50})
    before = belongs(folder(root))
    (root / "cat" / "000.png").rename(root / "cat" / "new.png")
    (root / "cat" / "aaa.png").write_bytes((root / "cat" / "001.png").read_bytes())
    after = belongs(folder(root))
    assert all(after[name] == key for name, key in before.items() if name != "cat/000.png")


def rows_of(source):
    """Content of a sample → its split, since names of rows depend on their position."""
    if hasattr(source.splits["train"], "texts"):
        return {split.texts[0][i]: key for key, split in source.splits.items() for i in range(len(split))}
    return {split.sources[i]: key for key, split in source.splits.items() for i in range(len(split))}


def test_rows_without_names_are_identified_by_content(tmp_path):
    lines = [f"text {i}\tlabel {i % 2}" for i in range(200)]
    for read, header in ((text_table, "text\tlabel"), (lambda p: parallel(p, "text", "label"), "text\tlabel")):
        path = tmp_path / "t.tsv"
        path.write_text("\n".join([header, *lines]) + "\n")
        before = rows_of(read(path))
        path.write_text("\n".join([header, "a new one\tlabel 0", *lines[:50], *reversed(lines[60:])]) + "\n")
        after = rows_of(read(path))
        assert all(before[text] == key for text, key in after.items() if text != "a new one")
        assert len(before) == 200 and len(after) == 191


def test_images_in_a_table_are_identified_by_content(tmp_path, class_folders):
    import pyarrow
    import pyarrow.parquet

    root = class_folders({"x": 80})
    files = [(root / "x" / f"{i:03}.png").read_bytes() for i in range(80)]

    def split_of(order):
        data = pyarrow.table({"image": [files[i] for i in order], "label": ["ab"[i % 2] for i in order]})
        pyarrow.parquet.write_table(data, tmp_path / "t.parquet")
        source = table(tmp_path / "t.parquet")
        return {split.read(i): key for key, split in source.splits.items() for i in range(len(split))}

    before, after = split_of(range(80)), split_of([*range(79, 20, -1)])
    assert all(before[content] == key for content, key in after.items()) and len(set(before.values())) == 3


def test_pairs_with_the_same_source_stay_together():
    from vit.data.pairs.source import add_missing_splits

    sources = [f"sentence {i // 5}" for i in range(500)]
    pairs = PairSplit([f"target {i}" for i in range(500)], RowNames("x", np.arange(500)), sources)
    sets = [set(split.sources) for split in add_missing_splits({"train": pairs}, SHARES, 0).values()]
    assert len(sets) == 3 and sum(map(len, sets)) == 100


@pytest.mark.parametrize(("length", "count"), [(15, 8), (23, 8), (8, 8), (3, 8), (0, 8), (9, 0)])
def test_evenly_spaced_indices_reach_the_end(length, count):
    found = evenly_spaced(length, count)
    assert len(found) == min(length, count)
    distances = np.diff([*found, length])  # from the last one to the end too
    assert len(distances) == 0 or distances.max() - distances.min() <= 1


def test_samples_are_held_out_of_each_of_many_classes():
    labels = np.arange(300_000) % 20_000
    remaining, held = hold_out(labels, 40_000, 0)
    assert (np.bincount(labels[held], minlength=20_000) == 2).all() and len(remaining) == 260_000


def test_fractions_have_training_samples_of_each_of_many_classes():
    labels = np.repeat(np.arange(20_000), 15)
    keys = [f"{label}/{i}.jpg" for i, label in enumerate(labels)]
    found = assign_splits(keys, labels, SHARES, 0)
    assert (np.bincount(labels[found["train"]]) >= 1).all()


def test_no_samples():
    assert [len(rows) for rows in assign_splits([], np.zeros(0, int), SHARES, 0).values()] == [0, 0, 0]


def test_held_out_samples_are_the_first_of_a_permutation_of_each_class():
    labels = np.random.default_rng(0).integers(0, 7, 200)
    _, held = hold_out(labels, 60, 3)
    for number in range(7):
        rows = np.flatnonzero(labels == number)
        chosen = np.intersect1d(rows, held)
        assert set(rows[permutation(3, number, len(rows)).numpy()][: len(chosen)]) == set(chosen)


def keys_at(*hashes):
    """Keys whose positions for seed 0 are at most 0.001 from these."""
    names = [str(i) for i in range(20_000)]
    positions = hash_positions(names, 0)
    return [names[int(np.abs(positions - each).argmin())] for each in hashes]


@pytest.mark.parametrize(("hashes", "expected"), [
    ((0.03, 0.06, 0.09), ["test", "train", "train"]),  # of three in test, it keeps the one that is farthest from train
    ((0.92, 0.95, 0.98), ["train", "train", "val"]),
    ((0.095, 0.98), ["train", "val"]),  # the nearest to train moves there
    ((0.02, 0.905), ["test", "train"]),
])
def test_the_samples_nearest_to_the_threshold_change_sides(hashes, expected):
    rare = keys_at(*hashes)
    many = [f"many/{i}" for i in range(2000)]
    found = parts(rare + many, [1] * len(rare) + [0] * len(many))
    assert [found[key] for key in rare] == expected


@pytest.mark.parametrize("count", [5, 7, 20])
def test_as_many_as_asked_for_are_held_out_each_class_by_its_share(count):
    labels = np.repeat([0, 1, 2], [50, 33, 17])
    remaining, held = hold_out(labels, count, 0)
    assert len(held) == count and sorted([*remaining, *held]) == list(range(100))
    assert (np.abs(np.bincount(labels[held], minlength=3) - np.array([50, 33, 17]) * count / 100) < 1).all()


def test_the_fraction_of_validation_is_that_of_what_is_not_test():
    assert validation_fraction((0.6, 0.2, 0.2)) == pytest.approx(0.25)
    assert validation_fraction((0.9, 0.1, 0.0)) == pytest.approx(0.1) and validation_fraction((0.0, 0.0, 1.0)) == 0


def test_a_key_of_many_samples_that_cannot_move_is_tried_once_per_class_and_part(monkeypatch):
    """Each attempt looks at all samples of the key, so one for each of them would be quadratic."""
    attempts, move = [], _Rebalancer._move_together

    def counted(self, together, number):
        attempts.append(len(together))
        return move(self, together, number)

    monkeypatch.setattr(_Rebalancer, "_move_together", counted)
    count = 2000
    found = assign_splits([str(i % 20) for i in range(count)], np.arange(count) % 10, (0.8, 0.1, 0.1), 0)
    assert {name: len(rows) for name, rows in found.items()} == {"train": 1000, "val": 0, "test": 1000}
    assert 0 < len(attempts) <= 20 * 11 * 5  # keys, classes and all of them together, passes of `ensure`
