"""JSON files of labelled images or texts as columns: objects, columns, labels by file name, annotations."""

import json
from pathlib import Path
from typing import Any

from vit.data.errors import DataError
from vit.data.image_sources.coco_label_studio import annotation_rows, unlabelled_coco_rows
from vit.data.image_sources.files import is_image_name
from vit.data.image_sources.table_columns import IMAGE_COLUMNS
from vit.files.untrusted import read_bytes, unique_keys

JSON_LINES = (".jsonl", ".ndjson", ".manifest")  # the last of SageMaker Ground Truth
IMAGE_KEYS = set(IMAGE_COLUMNS)


def read_json_columns(path: Path, unit: str = "image") -> dict[str, list[Any]]:
    """The columns of a JSON file: a list of objects, an object per line, an object in one of the forms of `_columns`,
    or the format of COCO or Label Studio. The cell of a missing key is None.

    Args:
        unit: what is labelled, "image" or "text", in messages.

    Raises:
        DataError: the file is not valid JSON, or of another form.
    """
    try:
        text = read_bytes(path).decode("utf-8-sig")
        content = _parsed(path, text)
    except DataError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from None
    rows = annotation_rows(path, content, unit) or unlabelled_coco_rows(content) or content
    if isinstance(rows, dict) and (columns := _columns(rows)):
        return columns
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        example = '"file": "1.jpg", "label": ["cat", "dog"]' if unit == "image" else '"text": "Good.", "label": "yes"'
        raise DataError(f"{path}: expected one object per {unit}, like [{{{example}}}]")
    return columns_of(rows)


def _parsed(path: Path, text: str) -> Any:
    """The value of a JSON file, or those of its lines; a file called .json may have a value in each line, too."""
    if path.suffix.lower() in JSON_LINES:
        return _json_lines(path, text)
    try:
        return json.loads(text, object_pairs_hook=unique_keys)
    except json.JSONDecodeError as error:
        if not error.msg.startswith("Extra data") or error.lineno == 1:
            raise
        return _json_lines(path, text)


def columns_of(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The columns of rows of objects; None for a key that a row does not have."""
    return {key: [row.get(key) for row in rows] for key in dict.fromkeys(key for row in rows for key in row)}


def _columns(content: dict[str, Any]) -> dict[str, list[Any]]:
    """The columns of a JSON object in one of seven forms; {} for any other object.

    - file name -> label
    - file name -> row, all rows with the same keys
    - class -> list of files, as in Food-101
    - column -> list of cells, all of one length
    - column -> {row: cell}, all with the same rows, as pandas writes tables by default
    - name of a row -> row, which has a key of images
    - "classes" -> list of names, "labels" -> {file name without extension: number or name of its class}, as FiftyOne
      exports image classification
    """
    if content.keys() == {"classes", "labels"} and isinstance(content["labels"], dict):
        return _fiftyone_columns(content["classes"] or [], content["labels"])
    if content and all(map(is_image_name, content)) and all(isinstance(v, str | int | list) for v in content.values()):
        return {"image": list(content), "label": list(content.values())}
    values = list(content.values())
    lists = len(values) > 1 and all(isinstance(value, list) for value in values)
    if lists and all(map(_is_file, (cell for each in values for cell in each))) and not IMAGE_KEYS & content.keys():
        return {"image": [name for each in values for name in each],
                "label": [label for label, each in content.items() for _ in each]}
    if lists and all(len(each) == len(values[0]) and not any(isinstance(cell, dict) for cell in each)
                     for each in values):
        return content
    if len(values) > 1 and all(isinstance(value, dict) and value.keys() == values[0].keys() for value in values):
        if all(map(is_image_name, content)) and not IMAGE_KEYS & values[0].keys():
            return {"image": list(content)} | columns_of(values)
        if IMAGE_KEYS & values[0].keys() and not IMAGE_KEYS & content.keys():
            return columns_of(values)
        return {name: [value[key] for key in values[0]] for name, value in content.items()}
    return {}


def _fiftyone_columns(classes: list[str], labels: dict[str, Any]) -> dict[str, list[Any]]:
    """The labels by file name; {} unless each is a class name or an index into the classes."""
    numbers = [label for label in labels.values() if isinstance(label, int)]
    if any(not 0 <= number < len(classes) for number in numbers) or not all(
            isinstance(label, str | int) for label in labels.values()):
        return {}
    return {"image": list(labels),
            "label": [classes[label] if isinstance(label, int) else label for label in labels.values()]}


def _is_file(cell: Any) -> bool:
    return isinstance(cell, str) and (is_image_name(cell) or "/" in cell)


def _json_lines(path: Path, text: str) -> list[Any]:
    """The value in each line; DataError names a line that is not valid JSON. Empty lines are skipped."""
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                rows.append(json.loads(line, object_pairs_hook=unique_keys))
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path} line {number}: is not valid JSON ({error})") from None
    return rows
