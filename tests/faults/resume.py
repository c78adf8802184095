"""A run that is stopped at any step and resumed ends with the same bits as one that was never stopped."""

import atexit
import csv
import hashlib
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch

from tests.faults.promise import Case, Promise
from tests.forking import Exit, forks, kill_group

SMALL = ["recipe.epochs=3", "precision=32-true", "logger=csv", "report=false", "model.dim=16", "model.num_heads=2",
         "model.depth=2"]
DIGITS = [*SMALL, "data=digits", "recipe.batch_size=300"]  # 4 steps per epoch
TEXTS = [*SMALL, "model.depth=1", "recipe.batch_size=64"]
PAIRS = [*TEXTS, "model.decoder_depth=1", "data.train=200", "data.val=20", "data.test=20"]
PHOTOS = ["recipe.batch_size=16", "data.image_size=16", "data.patch_size=8", "data.audit_seconds=1"]
QUIET = ["task.examples=0"]
MIXUP = ["recipe.mixup={mixup: 0.3, cutmix: 1.0, prob: 0.8}", "model.dropout=0.1", "model.drop_path=0.1"]
TIMES = ("_per_second", "data_wait")  # columns of metrics.csv that measure this machine
CLOCKS = ("ThroughputMeter", "PeakMemory", "Timer", "ProgressBar", "MetricsTable")  # callbacks whose state does as well
STOPPED = {1: 143, 2: 9}


@dataclass(frozen=True)
class Mode:
    """A training configuration.

    Args:
        overrides: may name the prepared folders as {source} (a trained model) and {labels} (a multi-label table).
        changed: overrides of the resumed run, which must not change the result.
        stops: number of positions between the first and the last batch at which it is stopped.
    """

    overrides: tuple[str, ...]
    processes: int = 1
    changed: tuple[str, ...] = ()
    stops: int = 5


def several(strategy: str, processes: int, *more: str) -> Mode:
    devices = [f"strategy={strategy}", f"trainer.devices={processes}", "trainer.accelerator=cpu"]
    return Mode((*DIGITS, *devices, "callbacks.every_steps=1", *more), processes)


MODES = {
    "plain": Mode((*DIGITS,), stops=12),
    "mixup and dropout": Mode((*DIGITS, *MIXUP)),
    "weight average": Mode((*DIGITS, "recipe.ema=0.9")),
    "epoch average": Mode((*DIGITS, "recipe.ema=null", "recipe.average_epochs=2")),
    "accumulation": Mode((*DIGITS, "recipe.accumulate=2"), stops=12),
    "accumulation and mixup": Mode((*DIGITS, *MIXUP, "recipe.accumulate=3")),
    "two workers": Mode((*DIGITS, "data.workers=2")),
    "another number of workers": Mode((*DIGITS, "data.workers=0"), changed=("data.workers=2",)),
    "balanced sampling": Mode((*DIGITS, "data.balance=sampler")),
    "balanced loss": Mode((*DIGITS, "data.balance=loss")),
    "bfloat16": Mode((*DIGITS, "precision=bf16-mixed")),
    "patience": Mode((*DIGITS, "callbacks.patience=1")),
    "time limit": Mode((*DIGITS, "trainer.max_time=00:01:00:00")),
    "monitored loss": Mode((*DIGITS, "callbacks.monitor=val/loss")),
    "sgd": Mode((*DIGITS, "recipe.optimizer.name=sgd")),
    "frequent saves": Mode((*DIGITS, "callbacks.every_steps=1")),
    "translation": Mode((*PAIRS, "data=spelled_numbers", "data.limit=1000")),
    "image to text": Mode((*PAIRS, "data=digit_strips", "data.digits=2")),
    "masked text": Mode((*TEXTS, "experiment=bert", "recipe.epochs=2", "recipe.batch_size=256")),
    "masked images": Mode(
        (*DIGITS, "experiment=mae", "model.decoder_dim=16", "model.decoder_depth=1", "task.examples=0")
    ),
    "text classification": Mode((*TEXTS, "data=text_table", "recipe.batch_size=4000")),
    "multi-label": Mode((*SMALL, *PHOTOS, "data=table", "data.path={labels}", "data.label_separator='|'")),
    "layer-wise decay": Mode((*DIGITS, "init_from={source}", "finetune=llrd")),
    "head only": Mode((*DIGITS, "init_from={source}", "finetune=head")),
    "gradual unfreezing": Mode((*DIGITS, "init_from={source}", "finetune=gradual"), stops=12),
    "lora": Mode((*DIGITS, "init_from={source}", "finetune=lora")),
    "distillation": Mode((*DIGITS, "distill=soft", "distill.teacher={source}")),
    **{f"ddp {n}": several("ddp", n) for n in (2, 3, 4)},
    **{f"fsdp {n}": several("fsdp", n) for n in (2, 3, 4)},
    "ddp 3, accumulation": several("ddp", 3, "recipe.accumulate=2"),
    "ddp 3, mixup and weight average": several("ddp", 3, *MIXUP, "recipe.ema=0.9"),
    "fsdp 2, mixup and weight average": several("fsdp", 2, *MIXUP, "recipe.ema=0.9"),
}
QUICK = {"plain": (1, 9), "accumulation": (7,), "ddp 3": (2,)}


def train(overrides: list[str], stop: int | None, alone: bool, validation: int | None = None) -> int:
    """In a fork: a run without the steps after training, stopped in batch `stop` by a signal, or with several processes
    by the end of one; or stopped by a signal in a validation.
    """
    import vit.run.finish
    from vit.data.images.dataset import ImageDataset
    from vit.run.command import main
    from vit.tasks.base import Task

    step, seen = Task.training_step, 0

    def counted(task, batch, batch_idx):
        nonlocal seen
        seen += 1
        if seen == stop and alone:
            os.kill(os.getpid(), signal.SIGTERM)
        elif seen == stop:
            os._exit(STOPPED[2])
        return step(task, batch, batch_idx)

    start, validations = Task.on_validation_start, 0

    def counted_validation(task):
        nonlocal validations
        validations += 1
        if validations == validation:
            os.kill(os.getpid(), signal.SIGUSR1)
        return start(task)

    def count(job, folder, trainer, own):
        Path("batches.txt").write_text(str(seen))
        return {}

    Task.training_step, Task.on_validation_start, vit.run.finish.finish = counted, counted_validation, count
    if any(override.startswith("data.workers=") for override in overrides):
        ImageDataset._fits = lambda dataset, limit: False  # so that workers read the images
    return main(overrides)


def run(overrides: list[str], folder: Path, processes: int = 1, stop: int | None = None) -> list[Exit]:
    """Starts all processes of a run; the result of each."""
    call = partial(forks().start, "tests.faults.resume:train", overrides, stop, processes == 1, folder=folder)
    if processes == 1:
        return [forks().wait(call())]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes)}
    ranks = [call(environment={**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(processes)]
    try:
        return [forks().wait(rank) for rank in ranks]
    finally:
        for rank in ranks:
            kill_group(rank)


@cache
def shared() -> Path:
    """A folder that several cases share."""
    folder = Path(tempfile.mkdtemp(prefix="vit-resume-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def source() -> Path:
    """A trained model for `init_from` or as a teacher."""
    folder = shared() / "source"
    done = forks().run("vit.run.command:main", [*DIGITS, "recipe.epochs=1", "run_dir=run"], folder=folder)
    assert done.code == 0, done.output
    return folder / "run"


@cache
def labels() -> Path:
    from tests.run.test_multi_label import write_shapes

    return write_shapes(shared() / "labels")


def filled(mode: Mode, overrides: tuple[str, ...]) -> list[str]:
    text = "\n".join(overrides)
    folders = {"source": source if "{source}" in text else None, "labels": labels if "{labels}" in text else None}
    for name, prepare in folders.items():
        text = text.replace(f"{{{name}}}", str(prepare())) if prepare else text
    return text.split("\n")


@cache
def uninterrupted(name: str) -> tuple[dict[str, str], int]:
    """(digests, number of batches) of a complete run."""
    mode, folder = MODES[name], shared() / name
    for done in run([*filled(mode, mode.overrides), "run_dir=run"], folder, mode.processes):
        assert done.code == 0, done.output
    return digests(folder / "run"), int((folder / "batches.txt").read_text())


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of everything that must be identical in a resumed and a complete run."""
    found = {}
    for file in ("last.ckpt", "best.ckpt"):
        checkpoint = torch.load(folder / "checkpoints" / file, map_location="cpu", weights_only=True)
        states = {k: v for k, v in checkpoint["callbacks"].items() if not k.startswith(CLOCKS)}
        parts = states | {k: checkpoint[k] for k in ("state_dict", "optimizer_states", "lr_schedulers")}
        found |= {f"{file} {part}": digest(value) for part, value in parts.items()}
    with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
        rows = [{k: v for k, v in row.items() if not k.endswith(TIMES)} for row in csv.DictReader(file)]
    return found | {"metrics.csv": digest(rows)}


def digest(value: object) -> str:
    found = hashlib.sha256()
    feed(found, value)
    return found.hexdigest()


def feed(found, value: object) -> None:
    if isinstance(value, torch.Tensor):
        found.update(f"{value.dtype} {tuple(value.shape)}".encode())
        found.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            found.update(str(key).encode())
            feed(found, value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            feed(found, item)
    else:
        found.update(repr(value).encode())


def stopped_and_resumed(folder: Path, name: str, number: int) -> None:
    mode = MODES[name]
    whole, batches = uninterrupted(name)
    stop = 1 + round(number * (batches - 1) / (mode.stops - 1))
    for done in run([*filled(mode, mode.overrides), "run_dir=run"], folder, mode.processes, stop):
        assert done.code in STOPPED.values(), f"stopped in batch {stop} of {batches}: {done.code} {done.output}"
    for done in run(["resume=run", *mode.changed], folder, mode.processes):
        assert done.code == 0, f"stopped in batch {stop} of {batches}: {done.output}"
    found = digests(folder / "run")
    differ = [part for part in whole if found[part] != whole[part]]
    assert not differ, f"stopped in batch {stop} of {batches}: different bits in {', '.join(differ)}"


def stopped_in_validation(folder: Path, name: str) -> None:
    mode, train = MODES[name], "tests.faults.resume:train"
    whole, _ = uninterrupted(name)
    done = forks().run(train, [*filled(mode, mode.overrides), "run_dir=run"], None, True, 2, folder=folder)
    assert done.code == 128 + signal.SIGUSR1, f"{done.code}: {done.output}"
    done = forks().run(train, ["resume=run", *mode.changed], None, True, folder=folder)
    assert done.code == 0, done.output
    found = digests(folder / "run")
    assert not (differ := [part for part in whole if found[part] != whole[part]]), f"different bits in {differ}"


def cases() -> Iterator[Case]:
    for name, mode in MODES.items():
        if mode.processes == 1:
            yield Case(f"{name}, stop in the second validation", lambda folder, n=name: stopped_in_validation(
                folder, n), quick=name == "plain")
        for number in range(mode.stops):
            yield Case(
                f"{name}, stop {number + 1} of {mode.stops}",
                lambda folder, n=name, p=number: stopped_and_resumed(folder, n, p),
                quick=number in QUICK.get(name, ()),
            )


PROMISE = Promise("a run stopped at any step and resumed ends with identical bits", cases)
