"""The scores of single validation samples, for comparisons of two models on the same samples."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from vit.training.monitoring.paired_comparison import SampleScores


class ScoreTable(Metric):
    """Scores of validation samples by their index, gathered over the processes when they are requested.

    Args:
        metrics: names of the metrics that are means of such scores.
    """

    index: list[Tensor]
    rows: list[Tensor]

    def __init__(self, metrics: Sequence[str]) -> None:
        super().__init__()
        self.metrics = tuple(metrics)
        for name in ("index", "rows"):
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, index: Tensor, weight: Tensor, *scores: Tensor) -> None:
        """index (B,), weight (B,), 0 for padding, and for each metric (B,)"""
        self.index.append(index)
        self.rows.append(torch.stack([weight, *scores], dim=1).float())  # (B,1+metrics)

    def compute(self) -> Tensor:
        """(N,2+metrics) float64 on the CPU: index, weight, scores; one tensor: torchmetrics squeezes scalars."""
        index, rows = dim_zero_cat(self.index).cpu(), dim_zero_cat(self.rows).cpu()
        return torch.cat([index[:, None].double(), rows.double()], dim=1)

    def scores(self, metric: str) -> SampleScores:
        """The scores of one metric with the indices of their samples, in ascending order, without padding."""
        table = self.compute()
        table = table[table[:, 1] > 0]
        index, order = table[:, 0].long().sort()
        return SampleScores(index, table[order, 2 + self.metrics.index(metric)].float())
