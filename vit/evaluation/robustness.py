"""Accuracy of an image classifier under common corruptions (Hendrycks and Dietterich, arXiv 1903.12261)."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vit.data import DataError, ImageDataset, Preprocessing, Split
from vit.data.augment.corruptions import CORRUPTIONS, corrupt_batch
from vit.evaluation.classification import readable_batches
from vit.evaluation.progress import Progress
from vit.inference import best_device, decode_ahead, forward
from vit.low_precision import DTYPES
from vit.models.inference_copy import inference_copy
from vit.nn.init import evaluating
from vit.packed_images import PackedImages

SEED = 0


class Level(NamedTuple):
    """A kind of corruption with a severity from 1 to 5."""

    kind: str
    severity: int


class CorruptedBatch(NamedTuple):
    """images uint8 (B,C,H,W), labels (B,)"""

    level: Level
    images: Tensor
    labels: Tensor


def accuracy_under_corruptions(
    model: nn.Module,
    preprocessing: Preprocessing,
    split: Split,
    severities: Sequence[int],
    batch_size: int = 64,
    precision: str = "32-true",
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> dict[str, list[float]]:
    """The accuracies under each kind of corruption, one per severity.

    Each image is read once and corrupted at the size of the model's input, while the model computes the previous batch.

    Args:
        severities: from 1 to 5.
        progress: called with the number of images of each corrupted batch.

    Raises:
        BadImage: an image cannot be read.
        DataError: the split is empty.
        ValueError: an unknown severity or `precision`.
    """
    if not len(split):
        raise DataError("the split has 0 images; choose another split")
    right = dict.fromkeys(levels(severities), 0)
    model = model.to(best_device(device))
    with evaluating(model):
        network = inference_copy(model, DTYPES.get(precision))
        for level, images, labels in corrupted_batches(split, preprocessing, severities, batch_size):
            predicted = forward(network, preprocessing, images, precision).argmax(-1).cpu()
            right[level] += int((predicted == labels).sum())
            if progress:
                progress(len(images))
    return {kind: [right[Level(kind, severity)] / len(split) for severity in severities] for kind in CORRUPTIONS}


def levels(severities: Sequence[int]) -> list[Level]:
    """All pairs of a kind of corruption and one of the severities."""
    return [Level(kind, severity) for kind, severity in product(CORRUPTIONS, dict.fromkeys(severities))]


def corrupted_batches(
    split: Split, preprocessing: Preprocessing, severities: Sequence[int], batch_size: int
) -> Iterator[CorruptedBatch]:
    """Each batch of the split at each level. Threads read and corrupt the next batches in advance.

    Raises:
        BadImage: an image cannot be read.
    """
    dataset = ImageDataset(split, preprocessing, cache=False)
    batches = readable_batches(dataset, batch_size, [])
    tasks = ((level, *batch) for batch in batches for level in levels(severities))
    for found in decode_ahead(tasks, corrupted, 1):
        yield from found


def corrupted(task: tuple[Level, Tensor, Tensor, Tensor]) -> CorruptedBatch:
    """(level, images, labels, rows) -> the corrupted batch; the row of a sample determines its random numbers."""
    level, images, labels, rows = task

    def corrupt(images: Tensor, rows: Tensor) -> Tensor:
        counters = [(SEED, row) for row in rows.tolist()]
        result = corrupt_batch(images.permute(0, 2, 3, 1).numpy(), *level, counters)
        return torch.from_numpy(result).permute(0, 3, 1, 2).contiguous()

    if isinstance(images, PackedImages):
        return CorruptedBatch(level, images.apply_by_grid(lambda group, index: corrupt(group, rows[index])), labels)
    return CorruptedBatch(level, corrupt(images, rows), labels)
