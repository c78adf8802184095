"""Tables of verified labels, as those of Open Images: a row for each label of an image, with 1 if the label is present
and 0 if it is absent.

https://storage.googleapis.com/openimages/web/download_v7.html
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit.data.class_names import clean_label
from vit.data.errors import DataError
from vit.data.formats.delimited import Column
from vit.data.image_sources.table_columns import to_list

IMAGE, LABEL, CONFIDENCE = "ImageID", "LabelName", "Confidence"
PRESENT, ABSENT = ("1", "1.0"), ("0", "0.0")


def one_row_per_image(
    path: Path, columns: dict[Column, Any], image: Column | None, label: Column | Sequence[Column] | None
) -> dict[Column, Any]:
    """The columns of such a table with a row per image, whose cell of labels is the list of those that are present; any
    other table as it is. Further columns are kept if their cells are equal in all rows of each image.

    Args:
        image, label: the requested columns, with which another column may be read instead.

    Raises:
        DataError: a confidence is neither 0 nor 1, as those of labels that a model has predicted.
    """
    if not {IMAGE, LABEL, CONFIDENCE} <= columns.keys() or image not in (None, IMAGE) or label not in (None, LABEL):
        return columns
    names, stated, confidences = (to_list(columns[name]) for name in (IMAGE, LABEL, CONFIDENCE))
    first: dict[Any, int] = {}  # image -> its first row
    labels: dict[Any, dict[Any, None]] = {}
    for row, (name, found, confidence) in enumerate(zip(names, stated, confidences, strict=True)):
        first.setdefault(name, row)
        of_image = labels.setdefault(name, {})
        if _is_present(path, row, confidence):
            of_image[found] = None
    others = {name: to_list(column) for name, column in columns.items() if name not in (IMAGE, LABEL, CONFIDENCE)}
    kept = {name: [cells[row] for row in first.values()] for name, cells in others.items()
            if all(cells[first[image]] == cell for image, cell in zip(names, cells, strict=True))}
    return {IMAGE: list(first), LABEL: [list(each) for each in labels.values()], **kept}


def _is_present(path: Path, row: int, value: Any) -> bool:
    text = clean_label(value)
    if text not in (*PRESENT, *ABSENT):
        raise DataError(f"{path} row {row}: {CONFIDENCE} is {value!r}, but must be 1 if the label is present, or 0 if "
                        "it is absent; labels that a model has predicted have other numbers: write 0 or 1 by a "
                        "threshold, or leave them out")
    return text in PRESENT
