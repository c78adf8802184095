"""Keys of other libraries: each hint names a key that exists."""

import dataclasses
import inspect
import re

import pytest
from pytorch_lightning import Trainer

from vit.models import VisionTransformerConfig, create_model
from vit.other_names import MODEL, NO_KEY, OPTIONS, RUN
from vit.run.config.composing import ConfigError, compose, groups_of, resolve
from vit.run.config.groups import OPTIONAL_GROUPS, options

NAMED = r"(?:recipe|trainer|callbacks|data)\.[a-z_.]*[a-z]"  # keys in a text


def hint(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(compose(list(overrides)))
    return str(caught.value)


def test_hints_name_keys_that_exist():
    assert set(RUN.values()) <= {*groups_of(["data=folder"], "train").keys, *OPTIONAL_GROUPS}
    assert set(MODEL.values()) <= {field.name for field in dataclasses.fields(VisionTransformerConfig)}


def test_names_of_other_libraries_are_not_names_of_this_one():
    leaves = {key.rpartition(".")[2] for key in groups_of(["data=folder"], "train").keys}
    fields = {field.name for field in dataclasses.fields(VisionTransformerConfig)}
    assert not leaves & RUN.keys() and not leaves & NO_KEY.keys() and not fields & MODEL.keys()


def test_every_option_of_the_trainer_of_lightning_has_a_key_or_an_explanation():
    known = groups_of(["data=folder", "logger=wandb"], "train").keys
    leaves = {key.rpartition(".")[2] for key in known}
    assert inspect.signature(Trainer).parameters.keys() <= {*leaves, *RUN, *NO_KEY}
    named = {key for text in NO_KEY.values() for key in re.findall(NAMED, text)}
    assert named and named <= known.keys()


@pytest.mark.parametrize("key", ["trainer.check_val_every_n_epoch", "val_check_interval", "profiler"])
def test_an_option_of_lightning_without_a_key(key):
    why = NO_KEY[key.removeprefix("trainer.")]
    assert hint(f"{key}=2") == f"unknown key {key}, which has no counterpart here: {why}"


@pytest.mark.parametrize(("override", "key"), [
    ("learning_rate=1", "recipe.optimizer.lr"), ("recipe.optimizer.learning_rate=1", "recipe.optimizer.lr"),
    ("trainer.max_epochs=3", "recipe.epochs"), ("gpus=2", "trainer.devices"), ("img_size=32", "data.image_size"),
    ("data.num_workers=2", "data.workers"), ("drop_path=0.1", "model.drop_path"), ("embed_dim=64", "model.dim"),
    ("pretrained=true", "init_from"), ("dataset=cifar10", "data"), ("trainer.fast_dev_run=true", "debug"),
    ("trainer.limit_train_batches=2", "debug"), ("trainer.min_epochs=2", "recipe.epochs"),
    ("auto_augment=rand-m9-mstd0.5", "augment"), ("recipe.augment.aa=rand", "augment"),
    ("device=cpu", "trainer.accelerator"), ("project=cats", "runs"), ("output=out", "run_dir"),
    ("use_wandb=true", "logger"), ("freeze=true", "finetune"), ("arch=resnet50", "model"),
    ("imgsz=64", "data.image_size"),
])
def test_a_key_of_another_library(override, key):
    assert hint(override).startswith(f"unknown key {override.partition('=')[0]}; did you mean {key}?")


@pytest.mark.parametrize(("override", "key"), [
    ("val_split=0.2", "data.fractions"), ("class_weights=true", "data.balance"), ("images=photos", "data.root"),
    ("grayscale=true", "data.preprocessing.mode"),
])
def test_a_key_of_another_library_for_photos(override, key):
    assert f"; did you mean {key}?" in hint("data=folder", override)


@pytest.mark.parametrize("key", ["image_size", "patch_size"])
def test_a_size_is_that_of_the_data(key):
    """`model.image_size` that differs from that of the data is an error."""
    assert f"; did you mean data.{key}? " in hint("experiment=finetune", "data.root=photos", f"{key}=32")


@pytest.mark.parametrize(("override", "choice"), [
    ("wandb=true", "logger=wandb"), ("lora=true", "finetune=lora"), ("ddp=true", "strategy=ddp"),
    ("cifar10=data", "data=cifar10 or experiment=cifar10"), ("randaugment=true", "augment=randaugment"),
])
def test_the_option_of_a_group_in_place_of_a_key(override, choice):
    assert hint(override) == f"unknown key {override.partition('=')[0]}; did you mean {choice}?"


@pytest.mark.parametrize("override", ["gpu=0", "trainer.gpu=0", "gpu_ids=[1]"])
def test_the_number_of_a_gpu(override):
    assert "CUDA_VISIBLE_DEVICES selects them by their numbers" in hint(override)


def test_a_key_of_another_library_in_another_data_set():
    assert "did you mean data.root?" in hint("data=folder", "data.path=photos")
    assert hint("data.dir=photos").startswith("data=digits has no key dir; add one that has it to the command: ")


@pytest.mark.parametrize(("override", "choice", "others"), [
    ("data.root=photos", "data=digits", ("data=folder", "data=imagenet")),
    ("logger.wandb=null", "logger=default", ("logger=wandb",)),
])
def test_a_key_of_another_option_of_the_group(override, choice, others):
    message, name = hint(override), override.partition("=")[0].partition(".")[2]
    assert message.startswith(f"{choice} has no key {name}; add one that has it to the command: ")
    assert all(other in message for other in others)


def test_existing_data_without_the_option_that_reads_it(tmp_path):
    """`data.root=photos`, but not `data=folder`."""
    fix = f"; for the data in {tmp_path} write data=folder data.root={tmp_path}"
    assert hint(f"data.root={tmp_path}").endswith(fix)
    assert "write data=folder" not in hint("data=spelled_numbers", f"data.root={tmp_path}")
    assert hint("data=text_table", "data.root=a b.csv") == (
        "data=text_table has no key root; did you mean 'data.path=a b.csv'?")


@pytest.mark.parametrize("node", ["callbacks.norm", "logger.lines", "recipe.augment.darken"])
def test_a_new_target_needs_a_prefix(node):
    assert hint(f"{node}._target_=mine.Part").startswith(f"{node} is a new key: write +{node}._target_=mine.Part")


@pytest.mark.parametrize(("override", "start"), [
    ("root=photos", "unknown key root; did you mean data.root=photos, with one of data="),
    ("root='my photos'", "unknown key root; did you mean 'data.root=my photos', with one of "),
    ("path=labels.csv", "unknown key path; did you mean data.path=labels.csv, with one of data="),
    ("dir=photos", "unknown key dir; did you mean data.root=photos, with one of "),
    ("repo=owner/name", "unknown key repo; did you mean data.repo=owner/name, with data=hub?"),
    ("label_separator=x", "unknown key label_separator; did you mean "),
    ("root={folder}", "unknown key root; did you mean data=folder data.root={folder}?"),
    ("root={folder}/a.csv", "unknown key root; did you mean data=table data.path={folder}/a.csv?"),
])
def test_a_key_without_its_node(tmp_path, override, start):
    """`vit audit root=photos` for `vit audit data=folder data.root=photos`."""
    (tmp_path / "a.csv").write_text("file,label\n")
    assert hint(override.format(folder=tmp_path)).startswith(start.format(folder=tmp_path))
    assert "did you mean data.root?" in hint("data=folder", "root=photos")


def test_an_option_of_a_model():
    with pytest.raises(ValueError, match="the model has no option 'num_layers'; nearest: depth$"):
        create_model("vit_tiny", num_layers=3)


def test_a_teacher_without_distillation():
    message = hint("distill.teacher=run")
    assert message == ("distill.teacher=run has no effect with distill.kind=none; add distill=soft, hard or token, or "
                       "distill.teacher=null")
    assert resolve(compose(["distill=soft", "distill.teacher=run"]))["distill"]["teacher"] == "run"


def test_an_option_of_another_library_is_answered_with_one_that_exists():
    for override, fix in OPTIONS.items():
        group, _, name = override.partition("=")
        assert name not in options(group) and hint(override) == f"{override}: no such {group}; {fix}"
        for named, option in re.findall(r"\b(strategy|logger)=([a-z]+)", fix):
            compose([f"{named}={option}"])
    compose(OPTIONS["strategy=ddp_find_unused_parameters_true"].split())
    assert "; for a network of timm, write model=timm model.name=resnet50 (" in hint("model=resnet50")
    assert "did you mean tiny?" in hint("model=tinny") and "timm, write" not in hint("model=tinny")


def test_fractions_are_one_key():
    assert "data=folder has no key val; 'data.fractions=[0.8,0.1,0.1]' sets" in hint("data=folder", "data.val=0.1")
