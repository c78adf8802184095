"""Processes that read different copies of the data are refused before the first step."""

import socket

import pytest
import torch

from tests.run.conftest import QUICK, SMALL, start, write_photos
from vit.run.config.composing import ConfigError
from vit.run.processes.same_samples import check_values, digest, step_values


def two_ranks(folder, *commands):
    """(standard output, standard error) of both ranks of a run that fails, each with overrides of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = [start(overrides, folder, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE="2", RANK=str(rank),
                   LOCAL_RANK=str(rank)) for rank, overrides in enumerate(commands)]
    printed = [rank.communicate(timeout=120) for rank in ranks]
    assert all(rank.returncode in (1, 2) for rank in ranks), printed
    return printed


def test_each_name_each_label_and_their_order_count():
    rows = {"train": [("a", "x"), ("b", "y")], "val": [("c", "x")]}
    others = [
        {**rows, "train": [("b", "y"), ("a", "x")]}, {**rows, "train": [("a", "x"), ("b", "x")]},
        {**rows, "train": [("a", "x"), ("d", "y")]}, {"train": rows["train"][:1], "val": rows["val"]},
        {"train": rows["train"], "test": rows["val"]}, {**rows, "train": [("ax", ""), ("b", "y")]},
    ]
    assert digest(dict(reversed(rows.items()))) == digest(rows)
    assert len({digest(each) for each in [rows, *others]}) == 7
    torch.tensor([digest({**rows, "train": [("a", str(i))]}) for i in range(50)])  # all fit into int64


def test_a_machine_with_other_files_is_an_error_in_all_processes(tmp_path):
    """Each process divided its own list, so that samples were left out or trained twice without any message."""
    write_photos(tmp_path / "one", {"cat": 20, "dog": 21})
    write_photos(tmp_path / "two", {"cat": 20, "dog": 20})
    overrides = ["data=folder", *SMALL, *QUICK, "trainer.accelerator=cpu", "strategy=ddp", "trainer.devices=2",
                 "trainer.timeout=60", "run_dir=run"]
    both = two_ranks(tmp_path, *([*overrides, f"data.root={root}"] for root in ("one", "two")))
    for out, err in both:
        assert "rank 1 has other samples than rank 0, " in err, out + err
    assert not list((tmp_path / "run" / "checkpoints").glob("*.ckpt"))


@pytest.mark.parametrize("name", ["caf\udce9.png", "\u00e9.png"])
def test_names_that_are_not_unicode_count_too(name):
    assert digest({"train": [(name, "x")]}) != digest({"train": [("e.png", "x")]})


@pytest.mark.parametrize(("override", "other"), [
    ("recipe.accumulate=2", "recipe.accumulate=1"),  # one process waited for the other in each epoch's last steps
    ("recipe.optimizer.lr=0.1", "recipe.optimizer.lr=0.001"),  # each process had weights of its own
])
def test_a_process_with_other_steps_is_an_error_in_all_processes(tmp_path, override, other):
    overrides = [*QUICK, "recipe.batch_size=64", "trainer.accelerator=cpu", "strategy=ddp",
                 "trainer.devices=2", "trainer.timeout=60", "run_dir=run"]
    for out, err in two_ranks(tmp_path, [*overrides, other], [*overrides, override]):
        assert f"rank 1 has {override}, rank 0 {other}; all processes of a run need the same command" in err, out + err


def test_a_value_that_determines_the_steps_is_compared_and_another_seed_is_a_warning(caplog):
    """With other batches one process waited for the other until trainer.timeout."""
    config = {"seed": 0, "debug": False, "data": {"root": "a", "balance": "none"}, "callbacks": {"patience": None},
              "recipe": {"batch_size": 64, "clip": 1.0, "repeats": 1, "drop_last": True, "augment": {"flip": None}}}
    values = step_values(config)
    check_values(1, step_values({**config, "data": {"root": "b", "balance": "none"}}), values)
    check_values(1, step_values({**config, "recipe": {**config["recipe"], "augment": {"flip": 0.5}}}), values)
    assert not caplog.records
    for change, key in (
        ({"recipe": {**config["recipe"], "batch_size": 32}}, "recipe.batch_size=32, rank 0 recipe.batch_size=64"),
        ({"recipe": {**config["recipe"], "drop_last": False}}, "recipe.drop_last=false, rank 0 recipe.drop_last=true"),
        ({"recipe": {**config["recipe"], "repeats": 3}}, "recipe.repeats=3, rank 0 recipe.repeats=1"),
        ({"data": {"balance": "loss"}}, "data.balance=loss, rank 0 data.balance=none"),
        ({"callbacks": {"patience": 3}}, "callbacks.patience=3, rank 0 callbacks.patience=null"),
        ({"debug": True}, "debug=true, rank 0 debug=false"),
    ):
        with pytest.raises(ConfigError, match=rf"rank 3 has {key}; all processes of a run need the same command"):
            check_values(3, step_values({**config, **change}), values)
    check_values(1, step_values({**config, "seed": 1}), values)
    assert "rank 1 has seed=1, rank 0 seed=0: the ranks order the samples differently" in caplog.text
