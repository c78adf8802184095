"""Labels of Open Images: a row for each, with 0 in the column Confidence if the image does not show it."""

import pytest

from vit.data import DataError, table

HEADER = "ImageID,Source,LabelName,Confidence"
LABELS = {"000": ["cat"], "001": ["cat", "dog"], "002": [], "003": ["dog"]}


def rows(present="1", absent="0", source="verification"):
    return [f"{name},{source},{label},{present if label in found else absent}" for name, found in LABELS.items()
            for label in ("cat", "dog")]


@pytest.fixture
def root(class_folders):
    return class_folders({"train": 4, "validation": 4})


def labels(split):
    return {name.split("/")[-1].removesuffix(".png"): label.split("|") if label else [] for name, label in split}


@pytest.mark.parametrize("numbers", [("1", "0"), ("1.0", "0.0")])
@pytest.mark.parametrize("options", [{}, {"label": "LabelName"}, {"label": "LabelName", "label_separator": "|"}])
def test_a_label_with_confidence_0_is_absent(root, numbers, options):
    (root / "train.csv").write_text("\n".join([HEADER, *rows(*numbers), "003,boxes,dog,1"]))
    source = table(root / "train.csv", root=root / "train", fractions=(1, 0, 0), **options)
    assert source.classes == ["cat", "dog"] and labels(source.split_lists()["train"]) == LABELS


def test_the_tables_of_several_splits(root, caplog):
    for part in ("train", "validation"):
        (root / f"{part}-annotations-human-imagelabels.csv").write_text("\n".join([HEADER, *rows()]))
    found = table(root).split_lists()
    assert {key: labels(split) for key, split in found.items()} == {"train": LABELS, "val": LABELS}
    table(root / "train-annotations-human-imagelabels.csv", root=root / "train", fractions=(1, 0, 0))
    assert "the tables beside it that may be the other splits" in caplog.text


def test_columns_of_images_are_kept(root):
    lines = [f"{row},{'train' if row[:3] in ('001', '002') else 'val'}" for row in rows()]
    (root / "labels.csv").write_text("\n".join([f"{HEADER},split", *lines]))
    found = table(root / "labels.csv", root=root / "train").split_lists()
    assert {key: list(labels(split)) for key, split in found.items()} == {"train": ["001", "002"],
                                                                        "val": ["000", "003"]}


def test_the_confidence_of_a_model_is_an_error(root):
    (root / "train.csv").write_text("\n".join([HEADER, *rows("0.7")]))
    with pytest.raises(DataError, match="train.csv row 0: Confidence is '0.7', but must be 1 .* or 0"):
        table(root / "train.csv", root=root / "train")


def test_a_column_confidence_of_other_tables_is_not_read(root):
    lines = [f"{name},{'cat' if 'cat' in found else 'dog'},0" for name, found in LABELS.items()]
    (root / "labels.csv").write_text("\n".join(["image,label,Confidence", *lines]))
    source = table(root / "labels.csv", root=root / "train", fractions=(1, 0, 0))
    assert [label for _, label in source.split_lists()["train"]] == ["cat", "cat", "dog", "dog"]
