"""Choices that comments of conf/ and other tables list are those that the code accepts."""

import re

import pytest
import torch

from vit.data.decoding.bit_depth import RULES
from vit.data.decoding.jpeg_decoders import DECODERS
from vit.data.images.preprocessing import RESIZES, Preprocessing
from vit.data.images.resampling import LIBRARIES
from vit.data.text.token_ids import ON_LONG
from vit.data.text.tokenizers import KINDS as TOKENIZERS
from vit.evaluation.calibration.fitting import CHOICES as CALIBRATIONS
from vit.generation.length_penalty import FORMS
from vit.models.checks import CHOICES, FORMER_VALUES, TEXT_POSITIONS
from vit.models.text import TextClassifierConfig
from vit.models.zoo import KINDS
from vit.run.command_options import GROUPS
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.config.groups import options
from vit.run.config.hydra_interface import config_folder
from vit.run.config.valid_values import VALID_VALUES
from vit.run.config.value_kinds import Choice
from vit.run.jobs.selection import JOBS
from vit.run.multirun.compare_finetuning import METHODS
from vit.run.parts.recipe import LOSSES
from vit.run.records.leakage import ERROR, WARN
from vit.tasks.distillation import Distillation
from vit.training.finetuning.finetune import BATCH_NORMS, HEAD_INITS, HEAD_NORMS
from vit.training.finetuning.finetune import KINDS as TRAINABLE
from vit.training.optimization.schedule import build_schedule
from vit.training.strategy import NAMES as STRATEGIES

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
    "head_init": HEAD_INITS, "head_norm": HEAD_NORMS, "kind": TOKENIZERS,
    "length_penalty_form": FORMS, "mode": ("RGB", "L"),
    "on_bad_sample": SKIPPING, "on_empty": SKIPPING,
    "on_leakage": (ERROR, WARN), "on_long": ON_LONG, "on_unknown_split": SKIPPING,
    "pool": TextClassifierConfig.choices["pool"], "positions": TEXT_POSITIONS,
    "precision": VALID_VALUES["precision"].names, "range": RULES, "resampling": LIBRARIES,
    "resize": RESIZES, "trainable": TRAINABLE,
}
STATISTICS = {"RGB": [0.5] * 3}  # mean and deviation of each channel
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
    ("calibrate", CALIBRATIONS), ("data.decoder", DECODERS), ("data.on_long", ON_LONG),
    ("data.preprocessing.resize", RESIZES), ("data.resampling", LIBRARIES), ("data.tokenizer.kind", TOKENIZERS),
    ("task.decode.length_penalty_form", FORMS),
    ("distill.kind", options("distill")), ("finetune.batch_norm", BATCH_NORMS), ("finetune.head_init", HEAD_INITS),
    ("finetune.head_norm", HEAD_NORMS), ("finetune.trainable", TRAINABLE), ("recipe.loss.name", LOSSES),
    ("strategy.name", STRATEGIES), ("task.name", JOBS),
])
def test_checked_choices_are_those_of_the_code(key, choices):
    assert sorted(VALID_VALUES[key].names) == sorted(choices)


def test_checked_choices_of_models_are_those_of_all_kinds():
    configs = [config for config, _ in KINDS.values() if hasattr(config, "choices")]
    for key in {key for config in configs for key in {**CHOICES, **config.choices}} - {"source"}:  # set by the data
        accepted = {name for config in configs if key in config.__dataclass_fields__
                    for name in {**CHOICES, **config.choices}[key] if name}
        assert {*VALID_VALUES[f"model.{key}"].names} == accepted, key
        assert {*VALID_VALUES[f"model.{key}"].former} == {*FORMER_VALUES.get(key, ())}, key


@pytest.mark.parametrize(("key", "build"), [
    ("data.preprocessing.mode",
     lambda name: Preprocessing(8, mode=name, mean=STATISTICS.get(name, [0.5]), std=STATISTICS.get(name, [0.5]))),
    ("distill.target", lambda name: Distillation(torch.nn.Identity(), name)),
    ("recipe.schedule.name", lambda name: build_schedule(torch.optim.SGD([torch.zeros(1)], lr=1.0), name, 10, 1)),
])
def test_the_builder_accepts_the_checked_choices_alone(key, build):
    valid = VALID_VALUES[key]
    for name in (*valid.names, *valid.former):
        build(name)
    with pytest.raises(ValueError, match="one of|unknown") as caught:
        build("other")
    assert all(name in str(caught.value) for name in valid.names)


def test_choices_of_other_code_are_its_own():
    """timm reports options that its models lack, and a strategy that `_target_` names may have any name."""
    timm = resolve(compose(["model=timm", "model.name=vit_tiny_patch16_224", "model.final_norm=false"]))
    assert timm["model"]["final_norm"] is False
    own = resolve(compose(["++strategy._target_=pytorch_lightning.strategies.DDPStrategy", "strategy.name=mine"]))
    assert own["strategy"]["name"] == "mine"
    with pytest.raises(ConfigError, match="strategy.name=mine: must be one of"):
        resolve(compose(["strategy.name=mine"]))


@pytest.mark.parametrize("key", [key for key, valid in VALID_VALUES.items() if isinstance(valid, Choice)])
def test_another_choice_is_an_error_before_the_data_is_read(key):
    nearest = max(VALID_VALUES[key].names, key=len)
    with pytest.raises(ConfigError, match=f"{key}={nearest}x: must be one of .*; did you mean {nearest}"):
        resolve(compose([*(["data=spelled_numbers"] if key.startswith("task.decode.") else []), f"++{key}={nearest}x"]))


def test_losses_are_listed():
    assert list(LOSSES) in [choices for _, key, choices in listed() if key == "name"]


def test_groups_and_strategies_are_complete():
    assert set(GROUPS) == {folder.name for folder in config_folder().iterdir() if folder.is_dir()}
    assert sorted([*METHODS, "linear_probe"]) == options("finetune")  # which has a recipe of its own
