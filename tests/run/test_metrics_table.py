"""`metrics.csv`: columns that appear later, rows of a checkpoint, and the work per epoch."""

import csv
from types import SimpleNamespace

from vit.run.records.metrics_table import MetricsTable


def trainer(step, **metrics):
    return SimpleNamespace(callback_metrics=metrics, global_step=step, is_global_zero=True)


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_column_that_appears_later_is_empty_before(tmp_path):
    table = MetricsTable(tmp_path / "metrics.csv")
    table.add_row(trainer(1, loss=0.5), 1)
    table.add_row(trainer(2, loss=0.25, accuracy=1.0), 2)
    table.add_row(trainer(3, accuracy=0.5), 3)
    assert read(table.path) == [
        {"epoch": "1", "step": "1", "loss": "0.5", "accuracy": ""},
        {"epoch": "2", "step": "2", "loss": "0.25", "accuracy": "1.0"},
        {"epoch": "3", "step": "3", "loss": "", "accuracy": "0.5"},
    ]


def test_rows_of_a_checkpoint_replace_those_so_far(tmp_path):
    table = MetricsTable(tmp_path / "metrics.csv")
    table.add_row(trainer(1, loss=0.5), 1)
    state = {"rows": list(table.state_dict()["rows"])}
    for step in (2, 3):
        table.add_row(trainer(step, loss=0.25), step)
    table.load_state_dict(state)
    table.add_row(trainer(2, loss=0.125), 2)
    assert [(row["step"], row["loss"]) for row in read(table.path)] == [("1", "0.5"), ("2", "0.125")]


def test_each_epoch_formats_its_own_row_only(tmp_path, monkeypatch):
    formatted = []
    writerows = csv.DictWriter.writerows

    def count(self, rows):
        formatted.append(len(rows))
        writerows(self, rows)

    monkeypatch.setattr(csv.DictWriter, "writerows", count)
    table = MetricsTable(tmp_path / "metrics.csv")
    for epoch in range(1, 31):
        table.add_row(trainer(epoch, loss=1 / epoch), epoch)
    assert formatted == [1] * 30 and [int(row["epoch"]) for row in read(table.path)] == list(range(1, 31))
