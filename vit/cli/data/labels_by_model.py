"""`vit audit --labels MODEL data=...`: likely label errors by logistic regression on the features of a model."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vit.cli.data.data_sets import compose_data, open_source
from vit.cli.prediction.probe import check_labelled, embed_source
from vit.cli.terminal import staged

if TYPE_CHECKING:
    from vit.data import Source
    from vit.run.multirun.label_audit import LabelAudit

BATCH_SIZE = 64


def audit_labels_by_model(
    model: Path, overrides: list[str], files: tuple[Path | None, Path | None], limit: int | None, device: str | None
) -> "LabelAudit":
    """Find likely errors among all samples of a data set, and write a corrections file and a page.

    Args:
        files: the corrections file and the page; by default in the current folder.

    Raises:
        DataError: a class has too few samples, the corrections file exists, or cleanlab is not installed.
        ValueError: the samples do not have one class each, or the model reads another kind of input or was trained on
            these samples.
        SourceError, BundleError, FileNotFoundError: the model cannot be opened.
    """
    from vit.evaluation.labelling.feature_folds import held_out_by_features
    from vit.evaluation.labelling.label_errors import check_cleanlab
    from vit.exchange import open_model
    from vit.inference import best_device
    from vit.inference.features import Featurizer
    from vit.run.multirun.label_audit import CSV, PAGE, check_new, write_audit

    csv_file, page = files[0] or Path(CSV), files[1] or Path(PAGE)
    check_cleanlab()
    check_new(csv_file)
    bundle = open_model(model, features_only=True)
    featurizer = Featurizer(bundle.model, bundle.preprocessing, best_device(device), "32-true")
    data = compose_data(overrides)["data"]
    source = open_source(data)
    check_labelled(source, bundle)
    check_untrained(bundle.path, data, source)
    keys = fold_keys(source, data.get("group"))
    parts = list(embed_source(bundle, featurizer, source, data, BATCH_SIZE).values())
    names = [name for part in parts for name in part.names]
    features, labels = (np.concatenate([getattr(part, key) for part in parts]) for key in ("features", "labels"))
    with staged("label errors") as progress:
        predictions = held_out_by_features(names, features, labels, source.classes, [keys[name] for name in names],
                                           progress=progress)
    return write_audit(predictions, source, bundle.preprocessing, source.name, (csv_file, page), limit)


def check_untrained(model: Path, data: dict, source: "Source") -> None:
    """Raises ValueError if the model is in the folder of a run with this data."""
    from vit.run.records.splits import record_beside

    record = record_beside(model)
    if record is not None and record.is_of(data, source):
        raise ValueError(f"{model} was trained on these labels, so its features repeat their errors; run vit audit "
                         f"--labels {record.path}, which checks its validation and test samples, or choose another "
                         "model")


def fold_keys(source: "Source", group: str | int | None) -> dict[str, str]:
    """The key of each sample, by its name; samples with the same key are in one fold.

    Raises:
        DataError: the samples cannot be divided into folds.
    """
    from vit.data.splits.folds import assign_folds
    from vit.data.splits.groups import group_keys
    from vit.evaluation.labelling.feature_folds import FOLDS

    splits = source.splits
    keys = group_keys(source, group) if group is not None else {key: each.names for key, each in splits.items()}
    found = {name: of for key, each in splits.items() for name, of in zip(each.names, keys[key], strict=True)}
    labels = np.concatenate([each.labels for each in splits.values()])
    assign_folds([of for each in keys.values() for of in each], labels, FOLDS, 0, source.classes)
    return found
