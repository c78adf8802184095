"""Several labels per image: tables, splits, balancing and mixup."""

import csv
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from vit.data import DataError, ImageDataset, Mixup, Preprocessing, Source, TrainBatches, table
from vit.data.splits.split import array_split, file_split

SETS = [["cat", "dog"], [], ["dog"], ["emu", "cat"], ["dog"], ["cat"], ["emu"], ["dog", "emu"], [], ["cat"]]


def files(root):
    return [f"x/{i:03}.png" for i in range(10)], [(root / "x" / f"{i:03}.png").read_bytes() for i in range(10)]


def write_csv(path, cells):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["file", "label"], *([f"x/{i:03}.png", cell] for i, cell in enumerate(cells))])
    return path


def named(source, key="train"):
    """Image → its labels, in any order of rows and classes."""
    split = source.splits[key]
    return {split.names[i]: {source.classes[c] for c in np.flatnonzero(split.labels[i])} for i in range(len(split))}


def test_all_table_formats_give_the_same_labels(class_folders, tmp_path):
    root = class_folders({"x": 10})
    paths, raw = files(root)
    numbers = [[["cat", "dog", "emu"].index(name) for name in names] for names in SETS]
    (root / "t.json").write_text(json.dumps([{"file": p, "tags": n} for p, n in zip(paths, SETS, strict=True)]))
    lines = (json.dumps({"image": p, "label": n}) for p, n in zip(paths, SETS, strict=True))
    (root / "t.jsonl").write_text("\n".join(lines) + "\n")
    pyarrow.parquet.write_table(pyarrow.table({"image": raw, "label": SETS}), root / "names.parquet")
    stored = {"label": {"feature": {"names": ["cat", "dog", "emu"], "_type": "ClassLabel"}, "_type": "List"}}
    data = pyarrow.table({"image": raw, "label": numbers})
    data = data.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": stored}})})
    pyarrow.parquet.write_table(data, root / "numbers.parquet")
    found = [table(write_csv(root / "t.csv", [" | ".join(names) for names in SETS]), label_separator="|",
                   fractions=(1, 0, 0))]
    others = ("t.json", "t.jsonl", "names.parquet", "numbers.parquet")
    found += [table(root / name, fractions=(1, 0, 0)) for name in others]
    for source in found:
        assert source.multi_label and source.classes == ["cat", "dog", "emu"]
        assert [named(source)[name] for name in source.splits["train"].names] == [set(names) for names in SETS]
        assert source.counts("train").tolist() == [4, 4, 3]
    assert [label for _, label in found[0].split_lists()["train"]][:4] == ["cat|dog", "", "dog", "cat|emu"]
    assert Preprocessing(size=8).image(found[3].splits["train"].read(0)).shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("cells", "separator", "message"),
    [
        (["a|b", "a||b", *"abababab"], "|", "row 1: 'a\\|\\|b' has an empty name between two separators"),
        (["a,b", "c", *"abababab"], "|",
         "label_separator='\\|' does not occur in the 10 labels, such as 'a,b'; did you mean ','"),
        ([""] * 10, "|", "none of its 10 images has a label"),
        (["a|b", *["a"] * 9], "|", "all 10 training images have the label 'a'"),
        (["a|b", *"abababab", ""], "", "label_separator is empty, but must be the character"),
    ],
)
def test_invalid_labels_are_errors(class_folders, cells, separator, message):
    path = write_csv(class_folders({"x": 10}) / "t.csv", cells)
    with pytest.raises(DataError, match=message):
        table(path, label_separator=separator, fractions=(1, 0, 0))


def test_a_class_only_in_validation_is_an_error(class_folders):
    root = class_folders({"x": 10})
    rows = [[f"x/{i:03}.png", "a|b" if i % 2 else "a|c" if i == 8 else "", "val" if i > 7 else "train"]
            for i in range(10)]
    with (root / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["file", "label", "split"], *rows])
    with pytest.raises(DataError, match=r"1 of 3 classes has no training image \('c'\)"):
        table(root / "t.csv", label_separator="|")


def test_lists_in_only_some_rows_and_labels_out_of_range(class_folders):
    root = class_folders({"x": 10})
    rows = [{"file": f"x/{i:03}.png", "label": ["a"] if i else "b"} for i in range(10)]
    (root / "t.json").write_text(json.dumps(rows))
    with pytest.raises(DataError, match="row 0: the label 'b' is not a list"):
        table(root / "t.json")
    rows = [{"file": f"x/{i:03}.png", "label": [0, 5] if i == 3 else [1]} for i in range(10)]
    (root / "t.json").write_text(json.dumps(rows))
    with pytest.raises(DataError, match="row 3: label 5 is out of range for 2 classes"):
        table(root / "t.json", classes=["a", "b"])
    (root / "t.json").write_text('{"file": "x/000.png"}')
    with pytest.raises(DataError, match="expected one object per image"):
        table(root / "t.json")


def skewed(n=600, seed=0):
    """Labels of very different frequency; the third implies the first."""
    rng = np.random.default_rng(seed)
    labels = rng.random((n, 6)) < (0.5, 0.2, 0.0, 0.05, 0.02, 0.01)
    labels[:, 2] = labels[:, 0] & (rng.random(n) < 0.3)
    return labels


def test_the_sampler_draws_labels_equally_often_without_repeating_a_draw():
    labels = skewed(400)
    split = array_split(np.zeros((400, 8, 8), np.uint8), labels, "toy")
    batches = TrainBatches(ImageDataset(split, Preprocessing(size=8)), 8, balance="sampler", workers=0)
    keys = np.concatenate(batches.keys(3))
    assert len(keys) == 400 and len(np.unique(keys, axis=0)) == 400
    plain, shown = labels.sum(0), labels[keys[:, 1]].sum(0)
    assert plain.max() / plain.min() > 30 and shown.max() / shown.min() < 4
    assert 400 // 7 <= (~labels[keys[:, 1]].any(1)).sum() <= 400 // 7 + 1
    assert np.array_equal(np.concatenate(batches.keys(3)), keys)


def test_the_separator_is_found_once_for_all_samples(monkeypatch):
    calls = []
    monkeypatch.setattr("vit.data.source.separator_of", lambda classes: calls.append(classes) or "|")
    table = np.eye(3, dtype=bool)[np.arange(30) % 3]
    table[0] = True
    source = Source("toy", ["a", "b", "c"], {"train": array_split(np.zeros((30, 1, 1)), table, "t")})
    assert source.split_lists()["train"][:2] == [("t row 0", "a|b|c"), ("t row 1", "b")] and len(calls) == 1


def test_class_weights_are_ratios_of_negatives_to_positives():
    labels = skewed()
    source = Source("toy", list("abcdef"), {"train": array_split(np.zeros((600, 2, 2), np.uint8), labels, "toy")})
    assert np.allclose(source.class_weights(), (~labels).sum(0) / labels.sum(0))


def test_mixup_mixes_multi_label_targets():
    images = torch.arange(9.0)[:, None, None, None].expand(9, 3, 8, 8).clone()
    hot = torch.nn.functional.one_hot(torch.arange(9) % 4, 4)
    mixup = Mixup(4, mixup=0.8, cutmix=0.5)
    single, sets = (mixup(images, labels, 0, 1) for labels in (torch.arange(9) % 4, hot.bool()))
    assert torch.equal(single[0], sets[0]) and torch.equal(single[1], sets[1])
    many = (torch.rand(9, 4, generator=torch.Generator().manual_seed(0)) < 0.5).bool()
    mixed, targets = Mixup(4, mixup=0.8, cutmix=0.0)(images, many, 0, 1)
    share = ((mixed - images.roll(1, 0)) / (images - images.roll(1, 0)))[:, 0, 0, 0, None]
    assert torch.allclose(targets, share * many.float() + (1 - share) * many.roll(1, 0).float(), atol=1e-5)


def test_labels_of_the_right_type_are_not_copied(tmp_path):
    """Those of 200,000 images with 5,000 labels are 1 GB."""
    labels = np.zeros((2, 3), bool)
    assert file_split(tmp_path, ["a.png", "b.png"], labels).labels is labels
    assert file_split(tmp_path, ["a.png", "b.png"], labels.astype(np.uint8)).labels.dtype == bool


def test_a_batch_contains_all_labels(class_folders):
    root = class_folders({"x": 10})
    source = table(write_csv(root / "t.csv", ["|".join(names) for names in SETS]), label_separator="|",
                   fractions=(1, 0, 0))
    batch = ImageDataset(source.splits["train"], Preprocessing(size=8)).__getitems__([(0, 3), (0, 1)])
    assert batch["label"].tolist() == [[True, False, True], [False, False, False]]
    rest = source.without([("train", 3, "broken")])
    assert rest.multi_label and len(rest.splits["train"]) == 9 and rest.counts("train").tolist() == [3, 4, 2]
