"""Labels of annotation tools in JSON: COCO's format, and exports of Label Studio, as rows of image and label. The
format of Datumaro is recognized, but not read.

https://cocodataset.org/#format-data, https://labelstud.io/guide/task_format
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vit.data.errors import DataError

Rows = list[dict[str, Any]]
COCO_KEYS = {"images", "annotations", "categories"}
DATUMARO = "Datumaro"
EXPORT = "export it from Datumaro or CVAT as ImageNet, a folder for each class, and read these with data=folder"


def annotation_rows(path: Path, content: Any, unit: str = "image") -> Rows | None:
    """The rows of parsed JSON, with a label, or a list of labels if an image may have several; None for another format.

    Args:
        unit: what is labelled, "image" or "text", in messages.

    Raises:
        DataError: a value is missing or of another type, or an image has no label where the others have one each.
    """
    kind, read = annotation_format(content)
    if read is None:
        return None
    try:
        return read(path, content, unit)
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path}: is not as {kind} writes it ({reason}); export it again") from None


def annotation_format(content: Any) -> tuple[str, Callable[[Path, Any, str], Rows] | None]:
    """The name of the format of parsed JSON, and the function that reads it; None for another format."""
    if isinstance(content, dict) and content.keys() >= COCO_KEYS:
        return "COCO", _coco_rows
    parts = (content.get("categories"), content.get("items")) if isinstance(content, dict) else (None, None)
    if isinstance(parts[0], dict) and isinstance(parts[1], list):
        return DATUMARO, _reject_datumaro
    first = content[0] if isinstance(content, list) and content else None
    if isinstance(first, dict) and isinstance(first.get("data"), dict) and "annotations" in first:
        return "Label Studio", _label_studio_rows
    return "", None


def unlabelled_coco_rows(content: Any) -> Rows | None:
    """The images of a test split without annotations, as of iNaturalist's competitions; None for another format."""
    images = content.get("images") if isinstance(content, dict) and "annotations" not in content else None
    if not images or not isinstance(images, list):
        return None
    if not all(isinstance(each, dict) and isinstance(each.get("file_name"), str) for each in images):
        return None
    return [{"image": each["file_name"]} for each in images]


def _coco_rows(path: Path, content: dict[str, Any], unit: str) -> Rows:
    """The categories of the objects in each image."""
    names, images = _by_id(path, content, "categories", "name"), _by_id(path, content, "images", "file_name")
    found = defaultdict(set)
    for each in content["annotations"]:
        image, category = each["image_id"], each["category_id"]
        if image not in images or category not in names:
            key, value = ("image_id", image) if image not in images else ("category_id", category)
            raise DataError(f"{path}: annotation {each.get('id')} has {key}={value!r}, which the file does not have; "
                            "remove it")
        found[image].add(names[category])
    categories = [sorted(found[image]) for image in images]
    labels = _one_or_several(path, list(images.values()), categories, "annotation", unit)
    return [{"image": name, "label": label} for name, label in zip(images.values(), labels, strict=True)]


def _by_id(path: Path, content: dict[str, Any], part: str, key: str) -> dict[Any, str]:
    """The values of a key by the ids of the objects in a list of the file.

    Raises:
        DataError: two objects have the same id, so that annotations may mean either.
    """
    found: dict[Any, str] = {}
    for each in content[part]:
        if found.setdefault(each["id"], each[key]) != each[key]:
            raise DataError(f"{path}: two of its {part}, {found[each['id']]!r} and {each[key]!r}, have the id "
                            f"{each['id']!r}; give each an id of its own")
    return found


def _reject_datumaro(path: Path, content: dict[str, Any], unit: str) -> Rows:
    """Raises DataError: this format is recognized, but not read."""
    fix = EXPORT if unit == "image" else f"write a table with the columns {unit} and label"
    raise DataError(f"{path}: is in the format of {DATUMARO}, which is not read; {fix}")


def _label_studio_rows(path: Path, tasks: list[dict[str, Any]], unit: str) -> Rows:
    """The data of each task with its choices, on which all annotators must agree."""
    labels, controls = [], set()
    for task in tasks:
        answers = []
        for annotation in task["annotations"]:
            if not annotation.get("was_cancelled"):
                chosen = [each for each in annotation["result"] if each["type"] == "choices"]
                controls |= {each["from_name"] for each in chosen}
                answers.append(sorted(name for each in chosen for name in each["value"]["choices"]))
        if not answers or any(answer != answers[0] for answer in answers):
            fault = f"annotators disagree ({answers[0]} and {answers[-1]})" if answers else "it has not been annotated"
            raise DataError(f"{path}: task {task.get('id')}: {fault}; correct it in Label Studio, or remove the task")
        labels.append(answers[0])
    if not controls:
        raise DataError(f"{path}: no task has choices, which label {'an' if unit == 'image' else 'a'} {unit}; write a "
                        f"table with the columns {unit} and label")
    if len(controls) > 1:
        listed = " and ".join(sorted(map(str, controls))[:3])
        raise DataError(f"{path}: the tasks have several choices, {listed}; write a table with the columns {unit} and "
                        "label for one of them")
    labels = _one_or_several(path, [f"task {task.get('id')}" for task in tasks], labels, "choice", unit)
    return [{**task["data"], "label": label} for task, label in zip(tasks, labels, strict=True)]


def _one_or_several(path: Path, images: Sequence[str], labels: list[list[str]], what: str, unit: str) -> list[Any]:
    """The labels of the images, without lists if each image has one.

    Raises:
        DataError: some images have one label, the others none.
    """
    if max(map(len, labels), default=0) > 1:
        return labels
    without = [image for image, found in zip(images, labels, strict=True) if not found]
    if without:
        raise DataError(f"{path}: {len(without)} of {len(labels)} {unit}s have no {what}, first {without[0]!r}, and "
                        f"the others have one each; remove these {unit}s from the file")
    return [found[0] for found in labels]
