"""NaN, infinity and divergence stop a run, in every process, before they reach the weights."""

import itertools
import json
import math
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import torch

from tests.faults.promise import Case, Promise
from tests.forking import forks

VALUES = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "1e30": 1e30}
TARGETS = ("loss", "gradient", "parameter", "pixels")
STEPS = {"first": 1, "middle": 5, "last": 8}  # of 4 in each of 2 epochs
OVERRIDES = ["data=digits", "model.dim=16", "model.depth=1", "recipe.epochs=2", "recipe.batch_size=256",
             "recipe.drop_last=true", "recipe.ema=null", "precision=32-true", "logger=csv",
             "trainer.accelerator=cpu", "run_dir=run"]


class Fault:
    """One non-finite or huge number in one tensor of one optimizer step of one process."""

    def __init__(self, target: str, value: float, step: int, rank: int, number: int):
        self.target, self.value, self.step, self.rank, self.number = target, value, step, rank, number
        self.task, self.weights, self.names = None, [], []

    def install(self) -> "Fault":
        """Installs the fault for the rest of this process, a fork."""
        from vit.data import Preprocessing
        from vit.tasks import Classification

        self.active, original, normalize = False, Classification.training_loss, Preprocessing.normalize

        def training_loss(task, batch, step, micro):
            due = step == self.step - 1
            self.active = due and task.global_rank == self.rank
            if due:
                self.before_the_step(task, batch)
            loss = original(task, batch, step, micro)
            return loss + self.value if self.active and self.target == "loss" else loss

        def normalized(preprocessing, images):
            pixels = normalize(preprocessing, images)
            if self.active and self.target == "pixels":
                pixels[0, 0, 0, 0] = self.value
            return pixels

        Classification.training_loss, Preprocessing.normalize = training_loss, normalized
        return self

    def before_the_step(self, task, batch) -> None:
        parameters = list(task.model.parameters())
        chosen = parameters[self.number % len(parameters)]
        if self.active and self.target == "parameter":
            chosen.detach().view(-1)[0] = self.value
        if self.active and self.target == "gradient":
            chosen.register_hook(lambda gradient: torch.full_like(gradient, self.value))
        self.task, self.weights = task, [parameter.detach().clone() for parameter in parameters]
        self.names = task.trainer.train_dataloader.names(batch["index"].tolist())

    def unchanged(self) -> bool:
        """Whether the step of the fault left the weights unchanged."""
        return all(torch.equal(ours.view(torch.uint8), theirs.detach().view(torch.uint8))
                   for ours, theirs in zip(self.weights, self.task.model.parameters(), strict=True))


def train(overrides: list[str], *fault: object) -> int:
    """A run with a fault; saves its observations in `fault.RANK.json`."""
    from vit.run import main

    torch.set_num_threads(1)
    injected = Fault(*fault).install()
    code = main(overrides)
    rank = os.environ.get("RANK", "0")
    Path(f"fault.{rank}.json").write_text(json.dumps({"names": injected.names, "unchanged": injected.unchanged()}))
    return code


def stopped(folder: Path, target: str, value: float, step: int, rank: int, world: int, number: int) -> None:
    overrides = [*OVERRIDES, f"strategy={'ddp' if world > 1 else 'single'}", f"trainer.devices={world}"]
    arguments = (overrides, target, value, step, rank, number)
    common = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(),
              "GROUP_RANK": 0, "TORCHELASTIC_RUN_ID": "faults"}
    environments = [{key: str(v) for key, v in (common | {"RANK": r, "LOCAL_RANK": r}).items()} for r in range(world)]
    pids = [forks().start("tests.faults.nonfinite:train", *arguments, folder=folder,
                          environment=environment if world > 1 else {}) for environment in environments]
    ends = [forks().wait(pid) for pid in pids]
    output = "\n".join(end.output for end in ends)
    assert all(end.code not in (0, None) for end in ends), f"exit codes {[end.code for end in ends]}:\n{output}"
    assert f"at optimizer step {step} (epoch {1 + (step - 1) // 4}" in output, output
    assert "stopped before the update" in output, output
    found = [json.loads((folder / f"fault.{r}.json").read_text()) for r in range(world)]
    assert all(each["unchanged"] for each in found), "the weights were updated"
    log = (folder / "run" / "log.txt").read_text()
    assert all(name in log for name in found[rank]["names"]) and found[rank]["names"], log[-3000:]
    assert any(name in output for each in found for name in each["names"][:8])
    if step > 4:
        saved = torch.load(folder / "run" / "checkpoints" / "last.ckpt", weights_only=True)
        assert saved["global_step"] == 4 and all(t.isfinite().all() for t in saved["state_dict"].values())


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


QUICK = {("loss", "nan", "middle", 0, 1), ("gradient", "1e30", "last", 0, 1), ("parameter", "-inf", "first", 0, 1),
         ("pixels", "1e30", "middle", 0, 1), ("loss", "inf", "middle", 1, 2)}


def cases() -> Iterator[Case]:
    processes = [(0, 1), (0, 2), (1, 2)]
    for number, (target, value, step, (rank, world)) in enumerate(itertools.product(TARGETS, VALUES, STEPS, processes)):
        where = f"process {rank} of {world}" if world > 1 else "one process"
        yield Case(
            f"{value} in the {target}, {step} step, {where}",
            lambda folder, arguments=(target, VALUES[value], STEPS[step], rank, world, number):
                stopped(folder, *arguments),
            quick=(target, value, step, rank, world) in QUICK,
        )


PROMISE = Promise("NaN, infinity and divergence stop a run before the update, in every process", cases)
