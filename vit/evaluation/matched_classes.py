"""The classes by which the data of an evaluation is matched, and the restriction of a model to those of the data."""

import numpy as np
import torch
from torch import Tensor, nn

from vit.data import DataError, Source, Split
from vit.messages import number_of


def named_classes(classes: list[str], source: Source) -> list[str]:
    """The classes of a model by which data is matched: WordNet ids (n01440764, ...) if the data has these and the model
    has a variant of ImageNet without class names, as most published weights; otherwise those of the model.
    """
    from vit.exchange.imagenet_classes import are_wordnet_ids, imagenet_synsets

    is_numbered = classes == [str(number) for number in range(len(classes))]
    return is_numbered and are_wordnet_ids(source.classes) and imagenet_synsets(len(classes)) or classes


class SomeClasses(nn.Module):
    """A classifier that chooses among some of its classes: those at `index` of its logits."""

    def __init__(self, model: nn.Module, index: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("index", index, persistent=False)
        self.training = model.training

    def forward(self, images: Tensor) -> Tensor:
        """(B,C,H,W) -> logits (B,chosen classes)"""
        return self.model(images)[:, self.index]


def among_present(model: nn.Module, classes: list[str], split: Split) -> tuple[nn.Module, list[str]]:
    """The model restricted to the classes that occur in a split, and their names, in the order of the model.

    This is how ImageNet-A (arXiv 1907.07174) and ImageNet-R (arXiv 2006.16241), which have 200 of the 1,000 classes of
    ImageNet-1k, are evaluated. The labels of the split are those of the model.

    Raises:
        DataError: all samples have the same class.
    """
    present = np.unique(split.labels)
    if len(present) == 1:
        raise DataError(f"all {number_of(len(split), 'image')} have the class {classes[present[0]]!r}, and among 1 "
                        "class each prediction is correct; choose among the classes of the model")
    return SomeClasses(model, torch.from_numpy(present)), [classes[index] for index in present]
