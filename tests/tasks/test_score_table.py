"""The scores of single validation samples: in the order of their index, without padding."""

from types import SimpleNamespace

import pytest
import torch

from vit.tasks.base import ScoreTable, Task


def test_scores_by_index_without_padding():
    table = ScoreTable(("val/loss", "val/accuracy"))
    table.update(torch.tensor([4, 2]), torch.tensor([1.0, 1]), torch.tensor([0.4, 0.2]), torch.tensor([True, False]))
    table.update(torch.tensor([3, 4]), torch.tensor([1.0, 0]), torch.tensor([0.3, 9.9]), torch.tensor([False, True]))
    found = {name: table.scores(name) for name in table.metrics}
    assert found["val/loss"].index.tolist() == [2, 3, 4]
    assert found["val/loss"].score.tolist() == pytest.approx([0.2, 0.3, 0.4])
    assert found["val/accuracy"].score.tolist() == [0, 0, 1]
    task = SimpleNamespace(val_table=table)
    assert Task.sample_scores(task, "val/loss").index.tolist() == [2, 3, 4]
    assert Task.sample_scores(task, "val/top5") is None
    assert Task.sample_scores(SimpleNamespace(val_table=None), "val/loss") is None
    Task.on_validation_start(task)
    table.update(torch.tensor([0]), torch.tensor([1.0]), torch.tensor([0.5]), torch.tensor([True]))
    assert table.scores("val/loss").index.tolist() == [0]
