"""`compile=auto`: whether `torch.compile` pays off within the steps of a run, by measuring it before training.

The measurement is a forward and backward pass of a micro-batch of noise, first in eager mode and, where the run is long
enough, compiled as well. The decision is recorded in the config of the run, so that a resumed run computes the same.
"""

import contextlib
import logging
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from pytorch_lightning import Trainer
from torch import Tensor, nn

from vit.benchmarking.timing import seconds_of
from vit.files.machine import stop_signals_blocked
from vit.messages import number_of
from vit.nn.init import restored_modes
from vit.run.config.composing import ConfigError
from vit.run.parts.batches import micro_batch
from vit.run.parts.devices import Devices, check_compiler
from vit.run.parts.recipe import AUTO, steps_per_epoch
from vit.run.parts.trainer import max_time

if TYPE_CHECKING:
    from vit.run.jobs.classification import ImageClassificationJob

log = logging.getLogger("vit")

LIKELY_GAIN = 0.2  # fraction of a step that compilation is expected to save before it is measured
LIKELY_COST = 60.0  # seconds that it is expected to take
EVALUATION = 0.5  # cost of the graph for evaluation, which has no backward pass, over that for training
CALLS, SECONDS = (3, 20), 2.0  # of one measurement: calls at least and at most, and seconds after which it ends


@dataclass(frozen=True)
class Compilation:
    """What was measured.

    Args:
        eager, compiled: seconds of a micro-batch.
        cost: seconds that the compilation of the training step took.
        batches: micro-batches of the run.
        stages: stages of progressive training, each of which is compiled.
    """

    eager: float
    compiled: float
    cost: float
    batches: int
    stages: int = 1

    @property
    def gain(self) -> float:
        """Seconds that all micro-batches of the run save."""
        return self.batches * (self.eager - self.compiled)

    @property
    def remaining_cost(self) -> float:
        """Seconds of the compilations to come: those for evaluation and for further stages."""
        return self.cost * (EVALUATION + self.stages - 1)

    @property
    def pays_off(self) -> bool:
        """Whether the gain exceeds the cost that is still to come; that of the measurement is spent in any case."""
        return self.gain > self.remaining_cost

    def __str__(self) -> str:
        return (f"{self.compiled:.3g} s per batch instead of {self.eager:.3g} s; over "
                f"{number_of(self.batches, 'batch')} that saves {self.gain:.0f} s, and further compilations take about "
                f"{self.remaining_cost:.0f} s")


def compile_mode(config: dict) -> str:
    """The mode of `torch.compile`; configs of earlier versions lack the key."""
    return config.get("compile_mode", "default")


def start_compile_workers() -> None:
    """Start the processes in which `torch.compile` compiles the kernels of a GPU, with the stop signals blocked.

    A signal that reaches the whole process group, as that of a terminal or a cluster does, would end these processes,
    and the run would wait for their results instead of stopping. Where torch has no such processes nothing happens.
    """
    if os.name == "nt":  # where signals cannot be blocked
        return
    try:
        with stop_signals_blocked():
            from torch._inductor.async_compile import AsyncCompile

            AsyncCompile.warm_pool()
    except (AttributeError, ImportError):
        log.debug("torch %s has no AsyncCompile.warm_pool", torch.__version__)


def check_compilation(config: dict, devices: Devices) -> None:
    """Checks that a run can be compiled with its values of `compile` and `compile_mode`.

    Raises:
        ConfigError: `compile=true` without a C++ compiler; a mode although nothing is compiled; or `compile=auto` with
            several processes, or with a task whose batches have many shapes.
    """
    if config["compile"] == AUTO:
        check_measurable(config, devices)
    elif config["compile"]:
        check_compiler(devices.accelerator, "compile=true", "use compile=false")
    elif not config["resumed"]:  # there auto may have decided against it
        raise ConfigError(f"compile_mode={compile_mode(config)} has no effect with compile=false; add compile=true "
                          "or compile=auto")


def check_measurable(config: dict, devices: Devices) -> None:
    """Checks that `compile=auto` can measure this run.

    Raises:
        ConfigError: several processes, or a task whose batches have many shapes.
    """
    task, strategy = config["task"]["name"], config["strategy"].get("name")
    if devices.world > 1 or strategy != "single":
        raise ConfigError(f"compile=auto measures in one process with strategy=single, but this run has strategy="
                          f"{strategy} and {number_of(devices.world, 'device')}; use compile=true or false")
    if task != "classification":
        raise ConfigError(f"compile=auto measures batches of images of one size, but this is task={task}; use "
                          "compile=true or false")


def choose_compile(job: "ImageClassificationJob", trainer: Trainer) -> bool:
    """The value of `compile=auto`: whether the run is faster with the compiled model, which then is compiled in place.
    Weights, buffers and random numbers are left as they were.
    """
    model, device = job.model, trainer.strategy.root_device
    shape = (micro_batch(job.config["recipe"]), model.config.in_chans, *job.preprocessing.size)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    batches, limit = micro_batches(job, trainer), max_time(job.config["trainer"]["max_time"])
    stages = len(job.progressive.stages) if job.progressive else 1
    model.to(device)
    step = training_pass(model, images.to(device), trainer)
    with unchanged(model):
        step()  # the first call takes longer
        eager = seconds_per_call(step)
        if limit is not None:
            batches = min(batches, int(limit.total_seconds() / eager))
        if batches * eager * LIKELY_GAIN < LIKELY_COST * (stages + EVALUATION):
            log.info("compile: false (auto: all %s batches take %.0f s, too few for a compilation)", f"{batches:,}",
                     batches * eager)
            return False
        log.info("compile: measuring (auto: all %s batches take %.0f s in eager mode)", f"{batches:,}", batches * eager)
        try:
            check_compiler(job.devices.accelerator, "torch.compile", "training is in eager mode")
            model.compile(mode=compile_mode(job.config))
            first = seconds_of(step)
            compiled = seconds_per_call(step)
        except (ConfigError, RuntimeError) as error:  # what torch raises if it cannot compile
            undo_compile(model)
            log.warning("compile: false (auto: %s)", str(error).partition("\n")[0])
            return False
    found = Compilation(eager, compiled, max(0.0, first - compiled), batches, stages)
    if not found.pays_off:
        undo_compile(model)
    log.info("compile: %s (auto: %s)", str(found.pays_off).lower(), found)
    return found.pays_off


def micro_batches(job: "ImageClassificationJob", trainer: Trainer) -> int:
    """The number of micro-batches that the run trains on."""
    recipe = job.config["recipe"]
    each = steps_per_epoch(recipe, job.train_samples) * recipe["accumulate"]
    limit = trainer.limit_train_batches  # a number with `debug`, else a fraction, which is 1
    return trainer.max_epochs * (min(each, limit) if isinstance(limit, int) else each)


def training_pass(model: nn.Module, images: Tensor, trainer: Trainer) -> Callable[[], None]:
    """A forward and backward pass in training mode, in the precision of the trainer."""
    def run() -> None:
        model.train()
        with trainer.precision_plugin.forward_context():
            outputs = model(images)  # (B,classes), or a tuple of two
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        sum(each.float().square().mean() for each in outputs).backward()
        model.zero_grad()
    return run


def seconds_per_call(program: Callable[[], None]) -> float:
    """The median time of a few calls."""
    found: list[float] = []
    while len(found) < CALLS[0] or sum(found) < SECONDS and len(found) < CALLS[1]:
        found.append(seconds_of(program))
    return statistics.median(found)


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Restore buffers, modes and the random state of the CPU on exit; `seed_step` seeds the devices in each step."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng(devices=[]), restored_modes(model):  # otherwise torch warns on machines with many GPUs
        yield
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)


def undo_compile(model: nn.Module) -> None:
    """Run the model in eager mode again, without its compiled code."""
    model._compiled_call_impl = None  # what `nn.Module.compile` sets
    torch.compiler.reset()
