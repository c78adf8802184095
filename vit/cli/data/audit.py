"""`vit audit`: problems in a data set."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.cli.data.data_sets import compose_data, open_source
from vit.cli.file_checks import check_different, check_not_an_input, check_table, check_writable, files_of_model
from vit.cli.option_groups import with_option_groups
from vit.cli.shared_options import ConfigDir, Device, Overrides, check_model
from vit.cli.terminal import print_without_effect, print_written, staged, write_json
from vit.messages import LEFT_TO_RIGHT, agree, number_of, override_for_shell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vit.data import LinePreprocessing, PairSource, Preprocessing, Source
    from vit.data.quality.near_copies import NearCopy
    from vit.data.threads import StageProgress
    from vit.evaluation.labelling.label_errors import LabelError, LabelSetError
    from vit.inference.features import Featurizer


@dataclass(frozen=True)
class CopyOptions:
    """Options of the search for near copies."""

    near: Annotated[bool, typer.Option(
        "--near-copies", help="Also find resized, recompressed, cropped, mirrored and brightened copies; --html FILE "
                              "writes a page with their pictures.")] = False
    model: Annotated[Path | None, typer.Option(
        help="Also find near copies by the features of a model: a saved one, or weights of timm, transformers, ...",
        show_default=False, callback=check_model)] = None
    device: Device = None

    @property
    def wanted(self) -> bool:
        return self.near or self.model is not None


@dataclass(frozen=True)
class LabelOptions:
    """The predictions by which label errors are found, and the files that list them."""

    labels: Annotated[Path | None, typer.Option(
        metavar="FOLDER | MODEL",
        help="Find likely label errors instead. With the folder of a run or cross-validation, by its predictions for "
             "held-out samples; with a model and data=..., by logistic regression on the features of the model.",
        show_default=False, callback=check_model)] = None
    csv_file: Annotated[Path | None, typer.Option(
        "--csv", help="With --labels: name of the corrections file; by default label_errors.csv.",
        show_default=False)] = None
    html: Annotated[Path | None, typer.Option(
        help="With --labels, --near-copies or --model: write the page with pictures to this file.",
        show_default=False)] = None
    limit: Annotated[int | None, typer.Option(
        min=1, help="With --labels: number of samples to list; by default all likely errors.",
        show_default=False)] = None

    def check(self, copies: CopyOptions) -> None:
        """Check that the options fit each other.

        Raises:
            BadParameter: options of --labels without it, --labels together with a search for copies, or a page with
                neither of them.
        """
        if self.labels is None and (self.csv_file or self.limit):
            raise typer.BadParameter("--csv and --limit belong to --labels FOLDER; add it, or leave them out")
        if self.labels is None and self.html and not copies.wanted:
            raise typer.BadParameter("--html is the page of --labels FOLDER or of --near-copies; add one of them, or "
                                     "leave --html out")
        if self.labels is not None and copies.wanted:
            raise typer.BadParameter("--near-copies and --model look for copies, --labels FOLDER for label errors; "
                                     "run vit audit once for each")


@with_option_groups
def audit(
    overrides: Overrides = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the whole report to this file.")] = None,
    seconds: Annotated[float | None, typer.Option(
        min=0, help="Time limit for decoding in seconds; by default all images are decoded.",
        show_default=False)] = None,
    *,
    copies: CopyOptions,
    label_errors: LabelOptions,
    config_dir: ConfigDir = None,
) -> None:
    """Check the images of a data set: unreadable ones, duplicates across splits, class counts, sizes, mean and std.

    The exit code is 1 if an image is unreadable. --labels FOLDER looks for label errors in the data of that run or
    cross-validation (add data.root=NEW if the data has moved); --labels MODEL looks in the data of the overrides.
    """
    label_errors.check(copies)
    check_outputs(json_file, label_errors)
    models = [each for each in (copies.model, label_errors.labels) if each is not None]
    inputs = [*(overrides or []), *(file for model in models for file in files_of_model(model))]
    for option, file in (("--json", json_file), ("--html", label_errors.html)):
        check_not_an_input(file, inputs, option)
    check_table("--json", json_file, (".json",))
    check_table("--html", label_errors.html, (".html", ".htm"))
    from vit.run.config.hydra_interface import with_config_dir

    if label_errors.labels is not None and seconds is not None:
        print_without_effect("--seconds has no effect: --labels does not check the images")
    if label_errors.labels is None and copies.model is None and copies.device is not None:
        print_without_effect("--device has no effect: it is for the model of --model or --labels")
    if label_errors.labels is not None:
        show_label_errors(label_errors, with_config_dir(overrides or [], config_dir), copies.device, json_file)
    elif audit_images(with_config_dir(overrides or [], config_dir), copies, seconds, json_file, label_errors.html):
        raise typer.Exit(1)


def audit_images(overrides: "Sequence[str]", copies: CopyOptions, seconds: float | None, json_file: Path | None,
                 html: Path | None) -> bool:
    """Check the images of the data of these overrides, print the report and save it.

    Returns:
        Whether an image is unreadable.

    Raises:
        ValueError: the data set holds texts.
    """
    from vit.data.quality.audit import audit as audit_source
    from vit.data.quality.near_copies import describe_pairs

    data = compose_data(overrides)["data"]
    if "preprocessing" not in data:
        raise ValueError(f"data={data['name']} holds texts, but an audit checks images; training checks texts before "
                         "its first step and names file and line of an invalid one")
    source = as_unlabelled_images(open_source(data))
    preprocessing, bit_depth = audit_preprocessing(data, source)
    featurizer = None if copies.model is None else open_featurizer(copies.model, copies.device)
    with staged("audit") as progress:
        report = audit_source(source, preprocessing, seconds, progress)
        pairs = find_near_copies(source, preprocessing, featurizer, progress) if copies.wanted else []
    typer.echo(report.text() + (f"\npixels: {bit_depth}" if bit_depth else ""))
    values = report.to_dict()
    if copies.wanted:
        typer.echo(describe_pairs(pairs))
        values["near_copies"] = [asdict(pair) for pair in pairs]
    write_json(values, json_file)
    if html is not None:
        write_copies(html, pairs, source, preprocessing)
    return bool(report.unreadable)


def check_outputs(json_file: Path | None, label_errors: LabelOptions) -> None:
    """Raises ValueError or BadParameter for a file that cannot be written, has another ending, or is named twice."""
    check_writable(json_file)
    check_writable(label_errors.html)
    check_table("--csv", label_errors.csv_file, (".csv",))
    check_different({"--json": json_file, "--html": label_errors.html, "--csv": label_errors.csv_file})


def open_featurizer(model: Path, device: str | None) -> "Featurizer":
    """The features of a model of images.

    Raises:
        SourceError, BundleError, FileNotFoundError: it cannot be opened.
        ValueError: it does not reduce an image to one vector.
    """
    from vit.exchange import open_model
    from vit.inference import best_device
    from vit.inference.features import Featurizer

    bundle = open_model(model, features_only=True)
    if bundle.preprocessing is None:
        raise ValueError(f"--model {model} reads texts, but near copies are images; choose a model of images")
    return Featurizer(bundle.model, bundle.preprocessing, best_device(device), "32-true")


def find_near_copies(
    source: "Source", preprocessing: "Preprocessing | LinePreprocessing", featurizer: "Featurizer | None",
    progress: "StageProgress",
) -> "list[NearCopy]":
    """Near copies by the pixels and, with a featurizer, by its features."""
    from vit.data.quality.feature_copies import near_copies_by_model
    from vit.data.quality.near_copies import near_copies
    from vit.evaluation.features.positions import features_at

    if featurizer is None:
        return near_copies(source, preprocessing, progress)
    return near_copies_by_model(source, preprocessing, partial(features_at, featurizer, source, progress=progress),
                                progress)


def write_copies(page: Path, pairs: "list[NearCopy]", source: "Source",
                 preprocessing: "Preprocessing | LinePreprocessing") -> None:
    """Write the page of near copies."""
    from vit.files.outputs import write_output
    from vit.report.pages.near_copies import copies_page
    from vit.report.pages.samples import Samples

    write_output(page, copies_page(pairs, Samples(source, preprocessing), f"Near copies, {source.name}").encode())
    print_written(str(page))


def show_label_errors(options: LabelOptions, overrides: list[str], device: str | None, json_file: Path | None) -> None:
    """Write and print the likely label errors."""
    check_writable(options.csv_file)
    from vit.cli.data.labels_by_model import audit_labels_by_model
    from vit.run.multirun.label_audit import audit_labels, has_predictions

    if overrides and not has_predictions(options.labels):
        files = options.csv_file, options.html
        found = audit_labels_by_model(options.labels, overrides, files, options.limit, device)
    else:
        if device is not None:
            print_without_effect(f"--device has no effect: the predictions are read from {options.labels}")
        found = audit_labels(options.labels, options.csv_file, options.html, options.limit, overrides)
    typer.echo(f"{len(found.errors)} of {number_of(found.samples, 'sample')} "
               f"{agree(len(found.errors), 'has a label that is', 'have labels that are')} likely wrong; the "
               f"held-out predictions agree with {found.agreement:.1%} of the labels")
    for error in found.errors[:10]:
        typer.echo(f"  {error_line(error)}")
    write_json({"samples": found.samples, "agreement": found.agreement,
                "label_errors": [asdict(error) for error in found.errors]}, json_file)
    print_written(f"{found.csv_file}: fill in new_label and train with "
                  f"{override_for_shell('data.corrections', found.csv_file)}")
    print_written(str(found.page))


def error_line(error: "LabelError | LabelSetError") -> str:
    """Name, label and proposal, without the invisible marks of pages around Arabic and Hebrew names: text that is
    copied from a terminal would have them.
    """
    return f"{error.name}: {error.given}, {error.proposal}".replace(LEFT_TO_RIGHT, "")


def audit_preprocessing(data: dict, source: "Source") -> tuple["Preprocessing | LinePreprocessing", str | None]:
    """The decoding that a run would use, and a line about the images of more than 8 bits, if there are any.

    Mean and std are placeholders: an audit computes them.

    Raises:
        ValueError: a value of the preprocessing is invalid.
    """
    from vit.data import LinePreprocessing, Preprocessing
    from vit.data.decoding.bit_depth import RULES
    from vit.data.pairs.line_widths import fitting_width
    from vit.data.statistics import resolve_range
    from vit.models.checks import pair

    stated = {key: value for key, value in data["preprocessing"].items() if value is not None}
    rule = stated.pop("range", "auto")
    channels = 1 if stated.get("mode") == "L" else 3
    defaults = {"mean": [0.5] * channels, "std": [0.5] * channels}
    if "height" in stated:  # images of text lines
        stated["patch_size"], width = pair("data.patch_size", data["patch_size"]), stated.get("max_width")
        preprocessing = LinePreprocessing.from_dict(defaults | {"max_width": stated["patch_size"][1]} | stated)
        if not width:
            preprocessing = preprocessing.replace(max_width=fitting_width(source.splits["train"], preprocessing))
    else:
        preprocessing = Preprocessing.from_dict(defaults | {"size": data["image_size"] or 224} | stated)
    if rule not in RULES:
        return preprocessing.replace(range=rule), None
    return resolve_range(source.splits["train"], preprocessing, rule)


def as_unlabelled_images(source: "Source | PairSource") -> "Source":
    """The images of an image-to-text source, each once, as a source without classes."""
    from numpy import array, zeros

    from vit.data import PairSource, Split, UnlabelledImages

    if not isinstance(source, PairSource):
        return source
    firsts = {key: array([rows[0] for rows in each.by_source()]) for key, each in source.splits.items()}
    images = {key: each if len(firsts[key]) == len(each) else each.take(firsts[key])
              for key, each in source.splits.items()}
    splits = {key: Split(zeros(len(each), int), each.names, each.read) for key, each in images.items()}
    return UnlabelledImages(source.name, [], splits, source.left_out)
