"""The lists of FGVC-Aircraft: an image and the name of its class, which may contain blanks, in each line."""

from pathlib import Path

from vit.data.errors import DataError
from vit.data.formats.delimited import read_lines
from vit.data.image_sources.table_files import Content

LEVELS = {"variant": "variants.txt", "family": "families.txt", "manufacturer": "manufacturers.txt"}  # their classes


def fgvc_aircraft(folder: Path) -> Content:
    """The images of the train, val and test lists. The column label is the variant, as the column of this name;
    family and manufacturer are those of the coarser classes.

    Raises:
        DataError: a list is damaged, lacks an image, or an image is in two splits.
    """
    images: dict[str, str] = {}
    columns: dict[str, list[str]] = {}
    names: dict[str, list[str]] = {}
    for level, file in LEVELS.items():
        found: dict[str, tuple[str, str]] = {}
        for part in ("train", "val", "test"):
            path = folder / f"images_{level}_{part}.txt"
            for image, name in _lines(path) if path.is_file() else ():
                if found.setdefault(image, (name, part)) != (name, part):
                    raise DataError(f"{path}: the image {image} is also in the list of {found[image][1]}; unpack the "
                                    "data set again")
        if not found and images:
            continue
        images = images or {image: part for image, (_, part) in found.items()}
        for image, part in images.items():
            if image not in found or found[image][1] != part:
                fault = f"have the image {image} in {found[image][1]}" if image in found else f"lack the image {image}"
                raise DataError(f"{folder}: the lists images_{level}_*.txt {fault}, which images_variant_{part}.txt "
                                "has; unpack the data set again")
        columns[level] = [found[image][0] for image in images]
        names[level] = _names(folder / file) or sorted({*columns[level]})
    files = [f"{image}.jpg" for image in images]
    return ({"image": files, "label": columns["variant"], **columns, "split": list(images.values())},
            names | {"label": names["variant"]})


def _names(file: Path) -> list[str]:
    """The classes in the order of their indices; [] without the file."""
    return [line.strip() for line in read_lines(file) if line.strip()] if file.is_file() else []


def _lines(file: Path) -> list[tuple[str, str]]:
    """An image and its class of each line.

    Raises:
        DataError: a line has no class.
    """
    rows = [line.strip().partition(" ") for line in read_lines(file)]
    wrong = next((number for number, row in enumerate(rows, 1) if row[0] and not row[2].strip()), None)
    if wrong is not None:
        raise DataError(f"{file} line {wrong}: is {rows[wrong - 1][0]!r}, expected an image, a blank and a class; "
                        "unpack the data set again")
    return [(image, name.strip()) for image, _, name in rows if image]
