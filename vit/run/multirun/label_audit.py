"""`vit audit --labels`: likely label errors by the held-out predictions of a run or a cross-validation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vit.bundle import load_bundle
from vit.data import LinePreprocessing, Preprocessing, Source
from vit.data.quality.corrections import write_corrections
from vit.evaluation.labelling.label_errors import LabelError, LabelSetError, find_label_errors
from vit.evaluation.out_of_fold import HeldOut, read_held_out
from vit.files.outputs import write_output
from vit.report.pages.label_errors import label_page
from vit.report.pages.samples import Samples
from vit.run.config.composing import ConfigError
from vit.run.multirun.cross_validation import PREDICTIONS
from vit.run.multirun.held_out import held_out, moved_config
from vit.run.parts.data_source import build_source
from vit.run.records.folder import CONFIG

CSV, PAGE = "label_errors.csv", "label_errors.html"
SPLITS = ("val", "test")  # splits that the model of a run was not trained on


@dataclass(frozen=True)
class LabelAudit:
    """Likely label errors among a number of samples, the corrections file to edit, and the page.

    `agreement`: the fraction of labels that the predictions agree with.
    """

    errors: list[LabelError] | list[LabelSetError]
    samples: int
    agreement: float
    csv_file: Path
    page: Path


def has_predictions(folder: Path) -> bool:
    """Whether a path is a run, or a cross-validation with out-of-fold predictions."""
    return (folder / PREDICTIONS).is_file() or (folder / CONFIG).is_file()


def audit_labels(folder: Path, csv_file: Path | None = None, page: Path | None = None,
                 limit: int | None = None, overrides: Sequence[str] = ()) -> LabelAudit:
    """Find likely errors by the held-out predictions of a folder, and write a corrections file and a page.

    Args:
        folder: folder of a cross-validation, whose samples are all examined, or of a run, whose val and test samples
            are.
        overrides: `data.root` or `data.path` of data that has moved, and configs of the user.

    Raises:
        ConfigError: the folder is neither of them, or an override has no effect.
        DataError: the file to edit exists, or the predictions cannot be used.
    """
    folder = Path(folder).expanduser()
    csv_file, page = csv_file or folder / CSV, page or folder / PAGE
    check_new(csv_file)
    predictions, run = _predictions(folder, overrides)
    source, bundle = build_source(moved_config(run, overrides)["data"]), load_bundle(run)
    return write_audit(predictions, source, bundle.preprocessing, str(folder), (csv_file, page), limit)


def check_new(csv_file: Path) -> None:
    """Raises DataError if the corrections file exists, since it may have been edited."""
    if csv_file.exists():
        write_corrections(csv_file, [])


def write_audit(predictions: HeldOut, source: Source, preprocessing: Preprocessing | LinePreprocessing | None,
                subject: str, files: tuple[Path, Path], limit: int | None = None) -> LabelAudit:
    """Find likely errors and write the corrections file to edit and the page.

    Args:
        source: the data of the predictions, for the samples on the page.
        files: the corrections file and the page.

    Raises:
        DataError: the corrections file exists, or the predictions cannot be used.
    """
    csv_file, page = files
    errors = find_label_errors(predictions, limit)
    write_corrections(csv_file, [error.row() for error in errors])
    write_output(page, label_page(errors, Samples(source, preprocessing), f"Likely label errors, {subject}",
                               len(predictions), str(csv_file)).encode())
    return LabelAudit(errors, len(predictions), predictions.accuracy, csv_file, page)


def _predictions(folder: Path, overrides: Sequence[str]) -> tuple[HeldOut, Path]:
    """The held-out predictions, and a run with the same data."""
    if (folder / PREDICTIONS).is_file():
        runs = sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))
        if runs:
            return read_held_out(folder / PREDICTIONS), runs[0]
    if (folder / CONFIG).is_file():
        return held_out(folder, SPLITS, overrides=overrides), folder
    raise ConfigError(f"{folder} is neither a run nor a finished cross-validation: it has no {CONFIG} and no "
                      f"{PREDICTIONS}; a model needs the data whose labels it checks, such as data=folder "
                      "data.root=photos")
