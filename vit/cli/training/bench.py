"""`vit bench`: the speed of training, inference, loading and generation, alone and against other libraries."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vit.cli.file_checks import check_table, check_writable
from vit.cli.option_groups import with_option_groups
from vit.cli.shared_options import ConfigDir
from vit.cli.terminal import print_interrupt, print_without_effect, print_written, stderr, write_json
from vit.cli.training.bench_options import (
    ROUNDS,
    Request,
    ResultOptions,
    SearchOptions,
    TimingOptions,
    parse_arguments,
    split_names,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vit.benchmarking import Case, Settings
    from vit.models import VisionTransformer

BATCHES = {"step": (16,), "inference": (1, 16), "loader": (64,), "predict": (64,), "generation": (1, 32), "train": (1,)}
PHOTOS = ("loader", "predict")  # benchmarks that read image files
MODELS = ("step", "inference", "predict")  # benchmarks of the model of the overrides
FILE_WIDTH = 180  # characters
CLASSES = 1000  # unless model.num_classes is given, since the data is not read


@with_option_groups
def bench(
    arguments: Annotated[list[str] | None, typer.Argument(
        metavar="BENCHMARK | KEY=VALUE", show_default=False,
        help="Benchmarks: step (training step), inference, loader, predict (from files), generation (beam search), "
             "train (a whole run); by default step and inference. Config overrides, such as model=small "
             "data.image_size=64.")] = None,
    against: Annotated[list[str] | None, typer.Option(
        metavar="PEER [PEER]...", show_default=False,
        help="Libraries to compare with: timm, torchvision, transformers, vit-pytorch; for generation also "
             "ctranslate2, and uncached for the search without a cache.")] = None,
    *,
    timing: TimingOptions,
    search: SearchOptions,
    results: ResultOptions,
    config_dir: ConfigDir = None,
) -> None:
    """Measure the speed of this project on this machine, alone or against other libraries.

    Example: vit bench step model=tiny --batch 16 --against timm torchvision transformers vit-pytorch.

    Ratios are medians over rounds of paired times, with a 95 % interval; above 1 vit is faster. After Ctrl-C the
    complete rounds are printed.
    """
    request = parse_arguments(arguments or [], against or [])
    check_writable(results.json_file)
    check_table("--json", results.json_file, (".json",))
    if results.baseline is None and results.tolerance != ResultOptions().tolerance:
        print_without_effect("--tolerance has no effect: it is for --baseline")
    from vit.benchmarking import compare_with_baseline, read_baseline
    from vit.run.config.hydra_interface import with_config_dir

    expected = read_baseline(results.baseline) if results.baseline else None
    settings = build_settings(timing, request.peers)
    request = replace(request, overrides=tuple(with_config_dir(list(request.overrides), config_dir)))
    report = run_benchmarks(plan(request, settings, timing, search), settings, results.json_file)
    if expected is not None:
        comparison = compare_with_baseline(report, expected, results.tolerance)
        typer.echo("\n".join(comparison.lines()))
        raise typer.Exit(1 if comparison.fallen else 0)


def run_benchmarks(
    plans: list[Callable[["list[Case]"], None]], settings: "Settings", json_file: Path | None
) -> dict[str, Any]:
    """Run the benchmarks and report them; after Ctrl-C or an error, what was measured so far.

    Raises:
        Exit: interrupted, with code 130, or by another stop signal, with 128 + its number.
    """
    cases: list[Case] = []
    complete = False
    try:
        for measure in plans:
            measure(cases)
        complete = True
    except KeyboardInterrupt as interrupt:
        raise typer.Exit(print_interrupt(interrupt, ": only complete rounds count")) from None
    finally:
        report = finish_report(cases, settings, complete, json_file)
    return report


def build_settings(timing: TimingOptions, peers: tuple[str, ...]) -> "Settings":
    """The settings that all benchmarks share.

    Raises:
        BadParameter: an unknown precision or mode.
        ValueError: a clock that does not fit the device.
    """
    from vit.benchmarking import DTYPES, Settings
    from vit.benchmarking.hardware import select_gpu
    from vit.inference import best_device
    from vit.training.precision import check_precision

    modes, device = split_names(timing.mode), str(best_device(timing.device))
    select_gpu(device)
    for option, text in {"--mode": timing.mode, "--precision": timing.precision}.items():
        if text is not None and not split_names(text):
            raise typer.BadParameter(f"{option} {text!r}: must be one or more names with commas")
    stated = default_precisions(device) if timing.precision is None else split_names(timing.precision)
    precisions = tuple(name if name in DTYPES else check_precision(name) for name in stated)
    if wrong := [name for name in precisions if name not in DTYPES]:
        raise typer.BadParameter(f"--precision {wrong[0]}: must be of {', '.join(DTYPES)}")
    return Settings(peers, precisions, modes, (1,), timing.rounds or 1, str(timing.clock), device)


def default_precisions(device: str) -> tuple[str, ...]:
    """32-true and bf16-mixed. If the processor emulates bf16-mixed, it is left out, and a line says so."""
    from vit.low_precision import is_slow, slowness

    if is_slow("bf16-mixed", device):
        print_progress(f"bf16-mixed is left out ({slowness('bf16-mixed')}); --precision bf16-mixed measures it")
        return ("32-true",)
    return ("32-true", "bf16-mixed")


def plan(
    request: Request, settings: "Settings", timing: TimingOptions, search: SearchOptions
) -> list[Callable[["list[Case]"], None]]:
    """A function per benchmark that extends a list of cases. What can be checked is checked here, before any of them
    runs.

    Raises:
        ConfigError, ValueError: a wrong override or option, or one that no benchmark reads.
    """
    batches = timing.batches
    print_ignored(request, search)
    config = compose_model(request)
    build = model_builder(config) if set(MODELS) & set(request.benchmarks) else None
    photos = folder_of_photos(request, config)
    plans = []
    for name in request.benchmarks:
        check_settings(name, settings)
        own = replace(settings, rounds=timing.rounds or ROUNDS[name], batches=batches or BATCHES[name])
        plans.append(plan_one(name, request, own, build, photos, search))
    return plans


def print_ignored(request: Request, search: SearchOptions) -> None:
    """Print the options and overrides that none of the benchmarks reads."""
    from vit.run.config.overrides import key_of

    default, benchmarks = SearchOptions(), ", ".join(request.benchmarks)
    if "generation" not in request.benchmarks:
        for name in ("shape", "beam", "tokens"):
            if getattr(search, name) != getattr(default, name):
                print_without_effect(f"--{name} has no effect on {benchmarks}; it is for generation")
    if not {*MODELS, "train"} & set(request.benchmarks):
        for override in request.overrides:
            if key_of(override).partition(".")[0] == "model":
                print_without_effect(f"{override} has no effect on {benchmarks}, which has no model")


def check_settings(name: str, settings: "Settings") -> None:
    """Checks that a benchmark has the modes and precisions, and that compiled modes can be used.

    Raises:
        BadParameter: a mode or precision that it does not have.
        ConfigError: there is no compiler.
    """
    from vit.benchmarking.results import MODES
    from vit.run.parts.devices import check_compiler
    from vit.training.precision import BF16_RESIDUAL

    modes = {"step": tuple(MODES), "inference": tuple(MODES), "generation": ("eager", "compiled")}.get(name, ("eager",))
    if other := [mode for mode in settings.modes if mode not in modes]:
        raise typer.BadParameter(f"--mode {other[0]}: {name} has only {', '.join(modes)}")
    if name not in ("step", "inference") and BF16_RESIDUAL in settings.precisions:
        raise typer.BadParameter(f"--precision {BF16_RESIDUAL}: only step and inference have it; use bf16-mixed")
    if set(settings.modes) - {"eager"}:
        check_compiler(settings.device)


def plan_one(
    name: str, request: Request, settings: "Settings", build: "Callable[[], VisionTransformer] | None",
    photos: Path | None, search: SearchOptions,
) -> Callable[["list[Case]"], None]:
    """The benchmark `name`, ready to run."""
    from vit import benchmarking

    if name == "train":
        overrides = list(request.overrides)
        return lambda cases: benchmarking.bench_training_run(overrides, settings, cases, print_progress)
    if name == "generation":
        size = benchmarking.Search(search.shape, search.beam, search.tokens)
        return lambda cases: benchmarking.bench_generation(size, settings, cases, print_progress)
    if name == "loader":
        return lambda cases: benchmarking.bench_loader(photos, settings, cases, print_progress)
    if name == "predict":
        return lambda cases: benchmarking.bench_prediction(build(), photos, settings, cases, print_progress)
    return lambda cases: benchmarking.bench_model(name, build, settings, cases, print_progress)


def finish_report(
    cases: "list[Case]", settings: "Settings", complete: bool, json_file: Path | None
) -> dict[str, Any]:
    """Print the tables of all complete rounds, write the JSON file, and return its values."""
    from vit.benchmarking import machine, measured, result_tables, to_json

    facts = machine(settings.device)
    report = to_json(cases, settings, facts, complete)
    if measured(cases):
        print_results(result_tables(cases, settings, facts))
        write_json(report, json_file)
        if json_file is not None:
            print_written(f"{len(report['cases'])} cases to {json_file}")
    return report


def print_results(tables: "RenderableType") -> None:
    """Print to standard output; a file gets lines of any length."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_WIDTH)
    console.print(tables)


def print_progress(line: str) -> None:
    stderr().print(line, markup=False, highlight=False, soft_wrap=True)


def compose_model(request: Request) -> dict[str, Any]:
    """The config of the overrides; without a model or data set ViT-Ti/16 on images of 224x224.

    Raises:
        ConfigError: a wrong override.
        BadParameter: overrides that no benchmark of the command reads.
    """
    from vit.run.config.composing import compose, resolve
    from vit.run.config.hydra_interface import is_hydra_key
    from vit.run.config.overrides import key_of

    keys = {key_of(override) for override in request.overrides}
    if keys and set(request.benchmarks) == {"generation"}:
        first = sorted(keys)[0]
        option = "--config-dir" if is_hydra_key(first) else first
        raise typer.BadParameter(f"{option}: generation has models of its own; choose one with --shape")
    defaults = [] if {"model", "data", "experiment"} & keys else ["model=tiny"]
    if not {"data", "experiment"} & keys:
        sizes = {"data.image_size": 224, "data.patch_size": 16}
        defaults += [f"{key}={value}" for key, value in sizes.items() if key not in keys]
    return resolve(compose([*defaults, *request.overrides]))


def model_builder(config: dict[str, Any]) -> "Callable[[], VisionTransformer]":
    """A function that builds the model of a config, each time with the same weights.

    Raises:
        ConfigError: the model does not fit the images.
        ValueError: it is not a Vision Transformer of this project, or the images have different sizes.
    """
    import torch

    from vit.data import Preprocessing
    from vit.data.images.preprocessing_values import as_size
    from vit.run.config.valid_values import DEFAULT_SIZE
    from vit.run.parts.networks import build_model
    from vit.run.parts.preprocessing import stated_preprocessing, with_default_statistics

    data, model = config["data"], config["model"]
    if data.get("pack"):
        raise ValueError("data.pack=true: step, inference and predict measure images of one size; leave it out, or run "
                         "benchmarks/packed_batches.py")
    stated = {**stated_preprocessing(data)[0], "size": as_size(data["image_size"] or DEFAULT_SIZE)}
    preprocessing = Preprocessing.from_dict(with_default_statistics(stated))
    classes = [str(i) for i in range(model.get("num_classes") or CLASSES)]

    def build() -> "VisionTransformer":
        torch.manual_seed(0)
        return build_model(model, data["patch_size"], preprocessing, classes, None)

    if (kind := build().config.kind) != "vit":
        raise ValueError(f"step, inference and predict measure Vision Transformers of this project, but model="
                         f"{model['name']} is of kind {kind}")
    return build


def folder_of_photos(request: Request, config: dict[str, Any]) -> Path | None:
    """The folder of `data=folder data.root=PHOTOS`; None without these overrides.

    Raises:
        ValueError: another data set, which other libraries do not read, or there is no such folder.
    """
    named = [override for override in request.overrides if override.startswith("data=")]
    if not named or not set(PHOTOS) & set(request.benchmarks):
        return None
    if named[-1] != "data=folder":
        raise ValueError(f"{named[-1]}: {' and '.join(PHOTOS)} read a folder of photos, which other libraries read "
                         "too; use data=folder data.root=PHOTOS")
    root = Path(config["data"]["root"]).expanduser()
    if not root.is_dir():
        raise ValueError(f"data.root={root} is not a folder")
    return root
