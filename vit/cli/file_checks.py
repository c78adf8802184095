"""Checks of the paths and files that commands read and write, before the computation."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import typer

MODEL_FILES = ("config.json", "model.safetensors", "preprocessor_config.json", "tokenizer.json")
RUN_FILES = ("config.yaml", "metrics.json", "metrics.csv", "environment.json", "audit.json", "predictions.csv",
             "cross_validation.json", "out_of_fold.csv")  # the last two of a cross-validation
TABLE_ENDINGS = (".csv", ".tsv", ".xls", ".xlsx", ".json", ".jsonl", ".parquet")
OTHER_ENDINGS = (".html", ".htm", ".png", ".jpg", ".jpeg", ".svg", ".pdf", ".npz", ".md",
                 ".yaml")  # of files that are no tables
WEIGHT_ENDINGS = (".safetensors", ".ckpt", ".pt", ".pth", ".pt2", ".onnx", ".bin")
RUN_LOGS = ("manifest.json", "log.txt")


def check_writable(file: Path | None) -> None:
    """Check before the computation that its result can be written.

    Raises:
        ValueError: the file is a folder or belongs to a model or run, its folder does not exist, or there is no write
            permission.
        CheckpointError: it is another user's file in a folder such as /tmp.
    """
    if file is None:
        return
    from vit.files.outputs import check_replaceable

    if str(file) == "-":
        raise ValueError("- stands for standard input only; write /dev/stdout for standard output")
    if is_of_model_or_run(file):
        raise ValueError(f"{file} would overwrite a file of a model or run; choose another file")
    if file.is_dir():
        raise ValueError(f"{file} is a folder; pass the name of a file")
    if not file.absolute().parent.is_dir():
        raise ValueError(f"{file}: {file.parent} is not a folder; create it, or choose another path")
    if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        raise ValueError(f"{file} cannot be written: no permission; choose another path")
    check_replaceable(file)


def is_of_model_or_run(file: Path) -> bool:
    """Whether a file exists and is one of a saved model or run, which no output may replace."""
    if not file.is_file():
        return False
    folder = file.absolute().parent
    if file.suffix.lower() in WEIGHT_ENDINGS:
        return True
    return (file.name in MODEL_FILES and (folder / "model.safetensors").is_file()) or (
        file.name in (*RUN_FILES, *RUN_LOGS) and (folder / "config.yaml").is_file())


def check_table(option: str, file: Path | None, endings: Iterable[str]) -> None:
    """Check that a file can be written in the format of the ending of its name. A name with an unknown ending,
    such as .txt, or without one is accepted and means the first of the formats.

    Args:
        option: the option that names the file.
        endings: endings of the formats that the command writes, in lower case.

    Raises:
        BadParameter: names the file and the endings.
    """
    ending = "" if file is None else file.suffix.lower()
    if ending in (*TABLE_ENDINGS, *OTHER_ENDINGS, *WEIGHT_ENDINGS) and ending not in endings:
        noun = "table" if ending in TABLE_ENDINGS and set(endings) & set(TABLE_ENDINGS) else "file"
        raise typer.BadParameter(f"{option} {file}: the {noun} is not written as {ending}; choose a name that ends "
                                 f"with {', '.join(endings)}")


def check_folder(folder: Path | None) -> None:
    """Check before the computation that files can be written to a folder, which may be a new one.

    Raises:
        ValueError: it or a folder above it is a file, or there is no write permission.
    """
    if folder is None:
        return
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(each))
    if not there.is_dir():
        raise ValueError(f"--output {folder}: {there} is not a folder; choose another one")
    if not os.access(there, os.W_OK):
        raise ValueError(f"--output {folder} cannot be written: no permission for {there}; choose another one")


def check_new_folder(folder: Path) -> None:
    """Check before the computation that a new folder can be made.

    Raises:
        ValueError: it exists and is not empty, or cannot be written.
    """
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise ValueError(f"{folder} exists and is not overwritten; choose another --output")
    check_folder(folder)


def check_different(files: Mapping[str, Path | None]) -> None:
    """Check that no two options, the keys, name the same file.

    Raises:
        ValueError: two of them do.
    """
    options = {}
    for option, file in files.items():
        if file is None or (file.exists() and not file.is_file()):  # a device, such as /dev/null
            continue
        if (other := options.setdefault(os.path.realpath(file), option)) != option:
            raise ValueError(f"{other} and {option} both name {file}; choose another path for one of them")


def check_not_an_input(output: Path | None, inputs: Iterable[str | Path], option: str = "--output") -> None:
    """Check that the output would not overwrite an input: a file, or the value of an override, which may be relative to
    that of data.root.

    Raises:
        ValueError: it would.
    """
    if output is None or not output.is_file():
        return
    inputs = list(inputs)
    overrides = [each.partition("=") for each in inputs if isinstance(each, str) and "=" in each]
    values = [(key.lstrip("+"), value.strip("'\"")) for key, _, value in overrides]
    roots = [value for key, value in values if key in ("data.root", "data.path")]
    below = [os.path.join(root, value) for root in roots for _, value in values]
    tables = [os.path.join(root, value + output.suffix) for root in roots for key, value in values
              if key in ("data.train", "data.val", "data.test")]  # first.csv for data.train=first
    for path in (*inputs, *(value for _, value in values), *below, *tables):
        if _is_same_file(os.path.expanduser(path), output):
            raise ValueError(f"{option} {output} would overwrite an input; choose another file")


def _is_same_file(path: str | Path, output: Path) -> bool:
    with suppress(OSError, ValueError):  # an input that is missing, or no path at all
        return os.path.samefile(path, output)
    return False


def files_of_model(model: Path) -> list[Path]:
    """The paths that no output may replace: the model itself, which may be a file of weights, and the files of a saved
    model and its run, whether `model` is the folder of the model or of the run.
    """
    return [model, *(folder / name for folder in (model, model / "model") for name in (*MODEL_FILES, *RUN_FILES))]


def check_order(model: Path, inputs: Iterable[str | Path]) -> None:
    """Check that the model and an input are not in each other's place.

    Raises:
        BadParameter: an input is a saved model, and the model is not.
    """
    if holds_model(model):
        return
    if found := next((each for each in inputs if holds_model(each)), None):
        raise typer.BadParameter(f"{model} holds no model, but {found} does; the model is the first argument")


def holds_model(folder: str | Path) -> bool:
    """Whether a folder is that of a saved model or of a run with one."""
    return any((Path(folder).expanduser() / name / "model.safetensors").is_file() for name in ("", "model"))
