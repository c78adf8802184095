"""Cost of the guard against NaN, infinite and exploding values per training step.

    OMP_NUM_THREADS=1 python benchmarks/guard_cost.py [--steps 200] [OVERRIDE ...]

In one run, every other step is guarded, and pairs of neighbouring steps are compared, so that other work on the machine
affects both; on a CPU, processor time is measured. If the recipe clips gradients, their norm is computed without the
guard as well. Prints JSON: medians in milliseconds, and the median difference of a pair in percent with its 95 %
bootstrap interval.
"""

import argparse
import contextlib
import json
import tempfile
import time

import numpy as np
import pytorch_lightning as pl
import torch

from vit.run.config.composing import compose, resolve
from vit.run.jobs import build_job
from vit.run.parts.devices import find_devices
from vit.training import FiniteLoss, FollowEpoch, keep_freed_memory, quiet_lightning

HOOKS = ("on_train_start", "on_train_batch_start", "on_before_backward", "on_before_optimizer_step")
WARM_UP = 10  # steps


class EveryOther(pl.Callback):
    """Guards every other step and measures all steps; the order within a pair alternates."""

    def __init__(self) -> None:
        self.guard, self.on, self.seconds, self.order = FiniteLoss(), False, {True: [], False: []}, [True, False]
        for name in HOOKS:
            setattr(self, name, self._guarded(name))

    def _guarded(self, name):
        def hook(trainer, module, *rest):
            if name == "on_train_batch_start":
                step = trainer.global_step
                self.on = self.order[(step + step // 2) % 2]
                module.gradient_norm = None
                self.begun = clock()
            if self.on or name == "on_train_start":
                getattr(self.guard, name)(trainer, module, *rest)

        return hook

    def on_train_batch_end(self, trainer, module, *rest) -> None:
        self.seconds[self.on].append(clock() - self.begun)


def clock() -> float:
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    options, overrides = parser.parse_known_args()
    config = resolve(compose(overrides)) | {"resumed": False, "overrides": overrides}
    quiet_lightning()
    devices = find_devices(config["trainer"])
    job, meter = build_job(config, devices), EveryOther()
    if devices.accelerator == "cpu":
        keep_freed_memory()
    with contextlib.closing(job.batches), tempfile.TemporaryDirectory() as folder:
        pl.Trainer(
            accelerator=devices.accelerator, devices=1, precision="32-true", max_steps=options.steps + WARM_UP,
            limit_val_batches=0, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, use_distributed_sampler=False, default_root_dir=folder,
            callbacks=[FollowEpoch(), meter],
        ).fit(job.task, job.batches)
    on, off = (np.array(meter.seconds[key][WARM_UP // 2 :]) for key in (True, False))
    pairs = min(len(on), len(off))
    cost = 100 * (on[:pairs] / off[:pairs] - 1)
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(cost, (2000, pairs)), axis=1)
    print(json.dumps({
        "model": job.description,
        "parameters": sum(p.numel() for p in job.model.parameters()),
        "pairs": pairs,
        "guarded_ms": round(1000 * float(np.median(on)), 3),
        "unguarded_ms": round(1000 * float(np.median(off)), 3),
        "cost_percent": round(float(np.median(cost)), 2),
        "interval": [round(float(each), 2) for each in np.percentile(medians, [2.5, 97.5])],
    }, indent=2))


if __name__ == "__main__":
    main()
