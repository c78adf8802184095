"""ImageNet-ReaL (arXiv 2006.07159): reassessed labels of the validation images of ImageNet-1k, several per image."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from vit.data import DataError
from vit.evaluation.classification import Evaluation
from vit.files.untrusted import read_json
from vit.messages import number_of

VALIDATION_IMAGE = re.compile(r"ILSVRC2012_val_(\d{8})")
CLASSES = 1000


def read_real_labels(path: str | Path) -> list[list[int]]:
    """The labels of `real.json`: those of ILSVRC2012_val_00000001 first, as numbers in the order of the WordNet ids; an
    image without a correct label has none.

    Raises:
        DataError: the file is not such a list.
        OSError: it cannot be read.
    """
    try:
        labels = read_json(path)
    except ValueError as error:
        raise DataError(f"{path} cannot be read as JSON: {error}; use real.json of ImageNet-ReaL") from None
    entries = enumerate(labels, 1) if isinstance(labels, list) and labels else [(1, None)]
    for number, entry in entries:
        if not (isinstance(entry, list) and all(type(label) is int and 0 <= label < CLASSES for label in entry)):
            raise DataError(f"{path}: entry {number} is no list of class numbers in 0..{CLASSES - 1}; use real.json of "
                            "ImageNet-ReaL, a list of lists of labels")
    return labels


def with_real_accuracy(evaluation: Evaluation, names: Sequence[str], labels: list[list[int]]) -> Evaluation:
    """The evaluation with two further metrics: `real_accuracy`, the fraction of images whose predicted class is one of
    their labels, and `real_images`, the number of images that have labels; the others do not count.

    Args:
        evaluation: of a model whose classes are WordNet ids (`named_classes`), on validation images of ImageNet-1k.
        names: names of the images of the split, such as `n01440764/ILSVRC2012_val_00000293.JPEG`.
        labels: as from `read_real_labels`.

    Raises:
        DataError: the classes are no WordNet ids, a name has no number, or one without an entry in `labels`, or no
            image has a label.
    """
    stated = real_labels_of(evaluation.classes, [names[row] for row in evaluation.rows.tolist()], labels)
    index = np.array(class_numbers(evaluation.classes))
    predicted = index[evaluation.predictions[:, 0]].tolist()
    hits = [answer in each for answer, each in zip(predicted, stated, strict=True) if each]
    return replace(evaluation, metrics={**evaluation.metrics, "real_accuracy": float(np.mean(hits)),
                                        "real_images": len(hits)})


def real_labels_of(classes: Sequence[str], names: Sequence[str], labels: list[list[int]]) -> list[list[int]]:
    """The labels of each image of a split, by its name; raises DataError as `with_real_accuracy`."""
    class_numbers(classes)
    stated = [labels_of(name, labels) for name in names]
    if not any(stated):
        raise DataError(f"none of the {number_of(len(stated), 'image')} has a label of ImageNet-ReaL; evaluate the "
                        "validation images of ImageNet-1k")
    return stated


def class_numbers(classes: Sequence[str]) -> list[int]:
    """The numbers of classes of ImageNet-1k; raises DataError for a class that is not one of its WordNet ids."""
    from vit.exchange.imagenet_classes import imagenet_synsets

    numbers = {name: number for number, name in enumerate(imagenet_synsets(CLASSES))}
    unknown = next((name for name in classes if name not in numbers), None)
    if unknown is not None:
        raise DataError(f"the labels of ImageNet-ReaL are those of ImageNet-1k, and the class {unknown!r} of the model "
                        "is not one of its WordNet ids (n01440764, ...); use a model and data whose classes have these "
                        "names")
    return [numbers[name] for name in classes]


def labels_of(name: str, labels: list[list[int]]) -> list[int]:
    """The labels of a validation image, which its name numbers; raises DataError if there is no such number."""
    found = VALIDATION_IMAGE.search(name)
    if found is None:
        raise DataError(f"{name} is not named as a validation image of ImageNet-1k (ILSVRC2012_val_00000001.JPEG), by "
                        "which the labels of ImageNet-ReaL are found; evaluate --split test of data=imagenet")
    if not 1 <= (number := int(found[1])) <= len(labels):
        raise DataError(f"{name} has the number {number}, but there are labels of {number_of(len(labels), 'image')}; "
                        "use the whole real.json of ImageNet-ReaL")
    return labels[number - 1]
