"""Choices that comments of conf/ and other tables list are those that the code accepts."""

import re

import pytest
import torch

from vit.data.decoding.bit_depth import RULES
from vit.data.decoding.jpeg_decoders import DECODERS
from vit.data.images.preprocessing import RESIZES
from vit.data.images.resampling import LIBRARIES
from vit.data.text.token_ids import ON_LONG
from vit.data.text.tokenizers import KINDS as TOKENIZERS
from vit.evaluation.calibration.fitting import CHOICES as CALIBRATIONS
from vit.models.checks import CHOICES, TEXT_POSITIONS
from vit.models.text import TextClassifierConfig
from vit.run.command import GROUPS
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.config.groups import options
from vit.run.config.hydra_interface import config_folder
from vit.run.config.valid_values import VALID_VALUES
from vit.run.config.value_kinds import Choice
from vit.run.jobs.selection import JOBS
from vit.run.multirun.compare_finetuning import METHODS
from vit.run.parts.recipe import LOSSES
from vit.run.records.leakage import ERROR, WARN
from vit.training.finetuning.finetune import BATCH_NORMS, HEAD_INITS
from vit.training.finetuning.finetune import KINDS as TRAINABLE
from vit.training.optimization.schedule import build_schedule

LISTED = re.compile(r"^\s*(?:- )?(\w+): .*#(?: |.*: )(\w\S*(?: \([^)]*\))?(?: \| \w\S*(?: \([^)]*\))?)+)")
SKIPPING = ("error", "skip")
MODEL = ("attention", "decoder_mixer", "heads", "mixer", "norm", "projection", "sincos_channels")
TABLES = {
    **{key: [choice for choice in CHOICES[key] if choice] for key in MODEL},
    "augment": options("augment"), "balance": VALID_VALUES["data.balance"].names, "batch_norm": BATCH_NORMS,
    "cache": VALID_VALUES["data.cache"].names,
    "calibrate": CALIBRATIONS, "compile": ("false", "true", "auto"),
    "compile_mode": VALID_VALUES["compile_mode"].names, "decoder": DECODERS, "distill": options("distill"),
    "finetune": options("finetune"),
    "head_init": HEAD_INITS, "kind": TOKENIZERS, "mode": ("RGB", "L"), "on_bad_sample": SKIPPING, "on_empty": SKIPPING,
    "on_leakage": (ERROR, WARN), "on_long": ON_LONG, "on_unknown_split": SKIPPING,
    "pool": TextClassifierConfig.choices["pool"], "positions": TEXT_POSITIONS,
    "precision": VALID_VALUES["precision"].names, "range": RULES, "resampling": LIBRARIES,
    "resize": RESIZES, "trainable": TRAINABLE,
}
NOT_CHOICES = {"resume", "train"}  # a path, names of files


def listed():
    """(file, key, choices) of every comment of the form `KEY: VALUE  # A | B | C`."""
    for file in sorted(config_folder().rglob("*.yaml")):
        for line in file.read_text(encoding="utf-8").splitlines():
            if " | " in line and (found := LISTED.match(line)) and found[1] not in NOT_CHOICES:
                choices = re.sub(r" \([^)]*\)", "", found[2].partition(" | [")[0]).split(" | ")
                yield file.name, found[1], [choice.rstrip(":;,") for choice in choices]


def test_comments_list_what_the_code_accepts():
    found = list(listed())
    assert {key for _, key, _ in found} == {*TABLES, "name"}
    for file, key, choices in found:
        if key != "name":
            assert sorted(choices) == sorted(TABLES[key]), (file, key)


@pytest.mark.parametrize("name", sorted({choice for _, key, choices in listed() if key == "name"
                                         for choice in choices} - set(LOSSES)))
def test_listed_schedules_exist(name):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    assert build_schedule(optimizer, name, total_steps=10, warmup_steps=1)


@pytest.mark.parametrize(("key", "choices"), [
    ("calibrate", CALIBRATIONS), ("data.decoder", DECODERS), ("data.on_bad_sample", SKIPPING),
    ("data.on_long", ON_LONG), ("data.resampling", LIBRARIES), ("distill.kind", options("distill")),
    ("task.name", JOBS),
])
def test_checked_choices_are_those_of_the_code(key, choices):
    assert sorted(VALID_VALUES[key].names) == sorted(choices)


@pytest.mark.parametrize("key", [key for key, valid in VALID_VALUES.items() if isinstance(valid, Choice)])
def test_another_choice_is_an_error_before_the_data_is_read(key):
    nearest = VALID_VALUES[key].names[-1]
    with pytest.raises(ConfigError, match=f"{key}={nearest}x: must be one of .*; did you mean {nearest}"):
        resolve(compose([f"++{key}={nearest}x"]))


def test_losses_are_listed():
    assert list(LOSSES) in [choices for _, key, choices in listed() if key == "name"]


def test_groups_and_strategies_are_complete():
    assert set(GROUPS) == {folder.name for folder in config_folder().iterdir() if folder.is_dir()}
    assert sorted(METHODS) == options("finetune")
