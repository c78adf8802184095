"""The data sets that are recognized by the names of their lists."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vit.data.formats.zip_archives import is_hidden
from vit.data.image_sources.published.aircraft import fgvc_aircraft
from vit.data.image_sources.published.array_files import STL10, SVHN, Arrays, stl10, svhn
from vit.data.image_sources.published.matlab_lists import CARS, flowers_102, stanford_cars, stanford_dogs
from vit.data.image_sources.published.numbered_images import IMAGES as NUMBERED
from vit.data.image_sources.published.numbered_images import LABELS, SPLITS, numbered_images
from vit.data.image_sources.published.pascal_voc import pascal_voc
from vit.data.image_sources.table_files import Content
from vit.messages import override_for_shell

MAX_ENTRIES = 100  # entries of a folder, beyond which its folders are not searched


@dataclass(frozen=True)
class Layout:
    """The layout of a data set.

    Args:
        name: of the data set.
        files: the files by which it is recognized, all of which it has.
        images: the folder that the names of its images are relative to.
        read: its columns image, label and split, or its arrays.
        like_tables: its lists have the names of tables of the splits.
        has_arrays: `read` returns arrays.
    """

    name: str
    files: tuple[str, ...]
    images: str
    read: Callable[[Path], Content | Arrays]
    like_tables: bool = False
    has_arrays: bool = False


LAYOUTS = (
    Layout("CUB-200-2011", (NUMBERED, LABELS, SPLITS), "images", numbered_images),
    Layout("Flowers-102", ("imagelabels.mat", "setid.mat"), "jpg", flowers_102),
    Layout("Stanford Cars", (CARS,), "", stanford_cars),
    Layout("Stanford Dogs", ("train_list.mat", "test_list.mat"), "Images", stanford_dogs),
    Layout("FGVC-Aircraft", ("images_variant_train.txt", "images_variant_test.txt"), "images", fgvc_aircraft, True),
    Layout("Pascal VOC", ("ImageSets/Main/train.txt", "JPEGImages"), "JPEGImages", pascal_voc),
    Layout("SVHN", (SVHN.format("train"), SVHN.format("test")), "", svhn, has_arrays=True),
    Layout("STL-10", (*(name.format("train") for name in STL10), "class_names.txt"), "", stl10, has_arrays=True),
)


def find_layout(folder: Path) -> Layout | None:
    """The layout of a folder; None for any other folder."""
    return next((layout for layout in LAYOUTS if all((folder / name).exists() for name in layout.files)), None)


def layout_hint(path: Path, around: bool = True) -> str:
    """The hint that a folder with the images of a data set is read with its lists; "" for any other path.

    Args:
        around: whether the folders above and in it are such a folder, too.
    """
    for folder in (path, *(path.resolve().parents[:2] if around else ()), *(_folders(path) if around else ())):
        layout = find_layout(folder)
        if layout is not None and (folder / layout.images).is_dir():
            return f"; {layout.name} with its splits is read by data=table {override_for_shell('data.path', folder)}"
    return ""


def _folders(folder: Path) -> list[Path]:
    """The folders in a folder; [] if it has many entries, or cannot be listed."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    folders = [] if len(entries) > MAX_ENTRIES else [entry for entry in entries if entry.is_dir()]
    return [folder for folder in folders if not is_hidden(folder.name)]
