"""`vit audit --labels`: likely label errors by the held-out predictions of a run or a cross-validation."""

from collections.abc import Callable
from pathlib import Path

from PIL import Image

from vit.bundle import load_bundle
from vit.data import BadImage, Preprocessing, TextSplit
from vit.data.quality.corrections import write_corrections
from vit.evaluation.labelling.label_errors import LabelError, LabelSetError, find_label_errors
from vit.evaluation.out_of_fold import HeldOut, read_held_out
from vit.report.pages.label_errors import label_page
from vit.run.config.composing import ConfigError
from vit.run.multirun.cross_validation import PREDICTIONS
from vit.run.multirun.held_out import held_out
from vit.run.parts.data_source import build_source
from vit.run.records.folder import CONFIG, read_config

CSV, PAGE = "label_errors.csv", "label_errors.html"
SPLITS = ("val", "test")  # of one run: its model was not trained on them


def audit_labels(folder: Path, csv_file: Path | None = None, page: Path | None = None,
                 limit: int | None = None) -> tuple[list[LabelError] | list[LabelSetError], int, Path, Path]:
    """Find likely errors and write a corrections file to edit and a page; the errors, the number of samples, and both
    files.

    Args:
        folder: of a cross-validation, all of whose samples are looked at, or of a run, with its val and test samples.

    Raises:
        ConfigError: the folder is neither of them.
        DataError: the file to edit exists, or the predictions cannot be used.
    """
    folder = Path(folder).expanduser()
    csv_file, page = csv_file or folder / CSV, page or folder / PAGE
    if csv_file.exists():
        write_corrections(csv_file, [])  # raises: it may have been edited
    predictions, run = _predictions(folder)
    errors = find_label_errors(predictions, limit)
    write_corrections(csv_file, [error.row() for error in errors])
    page.write_text(label_page(errors, _pictures(run), f"Likely label errors, {folder}", len(predictions),
                               str(csv_file)), encoding="utf-8")
    return errors, len(predictions), csv_file, page


def _predictions(folder: Path) -> tuple[HeldOut, Path]:
    """The held-out predictions, and a run with the same data."""
    if (folder / PREDICTIONS).is_file():
        runs = sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))
        if runs:
            return read_held_out(folder / PREDICTIONS), runs[0]
    if (folder / CONFIG).is_file():
        return held_out(folder, SPLITS), folder
    raise ConfigError(f"{folder} is neither a run nor a finished cross-validation: it has no {CONFIG} and no "
                      f"{PREDICTIONS}")


def _pictures(run: Path) -> Callable[[str], Image.Image | None]:
    source, bundle = build_source(read_config(run)["data"]), load_bundle(run)
    positions = {name: (split, i) for split in source.splits.values() for i, name in enumerate(split.names)}

    def picture(name: str) -> Image.Image | None:
        split, i = positions.get(name, (None, 0))
        if split is None or isinstance(split, TextSplit) or not isinstance(bundle.preprocessing, Preprocessing):
            return None
        try:
            return bundle.preprocessing.decode(split.read(i), name)
        except (BadImage, OSError):
            return None

    return picture
