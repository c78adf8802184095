"""A tiny Lightning run whose data order, randomness and weights are visible: for the tests, and as a program."""

import argparse
import json
import os
import time
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch import nn

from vit.training import (
    AtomicCheckpointIO,
    AverageWeights,
    Checkpoints,
    FiniteLoss,
    FollowEpoch,
    GracefulStop,
    ProgressBar,
    ThroughputMeter,
    build_optimizer,
    build_schedule,
    build_strategy,
    clip_gradients,
    quiet_lightning,
    seed_step,
    shard,
)

BATCHES, CLASSES, DIM = 6, 3, 8


class Loader:
    """Batch b of epoch e is a function of (e, b) and, with several processes, each has its own rows of it."""

    def __init__(self, rank=0, world=1, batches=BATCHES, rows=8):
        self.rank, self.world, self.batches, self.rows = rank, world, batches, rows
        self.epoch = self.start = 0

    def __len__(self):
        return self.batches

    def __iter__(self):
        for index in range(self.start, self.batches):
            generator = torch.Generator().manual_seed(1000 * self.epoch + index)
            x, y = (
                torch.randn(self.rows, 4, generator=generator),
                torch.randint(CLASSES, (self.rows,), generator=generator),
            )
            mine = slice(self.rank, None, self.world)
            yield {"image": x[mine], "label": y[mine], "id": torch.tensor([self.epoch, index])}


class Data(pl.LightningDataModule):
    def train_dataloader(self):
        return Loader(self.trainer.global_rank, self.trainer.world_size)

    def val_dataloader(self):
        return Loader(self.trainer.global_rank, self.trainer.world_size, batches=2)


class Net(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.embed = nn.Linear(4, DIM)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, DIM), nn.GELU(), nn.Dropout(dropout)) for _ in range(2)
        )
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Task(pl.LightningModule):
    def __init__(self, dropout=0.2, poison_at=None):
        super().__init__()
        torch.manual_seed(0)
        self.model, self.poison_at, self.log_lines = Net(dropout), poison_at, []

    def configure_model(self):
        if self.device_mesh is not None:
            shard(self.model, self.device_mesh["data_parallel"])

    def training_step(self, batch, batch_idx):
        seed_step(0, self.global_step, batch_idx % self.trainer.accumulate_grad_batches, self.global_rank)
        loss = nn.functional.cross_entropy(self.model(batch["image"]), batch["label"])
        if self.poison_at == self.global_step:
            loss = loss * float("nan")
        epoch, index = batch["id"].tolist()
        self.log_lines.append(("train", epoch, index, self.global_step, float(loss.detach())))
        return loss

    def validation_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.model(batch["image"]), batch["label"])
        self.log("val/loss", loss, sync_dist=True, batch_size=len(batch["label"]))
        if not self.trainer.sanity_checking:
            self.log_lines.append(("val", self.current_epoch, batch_idx, self.global_step, float(loss)))

    def configure_optimizers(self):
        optimizer = build_optimizer(self.model, "adamw", lr=1e-2)
        schedule = build_schedule(optimizer, "cosine", int(self.trainer.estimated_stepping_batches), 2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        clip_gradients(self.model.parameters(), 1.0)


def trainer(
    folder,
    callbacks=(),
    strategy="auto",
    devices=1,
    accumulate=1,
    every_n_steps=None,
    epochs=3,
    precision="32-true",
    late=None,
    **options,
):
    quiet_lightning()
    return pl.Trainer(
        max_epochs=epochs,
        accumulate_grad_batches=accumulate,
        accelerator="cpu",
        devices=devices,
        precision=precision,
        strategy=build_strategy(strategy, "cpu", devices),
        plugins=[AtomicCheckpointIO()],
        logger=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=folder,
        num_sanity_val_steps=0,
        callbacks=[
            *callbacks,
            FollowEpoch(),
            FiniteLoss(late),
            AverageWeights(0.9),
            GracefulStop(),
            ThroughputMeter(),
            ProgressBar(),
            Checkpoints(folder, "val/loss", "min", every_n_steps),
        ],
        **options,
    )


def outcome(task, run):
    """Everything a resumed run must share with an uninterrupted one, bit for bit."""
    average = next(c for c in run.callbacks if isinstance(c, AverageWeights)).average.state_dict()
    optimizer = run.optimizers[0].state_dict()["state"]
    tensors = [
        *task.model.state_dict().values(),
        *average.values(),
        *(value for state in optimizer.values() for value in state.values()),
    ]
    return [tensor.clone() for tensor in tensors]


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--resume", default=None)
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds per step, to be interrupted in")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)

    class Slow(pl.Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            if batch_idx == 2:
                line = f"started {trainer.global_rank} {os.getpid()}\n"
                os.write(1, line.encode())  # in one piece: the other process writes to the same pipe
            time.sleep(arguments.slow)

    run = trainer(
        arguments.folder,
        [Slow()],
        arguments.strategy,
        arguments.devices,
        epochs=arguments.epochs,
        precision=arguments.precision,
    )
    task = Task(arguments.dropout)
    run.fit(task, datamodule=Data(), ckpt_path=arguments.resume)
    rank = os.environ.get("LOCAL_RANK", "0")
    (arguments.folder / f"log{rank}.json").write_text(json.dumps(task.log_lines))


if __name__ == "__main__":
    main()
