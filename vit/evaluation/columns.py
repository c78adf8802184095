"""Results of all samples, filled in batch by batch."""

from collections.abc import Sequence

import torch
from torch import Tensor


class Columns:
    """Tensors with a row for each sample, on the CPU, allocated once for all batches.

    Results stored batch by batch are small blocks between those of the activations, which then cannot be reused: over
    6,400 images of 32 pixels the heap grew by 320 MB.

    Args:
        samples: the largest number of rows.
    """

    def __init__(self, samples: int) -> None:
        self.samples, self.count = samples, 0
        self.columns: list[Tensor] = []

    def append(self, batch: Sequence[Tensor]) -> None:
        """Add the results (B,...) of a batch, which may be on another device."""
        if not self.columns:
            self.columns = [torch.empty((self.samples, *each.shape[1:]), dtype=each.dtype) for each in batch]
        end = self.count + len(batch[0])
        for column, values in zip(self.columns, on_host(batch), strict=True):
            column[self.count : end] = values
        self.count = end

    def filled(self) -> list[Tensor]:
        """The rows so far: each (N,...)."""
        return [column[: self.count] for column in self.columns]


def on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors on the CPU; the host waits once for all those of a device."""
    copies = [each.to("cpu", non_blocking=True) for each in tensors]
    for device in {each.device for each in tensors if each.device.type != "cpu"}:
        copied = torch.Event(device)
        copied.record()
        copied.synchronize()
    return copies
