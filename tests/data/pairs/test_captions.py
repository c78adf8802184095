"""Captions of images in the layouts of COCO, Flickr8k, Flickr30k and Karpathy, in tables, and beside the images."""

import json
from collections import defaultdict

import numpy as np
import pytest
from PIL import Image

from vit.cli.data.audit import as_unlabelled_images
from vit.data import DataError, image_text
from vit.run.jobs.seq2seq import validation_references

NAMES = [f"{i:04}.jpg" for i in range(12)]
CAPTIONS = {name: [f"a dog {i} runs, it is number {k}" for k in range(1 + i % 3)] for i, name in enumerate(NAMES)}
PARTS = {"train": NAMES[:8], "val": NAMES[8:10], "test": NAMES[10:]}


def write_images(folder, names=NAMES):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        Image.new("RGB", (8, 8), (int(name[:4]), 0, 0)).save(folder / name)
    return folder


def read(source):
    """Split -> name of the image without its folder -> its captions in their order."""
    found = {key: defaultdict(list) for key in source.splits}
    for key, split in source.splits.items():
        for i in range(len(split)):
            found[key][split.names[i].rpartition("/")[2]].append(split.targets[i])
            assert split.location(i).is_file()
        assert [len(rows) for rows in split.by_source()] == [len(each) for each in found[key].values()]
    return {key: dict(each) for key, each in found.items()}


def expected(parts=PARTS):
    return {key: {name: CAPTIONS[name] for name in names} for key, names in parts.items()}


def all_captions(source):
    return {name: texts for each in read(source).values() for name, texts in each.items()}


def write_coco(root, split, names):
    """Annotations in another order than the images, with numbers that are not those of the rows."""
    images = [{"id": 100 - int(name[:4]), "file_name": name, "height": 8, "width": 8} for name in names]
    annotations = [{"id": 7 * i + k, "image_id": 100 - int(name[:4]), "caption": text}
                   for i, name in reversed(list(enumerate(names))) for k, text in enumerate(CAPTIONS[name])]
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    file = root / "annotations" / f"captions_{split}2017.json"
    file.write_text(json.dumps({"info": {}, "images": images, "annotations": annotations}))
    return file


def test_coco(tmp_path):
    parts = {"train": NAMES[:8], "val": NAMES[8:]}
    for split, names in parts.items():
        write_images(tmp_path / f"{split}2017", names)
        file = write_coco(tmp_path, split, names)
        (tmp_path / "annotations" / f"instances_{split}2017.json").write_text("{}")
    assert read(image_text(tmp_path)) == read(image_text(tmp_path / "annotations")) == expected(parts)
    one = image_text(file, root=tmp_path / "val2017", fractions=(0.5, 0.5, 0))
    assert all_captions(one) == expected(parts)["val"]
    content = json.loads(file.read_text())
    by_id = {image["id"]: image["file_name"] for image in content["images"]}
    plain = defaultdict(list)  # as pycocotools indexes them
    for each in content["annotations"]:
        plain[by_id[each["image_id"]]].append(each["caption"])
    assert all_captions(one) == plain
    with pytest.raises(FileNotFoundError, match="captions_val2017.json annotation .* set data.root to their folder"):
        image_text(file)


@pytest.mark.parametrize(("change", "message"), [
    (lambda c: c["annotations"][0].update(image_id=5), "annotation 21 has image_id=5, which the file does not have"),
    (lambda c: c["annotations"][0].pop("caption"), "its annotations have no caption; select the file of captions"),
    (lambda c: c["annotations"][1].pop("caption"), r"as COCO or Karpathy writes it \(no 'caption'\)"),
    (lambda c: c["annotations"][1].update(caption=3), "annotation .*: must have a string, but has int"),
    (lambda c: c["images"][0].pop("id"), r"as COCO or Karpathy writes it \(no 'id'\)"),
    (lambda c: c["annotations"].clear(), "captions_val2017.json image 100: text is empty"),
    (lambda c: c.pop("annotations"), "has no captions as COCO's JSON"),
])
def test_damaged_captions_of_coco(tmp_path, change, message):
    file = write_coco(tmp_path, "val", NAMES[:4])
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=message):
        image_text(file, root=write_images(tmp_path / "images"))


def test_flickr8k(tmp_path):
    write_images(tmp_path / "Flicker8k_Dataset")
    texts = tmp_path / "Flickr8k_text"
    texts.mkdir()
    rows = [f"{name}#{k}\t{text}\n" for name in NAMES for k, text in enumerate(CAPTIONS[name])]
    (texts / "Flickr8k.token.txt").write_text("".join(rows) + "gone.jpg.1#0\tA dog .\n")
    (texts / "Flickr8k.lemma.token.txt").write_text("".join(rows).lower())
    for word, names in zip(("train", "dev", "test"), PARTS.values(), strict=True):
        (texts / f"Flickr_8k.{word}Images.txt").write_text("\n".join(names) + "\n")
    found = image_text(tmp_path)
    assert read(found) == expected() and len(found.left_out) == 1
    assert found.left_out[0][1] == "gone.jpg.1 is in no list of a split"
    assert read(image_text(texts / "Flickr8k.token.txt", root=tmp_path / "Flicker8k_Dataset")) == expected()
    twice = texts / "Flickr_8k.devImages.txt"
    stated = twice.read_text()
    twice.write_text(f"{stated}{PARTS['train'][0]}\n")
    with pytest.raises(DataError, match=rf"Images.txt: the image {PARTS['train'][0]} is also in Flickr_8k.\w+Images"):
        image_text(tmp_path)
    twice.write_text(stated)
    (texts / "Flickr_8k.trainImages.txt").unlink()
    without = image_text(texts / "Flickr8k.token.txt", root=tmp_path / "Flicker8k_Dataset", on_bad_sample="skip")
    assert all_captions(without) == CAPTIONS and "does not exist" in without.left_out[0][1]
    (texts / "Flickr8k.token.txt").write_text(rows[0] + "0001.jpg A dog .\n")
    with pytest.raises(DataError, match="Flickr8k.token.txt line 2: must be IMAGE#NUMBER, a tab and a caption"):
        image_text(tmp_path)


def test_flickr30k(tmp_path):
    write_images(tmp_path / "flickr30k_images")
    rows = [f"{name}| {k}| {text}\n" for name in NAMES for k, text in enumerate(CAPTIONS[name])]
    (tmp_path / "results.csv").write_text("image_name| comment_number| comment\n" + "".join(rows))
    assert all_captions(image_text(tmp_path)) == all_captions(image_text(tmp_path / "results.csv")) == CAPTIONS
    (tmp_path / "results.csv").write_text("image_name| comment_number| comment\n" + rows[0] + "0001.jpg| 4   A dog .\n")
    with pytest.raises(DataError, match="results.csv line 3: has 2 fields, the header has 3; separate image"):
        image_text(tmp_path / "results.csv")


@pytest.mark.parametrize("filepath", ["", "train2014"])
def test_karpathy(tmp_path, filepath):
    write_images(tmp_path / "images" / filepath)
    images = [{"filename": name, "split": "restval" if name == NAMES[3] else split, "imgid": i,
               "sentences": [{"raw": text, "tokens": text.split()} for text in CAPTIONS[name]],
               **({"filepath": filepath} if filepath else {})}
              for split, names in PARTS.items() for i, name in enumerate(names)]
    (tmp_path / "dataset_coco.json").write_text(json.dumps({"images": images, "dataset": "coco"}))
    assert read(image_text(tmp_path / "dataset_coco.json", root=tmp_path / "images")) == expected()
    if not filepath:
        assert read(image_text(tmp_path)) == expected()


def test_objects_with_lists_of_captions(tmp_path):
    write_images(tmp_path)
    rows = [{"image": name, "caption": texts if len(texts) > 1 else texts[0]} for name, texts in CAPTIONS.items()]
    (tmp_path / "coco_karpathy_train.json").write_text(json.dumps(rows))
    assert all_captions(image_text(tmp_path / "coco_karpathy_train.json")) == CAPTIONS


@pytest.mark.parametrize("folders", [False, True])
def test_a_text_file_beside_each_image(tmp_path, folders):
    for split, names in PARTS.items():
        folder = write_images(tmp_path / split if folders else tmp_path, names)
        for name in names:
            (folder / name).with_suffix(".txt").write_text("\n".join(CAPTIONS[name]) + "\n\n")
    found = image_text(tmp_path)
    assert read(found) == expected() if folders else all_captions(found) == CAPTIONS
    write_images(folder, ["0099.jpg"])
    with pytest.raises(DataError, match="0099.jpg: text is empty, as in 1 of 25 lines"):
        image_text(tmp_path)
    assert all_captions(image_text(tmp_path, on_empty="skip")) == CAPTIONS


def test_conventional_columns_are_found(tmp_path, caplog):
    write_images(tmp_path)
    rows = [{"file_name": name, "text": text} for name, texts in CAPTIONS.items() for text in texts]
    (tmp_path / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with caplog.at_level("INFO", "vit"):
        assert all_captions(image_text(tmp_path / "metadata.jsonl")) == CAPTIONS
    assert "has no column file, so the column file_name is read as data.image" in caplog.text
    lines = [f'{row["file_name"]},"{row["text"]}"' for row in rows]
    (tmp_path / "t.csv").write_text("\n".join(["image,caption", *lines]))
    assert all_captions(image_text(tmp_path / "t.csv")) == CAPTIONS
    with pytest.raises(DataError, match="has no column 'path' for data.image; its columns are image, caption"):
        image_text(tmp_path / "t.csv", image="path")


def test_shards_are_to_be_unpacked(tmp_path):
    (tmp_path / "00000.tar").touch()
    for path in (tmp_path, tmp_path / "00000.tar"):
        with pytest.raises(DataError, match="00000.tar.* tar -xf into a folder of images and texts, and set data.path"):
            image_text(path)


def test_columns_of_a_file_of_captions_have_no_effect(tmp_path, caplog):
    write_images(tmp_path)
    file = write_coco(tmp_path, "val", NAMES)
    image_text(file, text="title", root=tmp_path)
    assert "data.text=title has no effect, because captions_val2017.json is a file of captions" in caplog.text


def test_an_audit_counts_an_image_once(tmp_path):
    write_images(tmp_path)
    for name, texts in CAPTIONS.items():
        (tmp_path / name).with_suffix(".txt").write_text("\n".join(texts))
    source = as_unlabelled_images(image_text(tmp_path))
    assert sorted(name for split in source.splits.values() for name in split.names) == NAMES
    assert all(split.location(i).name == name for split in source.splits.values() for i, name in enumerate(split.names))


def test_validation_generates_the_first_images_whatever_their_number_of_captions(tmp_path):
    write_images(tmp_path)
    for name, texts in CAPTIONS.items():
        (tmp_path / name).with_suffix(".txt").write_text("\n".join(texts))
    split = image_text(tmp_path, fractions=(1, 0, 0)).splits["train"]
    references, rows = validation_references(split, 5)  # of 1, 2, 3, 1 and 2 captions
    assert [each for each in references[:rows] if each is not None] == list(CAPTIONS.values())[:5]
    assert rows == 1 + 2 + 3 + 1 + 1 and len(references) == len(split)
    assert validation_references(split, 0)[1] == 0 and validation_references(split, 99)[1] == len(split) - 2
    single = split.take(np.array([0, 1, 3]))
    assert validation_references(single, 2) == (single.targets, 2)
