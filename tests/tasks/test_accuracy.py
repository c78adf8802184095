"""The accuracies of validation, against those of torchmetrics."""

import pytest
import torch
from torchmetrics.classification import MulticlassAccuracy

from vit.tasks.classification import PADDING, accuracies


@pytest.mark.parametrize("classes", [3, 9])
def test_accuracies_are_those_of_torchmetrics(classes):
    """Also after a first batch in which both are the same, and over the padding rows of the last batch."""
    generator, found = torch.Generator().manual_seed(0), accuracies(classes)
    names = ["val/accuracy", "val/top5"] if classes > 5 else ["val/accuracy"]
    expected = {name: MulticlassAccuracy(classes, top_k=5 if "top5" in name else 1, average="micro",
                                         ignore_index=PADDING) for name in names}
    right = torch.eye(classes)[:3], torch.arange(3)
    batches = [(torch.randn(64, classes, generator=generator), torch.randint(-1, classes, (64,), generator=generator))
               for _ in range(4)]
    for _ in range(2):  # epochs
        for logits, labels in [right, *batches]:
            found.update(logits, labels)
            for metric in expected.values():
                metric.update(logits, labels)
        assert found.compute() == {name: metric.compute() for name, metric in expected.items()}
        found.reset()
        for metric in expected.values():
            metric.reset()
