"""A whole training run with real data, against its bare training step on a fixed batch.

The run is the command `vit train` in a separate process: loading, augmentation, mixup, averaging, callbacks. Its rate
is that of its training batches without the first one. The bare step has the same model, batch size, precision and
device. It uses AdamW, cross entropy and clipping to norm 1, whatever the recipe.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from vit.benchmarking.hardware import matrix_rates
from vit.benchmarking.results import OURS, Case, Settings
from vit.benchmarking.steps import FORWARDS, describe, fixed_batch, train_step
from vit.benchmarking.timing import Program, seconds_of
from vit.bundle import Bundle, load_bundle
from vit.files.machine import keep_freed_memory
from vit.models import flops
from vit.training import build_optimizer, clip_gradients

STEP = "bare step"
STEPS = 10  # bare steps per round
LINES = 20  # lines at the end of the output of a failed run that its error quotes


def bench_training_run(
    overrides: list[str], settings: Settings, cases: list[Case], progress: Callable[[str], None] = print
) -> None:
    """In each round, run `vit train OVERRIDES` and then `STEPS` bare training steps. The ratio is the rate of the run
    divided by the rate of the bare steps. The run uses the device of the settings and does not accumulate gradients.

    Raises:
        RuntimeError: the run fails; with the end of its output.
        ValueError: the model is not an image classifier, the clock is not the wall clock, or an override states the
            device or accumulates gradients.
    """
    if settings.clock != "wall":
        raise ValueError("a run reports its rate in elapsed time; use the wall clock")
    overrides_of_run = [*overrides, *as_bare_step(overrides, settings.device)]
    case = step = None
    for number in range(settings.rounds):
        progress(f"train, round {number + 1} of {settings.rounds}: vit train {' '.join(overrides_of_run)}")
        with tempfile.TemporaryDirectory() as folder:
            metrics = run_command(overrides_of_run, Path(folder, "run"), environment(settings.device))
            if case is None:
                bundle = load_bundle(Path(folder, "run"))
                case, step = new_case(overrides, bundle, settings), bare_step(bundle, settings.device)
                cases.append(case)
        add_round(case, metrics, step)


def as_bare_step(overrides: list[str], device: str) -> list[str]:
    """The overrides by which a run uses the device of the bare step and does not accumulate gradients.

    Raises:
        ValueError: the run's own overrides have one of these keys.
    """
    kind = torch.device(device).type
    fixed = {"trainer.accelerator": "gpu" if kind == "cuda" else kind, "trainer.devices": 1, "recipe.accumulate": 1}
    for override in overrides:
        key = override.lstrip("+").partition("=")[0]
        if key in fixed:
            instead = ", and choose the device with --device" if key == "trainer.accelerator" else ""
            raise ValueError(f"{override}: the run is compared with a step on one device without accumulation; leave "
                             f"{key} out{instead}")
    return [f"{key}={value}" for key, value in fixed.items()]


def environment(device: str) -> dict[str, str]:
    """The environment variables of a run, which uses the first GPU that it sees: for `cuda:1` it sees only that one."""
    variables = {**os.environ, "NO_COLOR": "1"}
    chosen, visible = torch.device(device), os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen.type == "cuda" and chosen.index:  # an index among the visible GPUs
        gpu = visible.split(",")[chosen.index].strip() if visible else str(chosen.index)
        variables["CUDA_VISIBLE_DEVICES"] = gpu
    return variables


def run_command(overrides: list[str], folder: Path, variables: dict[str, str]) -> dict:
    """The metrics of a run in a separate process with these environment variables, and the elapsed seconds of the
    command.

    Raises:
        RuntimeError: it fails.
    """
    command = [sys.executable, "-m", "vit", "train", *overrides, f"run_dir={folder}"]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    seconds = time.perf_counter() - start
    if done.returncode:
        lines = " ".join(line.strip() for line in (done.stdout + done.stderr).splitlines()[-LINES:])
        raise RuntimeError(f"vit train {' '.join(overrides)} ended with code {done.returncode}: {lines}")
    return {**json.loads((folder / "metrics.json").read_text(encoding="utf-8")), "command_seconds": seconds}


def new_case(overrides: list[str], bundle: Bundle, settings: Settings) -> Case:
    """The case of a run, without times.

    Raises:
        ValueError: the model is not an image classifier of this project.
    """
    config, evaluation = bundle.model.config, bundle.extra["evaluation"]
    if config.kind != "vit":
        raise ValueError("the bare training step exists only for image classifiers, but this run trains a model of "
                         f"kind {config.kind}")
    precision, batch = evaluation["precision"], evaluation["batch_size"]
    rate = matrix_rates((precision,), settings.device)[precision]
    setting = {"command": " ".join(["vit train", *overrides]), "model": describe(config), "precision": precision,
               "batch": batch}
    work = float(FORWARDS["step"] * flops(bundle.model) * batch)
    return Case("train", setting, "images", batch, work, rate, facts={OURS: {}, STEP: {}})


def bare_step(bundle: Bundle, device: str = "cpu") -> Program:
    """A training step of the model of a run on a fixed batch, without loading, augmentation, mixup or weight
    averaging.
    """
    keep_freed_memory()  # as in the run
    model, evaluation = bundle.model.to(device).train(), bundle.extra["evaluation"]
    images, labels = fixed_batch(model.config, evaluation["batch_size"], device)
    optimizer = build_optimizer(model, lr=1e-4)
    return partial(train_step, model, optimizer, clip_gradients, images, labels, evaluation["precision"])


def add_round(case: Case, metrics: dict, step: Program) -> None:
    """Add the seconds per step of a run and of the bare step, and the run's loader wait, memory and parameters."""
    step()
    bare = seconds_of(lambda: [step() for _ in range(STEPS)]) / STEPS
    case.times.setdefault(OURS, []).append(case.amount / metrics["images_per_second"])
    case.times.setdefault(STEP, []).append(bare)
    case.facts[OURS] |= {
        "loader_wait": metrics["data_wait"],
        "first_step_seconds": metrics.get("first_step_seconds"),
        "command_seconds": metrics["command_seconds"],
        "peak_memory": metrics["peak_memory"],
        "parameters": metrics["parameters"],
    }
