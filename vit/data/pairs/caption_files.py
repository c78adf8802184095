"""Files of captions as columns of image and text: those of COCO, Flickr8k and Flickr30k, Karpathy's splits of them, and
folders with a text file beside each image.

https://cocodataset.org/#format-data, https://cs.stanford.edu/people/karpathy/deepimagesent
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from vit.data.errors import DataError, printable
from vit.data.formats.delimited import read_lines
from vit.data.formats.lines import lone_surrogate
from vit.data.formats.split_tables import split_in_name
from vit.data.formats.zip_archives import is_hidden
from vit.data.image_sources.files import is_image_name
from vit.data.splits.names import split_of
from vit.files.untrusted import read_bytes, unique_keys

# image, text and perhaps split; the name of each row; names of left-out rows with the reason
Captions = tuple[dict[str, list[str]], list[str], list[tuple[str, str]]]
IMAGE_NAMES = ("file", "image", "file_name", "filename", "image_path", "path", "img", "filepath")  # of columns
TEXT_NAMES = ("text", "caption", "captions")
TOKEN = re.compile(r"(?P<image>[^\t]+)#\d+\t(?P<text>.*)")  # 1000268201_693b08cb0e.jpg#0<TAB>A child .
LIST = re.compile(r"[._](?P<split>[A-Za-z]+)Images\.txt")  # the end of the name of a list of images of Flickr8k
COCO = re.compile(r"captions_.*\.json", re.IGNORECASE)
SINGLE = ("Flickr8k.token.txt", "results_*.token", "dataset_*.json", "results.csv")  # files of all captions
RESTVAL = "restval"  # images of COCO's val2014 that Karpathy's split adds to the training data
TEXT = ".txt"


def read_captions(path: Path) -> Captions | None:
    """The columns of a file of captions, a row per caption; None if it is not one.

    - JSON of COCO (`images` and `annotations` with a `caption`) or of Karpathy (`images` with `sentences` and `split`),
      or a list of objects with an image and a caption or a list of captions
    - `Flickr8k.token.txt` and the like (`.token` of Flickr30k), with the lists `Flickr_8k.trainImages.txt`,
      devImages and testImages beside it as the column split; images in no list are left out
    - `results.csv` of Flickr30k, whose columns ` | ` separates: image, number of the caption, caption

    Raises:
        DataError: the file is damaged, or JSON of another form.
    """
    kind = path.suffix.lower()
    if kind == ".json":
        return _json_captions(path)
    if kind in (TEXT, ".token") and _matches(path, TOKEN):
        return _token_captions(path)
    if kind in (".csv", TEXT) and _matches(path, re.compile(r"[^,;\t|]+\|[^,;\t|]+\|[^,;\t|]+")):
        return _bar_captions(path)
    return None


def coco_files(folder: Path) -> dict[str, Path]:
    """Split -> its file of captions of COCO in a folder or in its folder annotations; {} without one of train. Raises
    DataError if a split has two.
    """
    for place in (folder, folder / "annotations"):
        files = sorted(place.iterdir()) if place.is_dir() else []
        found = {}
        for file in (file for file in files if COCO.fullmatch(file.name)):
            for split in split_in_name(file.stem)[1]:
                if split in found:
                    raise DataError(f"{place}: both {found[split].name} and {file.name} are captions of {split}; set "
                                    "data.path to one of them and data.root to the folder of its images")
                found[split] = file
        if "train" in found:
            return {key: found[key] for key in ("train", "val", "test") if key in found}
    return {}


def caption_file(folder: Path) -> Path | None:
    """The only file of captions of Flickr8k, Flickr30k or Karpathy in a folder or one below it; None if there is no
    such file, or several.
    """
    found = [file for name in SINGLE for pattern in (name, f"*/{name}") for file in folder.glob(pattern)]
    return found[0] if len(found) == 1 else None


def text_beside_images(folder: Path) -> Captions | None:
    """The captions of a folder in which `1.txt` has those of `1.jpg`, one per line; None if no image has such a file.

    An image without a text has an empty one. If all images are in folders with names of splits, these are the column
    split.
    """
    images, texts, names = [], [], []
    for image, file in _images_with_files(folder):
        lines = [line for line in read_lines(folder / file) if line.strip()] if file else []
        images += [image] * max(1, len(lines))
        texts += lines or [""]
        names += [f"{file} line {i}" for i in range(1, len(lines) + 1)] or [image]
    if not any(texts):
        return None
    columns = {"image": images, "text": texts}
    splits = [split_of(image.split(os.sep)[0]) if os.sep in image else None for image in images]
    return {**columns, **({"split": splits} if all(splits) else {})}, names, []


def _images_with_files(folder: Path) -> Iterator[tuple[str, str | None]]:
    """The images below a folder with the text file of the same name, sorted."""
    for above, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if not is_hidden(each))
        inside = os.path.relpath(above, folder)
        known = set(files)
        for name in sorted(filter(is_image_name, files)):
            file = os.path.splitext(name)[0] + TEXT
            image, text = (each if inside == "." else os.path.join(inside, each) for each in (name, file))
            yield image, text if file in known else None


def _matches(path: Path, pattern: re.Pattern) -> bool:
    """Whether the first line of a file is of a form; False for a file that is not text."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            return pattern.fullmatch(next(islice(file, 1), "").rstrip("\n")) is not None
    except (OSError, UnicodeDecodeError):
        return False


def _token_captions(path: Path) -> Captions:
    rows = []
    for number, line in enumerate(read_lines(path), 1):
        if not (found := TOKEN.fullmatch(line)):
            raise DataError(f"{path} line {number}: must be IMAGE#NUMBER, a tab and a caption, as in line 1")
        rows.append((found["image"], found["text"], f"{path.name} line {number}"))
    lists = {split: file for file in sorted(path.parent.iterdir())
             if (found := LIST.search(file.name)) and (split := split_of(found["split"]))}
    if "train" not in lists:
        return _columns(path, rows)
    splits: dict[str, str] = {}
    for split, file in lists.items():
        for image in filter(None, map(str.strip, read_lines(file))):
            if splits.setdefault(image, split) != split:
                raise DataError(f"{file}: the image {image} is also in {lists[splits[image]].name}; remove it from one "
                                "of them")
    listed = [row for row in rows if row[0] in splits]
    left_out = [(name, f"{image} is in no list of a split") for image, _, name in rows if image not in splits]
    return _columns(path, listed, [splits[image] for image, _, _ in listed], left_out)


def _bar_captions(path: Path) -> Captions:
    rows = []
    for number, line in enumerate(read_lines(path), 1):
        cells = [cell.strip() for cell in line.split("|", 2)]
        if len(cells) != 3:
            raise DataError(f"{path} line {number}: has {len(cells)} fields, the header has 3; separate image, number "
                            "and caption by |")
        rows.append((cells[0], cells[2], f"{path.name} line {number}"))
    return _columns(path, rows[1:])


def _json_captions(path: Path) -> Captions:
    try:
        content = json.loads(read_bytes(path).decode("utf-8-sig"), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from None
    images = content.get("images") if isinstance(content, dict) else None
    try:
        if isinstance(images, list) and isinstance(content.get("annotations"), list):
            return _columns(path, _coco_rows(path, images, content["annotations"]))
        if isinstance(images, list) and images and "sentences" in images[0]:
            return _karpathy_columns(path, images)
        if isinstance(content, list) and content:
            return _columns(path, _object_rows(path, content))
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path}: is not a file of captions as COCO or Karpathy writes it ({reason}); write a "
                        "table with the columns file and text") from None
    raise DataError(f"{path}: has no captions as COCO's JSON (images and annotations), Karpathy's (images with "
                    'sentences) or a list of objects such as [{"image": "1.jpg", "caption": "A dog."}]; write a table '
                    "with the columns file and text")


def _coco_rows(path: Path, images: list[dict[str, Any]], annotations: list[dict[str, Any]]) -> list[tuple]:
    """The captions in the order of the images; an image without captions has an empty one."""
    texts: dict[Any, list[tuple[str, str]]] = {each["id"]: [] for each in images}
    if annotations and "caption" not in annotations[0]:
        raise DataError(f"{path}: its annotations have no caption; select the file of captions, such as "
                        "captions_train2017.json")
    for each in annotations:
        if each["image_id"] not in texts:
            raise DataError(f"{path}: annotation {each.get('id')} has image_id={each['image_id']!r}, which the file "
                            "does not have; remove it")
        texts[each["image_id"]].append((each["caption"], f"{path.name} annotation {each.get('id')}"))
    return [(each["file_name"], *row) for each in images
            for row in texts[each["id"]] or [("", f"{path.name} image {each['id']}")]]


def _karpathy_columns(path: Path, images: list[dict[str, Any]]) -> Captions:
    rows, splits = [], []
    for number, each in enumerate(images, 1):
        name = os.path.join(each["filepath"], each["filename"]) if each.get("filepath") else each["filename"]
        sentences = [sentence["raw"] for sentence in each["sentences"]] or [""]
        rows += [(name, text, f"{path.name} image {number}") for text in sentences]
        splits += ["train" if each["split"] == RESTVAL else each["split"]] * len(sentences)
    return _columns(path, rows, splits)


def _object_rows(path: Path, objects: list[dict[str, Any]]) -> list[tuple]:
    first = objects[0]
    image, text = (next((name for name in names if name in first), names[0])
                   for names in (IMAGE_NAMES, TEXT_NAMES))
    rows = []
    for number, each in enumerate(objects, 1):
        texts = each[text] if isinstance(each[text], list) else [each[text]]
        rows += [(each[image], caption, f"{path.name} object {number}") for caption in texts or [""]]
    return rows


def _columns(
    path: Path, rows: Sequence[tuple[str, str, str]], splits: Sequence[str] | None = None,
    left_out: Sequence[tuple[str, str]] = (),
) -> Captions:
    """The columns of rows of image, text and name; raises DataError if one is not a text, or there are no rows."""
    if not rows:
        raise DataError(f"{path}: has 0 captions of images" + (" in the lists of splits" if left_out else ""))
    images, texts, names = (list(column) for column in zip(*rows, strict=True))
    for each, name in zip((*images, *texts), (*names, *names), strict=True):
        if not isinstance(each, str):
            raise DataError(f"{printable(name)}: must have a string, but has {type(each).__name__}; correct it")
        if half := lone_surrogate(each):
            raise DataError(f"{printable(name)}: has {half}, half of a character; write both halves or remove it")
    columns = {"image": images, "text": texts} | ({} if splits is None else {"split": list(splits)})
    return columns, names, list(left_out)
