"""The options of `vit bench`, in groups, and the names that its arguments may have."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from vit.cli.shared_options import MAX_COUNT, Device
from vit.messages import did_you_mean, nearest_names

# benchmark -> its rounds by default
ROUNDS = {"step": 11, "inference": 11, "loader": 7, "predict": 5, "generation": 5, "train": 1}
PEERS = ("timm", "torchvision", "transformers", "vit-pytorch", "ctranslate2", "uncached")


class Clock(StrEnum):
    """The names of `vit.benchmarking.timing.CLOCKS`."""

    wall = "wall"
    processor = "processor"


@dataclass(frozen=True)
class TimingOptions:
    """What is timed, how often and by which clock."""

    batch: Annotated[str | None, typer.Option(
        metavar="N,N", help="Batch sizes: by default 16 for step, 1,16 for inference, 64 for loader and predict, 1,32 "
                            "for generation.", show_default=False)] = None
    precision: Annotated[str | None, typer.Option(
        metavar="NAME,NAME", help="32-true, bf16-mixed, bf16-residual (step and inference), 16-mixed: by default "
                                  "32-true, and bf16-mixed unless the processor emulates it.",
        show_default=False)] = None
    mode: Annotated[str, typer.Option(
        metavar="NAME,NAME", help="eager, or compiled with a mode of torch.compile: compiled (its default), "
                                  "reduce-overhead, max-autotune.")] = "eager"
    rounds: Annotated[int | None, typer.Option(
        min=1, help="Number of rounds, each of which runs all programs once: by default 11, 7 for loader, 5 for "
                    "predict and generation, 1 for train.", show_default=False)] = None
    clock: Annotated[Clock, typer.Option(
        help="wall time, or processor time of all threads, for a machine that other programs use; GPUs need wall."
    )] = Clock.wall
    device: Device = None

    @property
    def batches(self) -> tuple[int, ...] | None:
        """The batch sizes of --batch.

        Raises:
            BadParameter: they are not positive numbers with commas.
        """
        if self.batch is None:
            return None
        names = split_names(self.batch)
        if not names or not all(each.isdecimal() and 0 < int(each) <= MAX_COUNT for each in names):
            raise typer.BadParameter(f"--batch {self.batch}: must be numbers of images with commas, such as 1,64")
        return tuple(map(int, names))


@dataclass(frozen=True)
class SearchOptions:
    """Model, beam width and number of tokens of the benchmark `generation`."""

    shape: Annotated[str, typer.Option(help="Size of the generation model: multi30k or marian-base.")] = "multi30k"
    beam: Annotated[int, typer.Option(min=1, help="Beam width of generation.")] = 5
    tokens: Annotated[int, typer.Option(min=1, help="Number of generated tokens per text.")] = 64


@dataclass(frozen=True)
class ResultOptions:
    """Where results are saved and what they are compared with."""

    json_file: Annotated[Path | None, typer.Option("--json", help="Write all times and ratios to this file.")] = None
    baseline: Annotated[Path | None, typer.Option(
        help="Compare with this earlier --json file; the exit code is 1 if a ratio has fallen.",
        show_default=False)] = None
    tolerance: Annotated[float, typer.Option(
        min=0, max=1, help="Allowed relative decrease of a ratio from the baseline.")] = 0.1


@dataclass(frozen=True)
class Request:
    """The benchmarks, peers and overrides of a command line."""

    benchmarks: tuple[str, ...]
    peers: tuple[str, ...]
    overrides: tuple[str, ...]


def parse_arguments(arguments: list[str], against: list[str]) -> Request:
    """Sort the arguments: names of benchmarks, names of peers, overrides. Both `--against timm torchvision` and
    `--against timm,torchvision` name two peers.

    Raises:
        BadParameter: an unknown name, or peers without --against.
    """
    from vit.run.config.overrides import overrides_of_path

    against = [name for names in against for name in split_names(names) or [names]]
    benchmarks, peers, overrides = [], list(against), []
    for argument in arguments:
        if "=" in argument:
            overrides.append(argument)
        elif argument in ROUNDS:
            benchmarks.append(argument)
        elif argument in PEERS:
            peers.append(argument)
        elif fix := overrides_of_path(argument):
            raise typer.BadParameter(f"{argument} is not of the form key=value; for the data in it write {fix}")
        else:
            near = did_you_mean(nearest_names(argument, [*ROUNDS, *PEERS]))
            raise typer.BadParameter(f"{argument} is neither a benchmark ({', '.join(ROUNDS)}) nor a library nor "
                                     f"key=value{near}")
    if peers and not against:
        raise typer.BadParameter(f"to compare with {peers[0]}, write --against {' '.join(peers)}")
    for name in against:
        if name not in PEERS:
            near = did_you_mean(nearest_names(name, PEERS))
            raise typer.BadParameter(f"--against {name}: must be one of {', '.join(PEERS)}{near}")
    unique = tuple(dict.fromkeys(benchmarks)) or ("step", "inference")
    return Request(unique, tuple(dict.fromkeys(peers)), tuple(overrides))


def split_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
