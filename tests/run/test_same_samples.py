"""Processes that read different copies of the data are refused before the first step."""

import socket

import pytest
import torch

from tests.run.conftest import QUICK, SMALL, start, write_photos
from vit.run.config.composing import ConfigError
from vit.run.parts.same_samples import SameSamples, check_numbers, digest


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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    write_photos(tmp_path / "one", {"cat": 20, "dog": 21})
    write_photos(tmp_path / "two", {"cat": 20, "dog": 20})
    overrides = ["data=folder", *SMALL, *QUICK, "trainer.accelerator=cpu", "strategy=ddp", "trainer.devices=2",
                 "trainer.timeout=60", "run_dir=run"]
    ranks = [start([*overrides, f"data.root={root}"], tmp_path, MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                   WORLD_SIZE="2", RANK=str(rank), LOCAL_RANK=str(rank)) for rank, root in enumerate(["one", "two"])]
    for rank in ranks:
        out, err = rank.communicate(timeout=120)
        assert rank.returncode == 1 and "rank 1 has other samples than rank 0, " in err, out + err
    assert not list((tmp_path / "run" / "checkpoints").glob("*.ckpt"))


@pytest.mark.parametrize("name", ["caf\udce9.png", "\u00e9.png"])
def test_names_that_are_not_unicode_count_too(name):
    assert digest({"train": [(name, "x")]}) != digest({"train": [("e.png", "x")]})


def test_a_process_with_another_batch_size_is_an_error_and_one_with_another_seed_a_warning(caplog):
    """With other batches one process waited for the other until trainer.timeout."""
    check_numbers(1, [0, 64, 0, 5], [0, 64, 0, 5])
    assert not caplog.records
    with pytest.raises(ConfigError, match=r"rank 3 has recipe.batch_size=32, rank 0 recipe.batch_size=64; all "):
        check_numbers(3, [0, 32, 0, 5], [0, 64, 0, 5])
    check_numbers(1, [1, 64, 0, 5], [0, 64, 0, 5])
    assert "rank 1 has seed=1, rank 0 seed=0: the ranks order the samples differently" in caplog.text


def test_a_number_that_a_config_does_not_have_is_0():
    config = {"seed": 3, "recipe": {"batch_size": 8, "batch_tokens": None}}
    assert SameSamples({}, config).numbers == [3, 8, 0, 0] and SameSamples({}, {}).numbers == [0] * 4
