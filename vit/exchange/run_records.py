"""The records of the run that saved a model, for its model card and its report."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vit.bundle import Bundle
from vit.data.source import separator_of
from vit.data.splits.recorded import read_rows
from vit.files.atomic import check_result
from vit.files.untrusted import read_json, read_yaml
from vit.messages import first_line


@dataclass(frozen=True)
class RunRecords:
    """The records of the run that saved a bundle; empty if the bundle is not in a run folder.

    Args:
        counts: split -> class -> number of samples.
        sizes: split -> number of samples.
    """

    config: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)


def read_records(bundle: Bundle) -> RunRecords:
    """The run in whose folder the bundle is `model/`.

    Raises:
        ValueError: one of its files is damaged; the message names it.
    """
    run = bundle.path.parent
    if not (run / "config.yaml").is_file() or not (run / "metrics.json").is_file():
        return RunRecords()
    metrics, environment = (read_object(run / name) for name in ("metrics.json", "environment.json"))
    lists = {key: (run / "splits" / f"{key}.tsv") for key in ("train", "val", "test")}
    rows = {key: read_rows(file) for key, file in lists.items() if file.is_file()}
    labels = {key: [label for _, label, *_ in each] for key, each in rows.items()}
    if bundle.thresholds:
        separator = separator_of(bundle.classes)
        labels = {key: [name for cell in cells for name in cell.split(separator) if name]
                  for key, cells in labels.items()}
    counts = {key: dict(Counter(names)) for key, names in labels.items()}
    sizes = {key: len(each) for key, each in rows.items()}
    return RunRecords(read_yaml(run / "config.yaml"), metrics, environment, counts, sizes)


def best_epoch(metrics: Mapping[str, Any]) -> int | None:
    """The best epoch, counted from 1; None if it is not recorded. Older runs, which do not record how they ended,
    counted from 0.
    """
    epoch = metrics.get("best_epoch")
    if not isinstance(epoch, int):
        return None
    return epoch if "ended" in metrics else epoch + 1


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no such file.

    Raises:
        ValueError: the file is damaged.
    """
    if not file.exists():
        return {}
    fix = "restore it, or remove it to do without its numbers"
    try:
        found = read_json(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is damaged ({first_line(error, 120)}); {fix}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file} is damaged (it holds {type(found).__name__}, not an object); {fix}")
    check_result(file, fix=fix)
    return found
