"""Every number of a config has a range, which is checked before anything else."""

import dataclasses

import pytest
import yaml

from vit.models.ensemble import EnsembleConfig
from vit.models.zoo import KINDS
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.config.groups import options
from vit.run.config.hydra_interface import config_folder
from vit.run.config.overrides import dotted_items
from vit.run.config.valid_values import MODEL_FLAGS, VALID_VALUES, valid_values
from vit.run.config.value_kinds import Boolean, Number
from vit.training.monitoring.metric_direction import METRICS, MODES

GLOBAL = ("train.yaml", "finetune", "experiment")  # whose files name keys from the top


def numbers():
    """Every (key, value) of a number, or of a list of numbers, in the files of all groups."""
    for path in sorted(config_folder().rglob("*.yaml")):
        first = path.relative_to(config_folder()).parts[0]
        content = yaml.safe_load(path.read_text()) or {}
        content.pop("defaults", None)
        prefix = "" if first in GLOBAL else "recipe.augment." if first == "augment" else f"{first}."
        for key, value in dotted_items(content, prefix):
            values = value if isinstance(value, list) else [value]
            if values and all(isinstance(each, int | float) and not isinstance(each, bool) for each in values):
                yield key, value


def test_the_table_covers_every_number_of_every_group():
    found = list(numbers())
    assert len(found) > 150
    assert [key for key, _ in found if valid_values(key) is None] == []
    assert [(key, value) for key, value in found if not valid_values(key).accepts(value)] == []


@pytest.mark.parametrize(("group", "names"), [(group, options(group)) for group in ("recipe", "experiment", "task")])
def test_the_options_of_the_groups_are_within_the_ranges(group, names):
    for name in names:
        required = ["data.root=x"] if group == "experiment" and name in ("captcha", "finetune", "multi30k",
                                                                         "multi30k_full") else []
        resolve(compose([f"{group}={name}", *required]))


@pytest.mark.parametrize(("override", "range"), [
    ("recipe.clip=0", "a number, above 0, or null"),
    ("recipe.clip=-1", "a number, above 0, or null"),
    ("recipe.clip=nan", "a number, above 0, or null"),
    ("recipe.epochs=ten", "a whole number, 1 or more, or auto"),
    ("recipe.epochs=1.5", "a whole number, 1 or more"),
    ("recipe.epochs=true", "a whole number, 1 or more, or auto"),
    ("recipe.epochs=null", "a whole number, 1 or more"),
    ("recipe.optimizer.lr=-0.1", "a number, 0 or more"),
    ("recipe.optimizer.lr=inf", "a number, 0 or more"),
    ("recipe.optimizer.weight_decay=-1", "a number, 0 or more"),
    ("+recipe.optimizer.options.betas=[0.9,1.0]", "a list of numbers, 0 or more, below 1"),
    ("model.dropout=1", "a number, 0 or more, below 1, or null"),
    ("model.drop_path=-0.1", "a number, 0 or more, below 1, or null"),
    ("recipe.loss.label_smoothing=1", "a number, 0 or more, below 1"),
    ("recipe.ema=1", "a number, above 0, below 1, or auto or null"),
    ("recipe.ema=on", "a number"),
    ("recipe.schedule.warmup=-5", "a number, 0 or more"),
    ("recipe.batch_size=0", "a whole number, 1 or more, or auto or null"),
    ("+data.max_len=null", "a whole number, 2 or more"),
    ("data.workers=-1", "a whole number, 0 or more, or auto"),
    ("data.image_size=big", "a whole number, 1 or more, or a list of 2 of them or null, such as 8"),
    ("recipe.epochs='10'", "a whole number, 1 or more, or auto, such as 100; '10' is a string, leave out its quotes"),
    ("trainer.devices=all", "a whole number, -1 or more, or auto, such as 1"),
    ("trainer.devices=[1]", "a whole number, -1 or more, or auto; the environment variable CUDA_VISIBLE_DEVICES"),
    ("trainer.max_time=soon", "a time such as 7m, 1h30m, 90s, 2d or 00:01:30:00 (days:hours:minutes:seconds)"),
    ("trainer.max_time=0s", "a time such as 7m"),
    ("data.image_size=[8,0]", "a whole number, 1 or more, or a list of 2 of them or null"),
    ("callbacks.patience=0", "a whole number, 1 or more, or null"),
    ("callbacks.every_steps=0", "a whole number, 1 or more, or null"),
    ("recipe.mixup={mixup: -1, cutmix: 1}", "a number, 0 or more"),
    ("recipe.augment.erase={_target_: vit.data.RandomErasing, p: 2}", "a number, 0 or more, 1 or less"),
    ("recipe.augment.shift={_target_: vit.data.PadCrop, reflect: no}", "true or false"),
    ("trainer.log_every_n_steps=0", "a whole number, 1 or more"),
    ("data.image_size=[8,null]", "a whole number, 1 or more, or a list of 2 of them or null"),
    ("recipe.epochs=[1,2]", "a whole number, 1 or more, or auto"),
    ("recipe.accumulate=[]", "a whole number, 1 or more"),
    ("recipe.repeats=0", "a whole number, 1 or more"),
    ("recipe.repeats=1.5", "a whole number, 1 or more"),
    ("trainer.timeout=0", "a number, above 0, or null"),
    ("trainer.num_nodes={}", "a whole number, 1 or more"),
    ("precision={}", "one of auto, 32-true"),
    ("name=null", "a string"),
    ("name=[a]", "a string"),
    ("runs=null", "a string"),
    ("runs=", "a string that is not empty"),
    ("name=", "a string that is not empty"),
    ("run_dir=", "one path or name, not empty (a variable of the shell may not be set)"),
    ("resume=", "one path or name, not empty"),
    ("init_from=", "one path or name, not empty"),
    ("data.corrections=", "one path or name, not empty"),
    ("data._target_=3", "a string"),
    ("recipe.optimizer.name=null", "a string"),
    ("recipe.loss.name=1", "one of cross_entropy, bce"),
    ("recipe.optimizer=null", "a node with keys"),
    ("recipe.schedule=null", "a node with keys"),
    ("recipe.loss=null", "a node with keys"),
    ("recipe.optimizer.options=text", "a node with keys, or null"),
    ("data.preprocessing=null", "a node with keys"),
    ("recipe.crop=3", "a node with keys, or null"),
    ("+data.tokenizer=null", "a node with keys"),
    ("debug=null", "true or false, such as false"),
    ("compare=3", "a node with keys, or null"),
    ("compare={a: 3}", "a list of overrides, such as [model=small]"),
    ("recipe.drop_last=abc", "true, false or auto"),
    ("recipe.augment.hflip=true", "null, or a node with the _target_ of a step, such as vit.data.RandomErasing"),
    ("recipe.augment.affine._target_=3", "null, or a node with the _target_ of a step"),
    ("recipe.progressive.patch_drop=0.5", "a list of 2 numbers, 0 or more, below 1, or null"),
    ("recipe.progressive.image_size=[4]", "a list of 2 whole numbers, 1 or more, or null"),
    ("+recipe.optimizer.options.betas=0.9", "a list of numbers, 0 or more, below 1"),
    ("finetune.lora=true", "a node with keys, or null"),
    ("finetune.always_trainable=head", "a list of names, or null"),
    ("finetune.always_trainable=[true]", "a list of names, or null"),
    ("model.name=[1,2]", "a string that is not empty, or null"),
    ("model.residual=abc", "true or false"),
    ("+model.layer_scale=abc", "a number, above 0, or null"),
    ("data.fold=6/5", "k/n with k in 1..n"),
    ("data.fold=1/1", "k/n with k in 1..n"),
    ("data.fold=0.2", "k/n with k in 1..n"),
    ("data.preprocessing.mean=0.5", "a list of numbers, or null"),
    ("data.preprocessing.range=all", "a list of 2 numbers, or auto or full or percentile or null"),
    ("data.preprocessing.interpolation=cubic", "one of nearest, box, bilinear, bicubic, lanczos; did you mean bicubic"),
    ("+data.max_len=1", "a whole number, 2 or more"),
])
def test_an_invalid_number_is_an_error_with_key_and_range(override, range):
    with pytest.raises(ConfigError) as caught:
        resolve(compose([override]))
    key = override.lstrip("+").partition("={")[0].partition("=")[0].removesuffix("._target_")
    assert str(caught.value).startswith(key) and f"must be {range}" in str(caught.value)


@pytest.mark.parametrize("override", [
    "recipe.clip=null", "recipe.clip=1e-3", "recipe.optimizer.lr=0", "recipe.optimizer.lr=1e10", "data.workers=auto",
    "data.image_size=[8,16]", "recipe.schedule.warmup=100", "trainer.devices=auto", "recipe.ema=null", "seed=-1",
    "data.split_seed=7", "recipe.crop=null", "recipe.mixup=null", "recipe.augment=null", "recipe.progressive=null",
])
def test_valid_values_are_accepted(override):
    resolve(compose([override]))


def test_a_name_or_path_of_digits_is_a_string():
    config = resolve(compose(["data.name=2026", "runs=7", "data.cache_dir=8"]))
    assert (config["name"], config["runs"], config["data"]["cache_dir"]) == ("2026", "7", "8")
    assert resolve(compose(["name='~x'"]))["name"] == "~x"


@pytest.mark.parametrize("override", ["strategy=null", "logger=[]", "model=3", "experiment=null"])
def test_a_group_without_an_option_is_an_error_with_the_options(override):
    group = override.partition("=")[0]
    with pytest.raises(ConfigError, match=f"{group}=.*: must be one of .*{options(group)[-1]}; leave it out"):
        compose([override])


def test_the_runs_of_a_comparison_may_add_the_teacher():
    runs = "compare={a: ['distill.teacher=x'], b: ['distill.teacher=y']}"
    assert resolve(compose(["distill=soft", runs]))["distill"]["kind"] == "soft"
    with pytest.raises(ConfigError, match="distill=soft needs a teacher"):
        resolve(compose(["distill=soft"]))


def test_the_table_names_no_key_that_does_not_exist():
    files = "\n".join(path.read_text() for path in config_folder().rglob("*.yaml"))
    optional = {"switch", "momentum"}  # of classes that are named in a config
    optional |= {field.name for config, _ in KINDS.values() for field in dataclasses.fields(config)}
    optional |= {"block", "final_norm", "rotary_coordinates", "rotary_pairs"}  # of models; tests/run/test_choices.py
    names = {key.rpartition(".")[2] for key in VALID_VALUES if "*" not in key} - optional
    assert [name for name in sorted(names) if f"{name}:" not in files] == []


@pytest.mark.parametrize(("number", "text"), [
    (Number(0, 1, above=True, below=True), "a number, above 0, below 1"),
    (Number(1, whole=True, null=True, names=("auto",)), "a whole number, 1 or more, or auto or null"),
    (Number(), "a number"),
])
def test_a_range_in_a_sentence(number, text):
    assert str(number) == text


def test_interpolations_are_checked_when_they_are_resolved(monkeypatch):
    monkeypatch.setenv("VIT_NUMBER", "5")
    monkeypatch.setenv("VIT_FLAG", "false")
    config = resolve(compose(["recipe.epochs=${seed}", 'seed="${oc.decode:${oc.env:VIT_NUMBER}}"', "report=${debug}",
                              "compile=${oc.env:NONE,auto}", "recipe.mixup=${recipe.crop}"]))
    assert (config["recipe"]["epochs"], config["seed"], config["report"], config["compile"]) == (5, 5, False, "auto")
    for overrides, message in (
        (["recipe.epochs=${name}"], "recipe.epochs=digits: must be a whole number, 1 or more, or auto$"),
        (["seed=null"], r"seed=null: must be a whole number of 64 bits$"),
        (["seed=${oc.env:VIT_NUMBER}"], r"seed=5: must be a whole number.*; '5' is a string; \${oc.decode:"),
        (["report=${oc.env:VIT_FLAG}"], "report=false: must be true or false; 'false' is a string"),
        (["compile=${oc.env:VIT_FLAG}"], "compile=false: must be true, false or auto; 'false' is a string"),
        (["data.tokenizer=${seed}", "data=corpus"], "data.tokenizer=0: must be a node"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolve(compose(overrides))


def test_every_option_of_a_model_that_is_true_or_false_is_checked_early():
    found = {field.name for config, _ in KINDS.values() for field in dataclasses.fields(config)
             if field.type is bool and config is not EnsembleConfig}
    assert sorted(found) == sorted(MODEL_FLAGS)


@pytest.mark.parametrize(("overrides", "message"), [
    (["recipe.average_epochs=3"], "recipe.ema and recipe.average_epochs are two ways to average"),
    (["strategy=ddp", "+strategy.options.static_graph=true", "recipe.accumulate=2"],
     "strategy.options.static_graph=true with recipe.accumulate=2: DDP cannot record"),
    (["+strategy.find_unused=true"], "strategy.find_unused=true: the strategy has no such key; write strategy.options"),
    (["recipe.repeats=9", "recipe.batch_size=8"], "recipe.repeats=9 is larger than recipe.batch_size=8, but"),
    (["finetune.name=head"], "finetune.name=head only names the method; write finetune=head"),
    (["callbacks.mode=min"], r"callbacks.mode=min: val/accuracy is best where it is highest \(max\)"),
])
def test_two_values_that_do_not_fit_together(overrides, message):
    with pytest.raises(ConfigError, match=message):
        resolve(compose(overrides))


def test_booleans_of_a_file_may_be_1_0_or_null():
    assert all(Boolean().accepts(value) for value in (True, False, 1, 0, None))
    assert not any(Boolean().accepts(value) for value in ("true", "auto", 2, [], {}))


@pytest.mark.parametrize(("override", "message"), [
    ("data.image_size=[8,8,3]", "must be a whole number, 1 or more, or a list of 2 of them"),
    ("data.patch_size=[4]", "must be a whole number, 1 or more, or a list of 2 of them"),
    ("callbacks.monitor=val/bleu", "must be one of val/loss, val/accuracy, .*, train/loss for task=classification"),
])
def test_sizes_and_metrics_are_checked_without_the_data(override, message):
    with pytest.raises(ConfigError, match=f"{override.partition('=')[0]}=.*: {message}"):
        resolve(compose([override]))


def test_the_metrics_of_each_task_have_a_direction_and_include_its_default():
    assert {name for names in METRICS.values() for name in names} == MODES.keys()
    for task, data in (("classification", "digits"), ("text_classification", "text_table"), ("masked_text", "corpus"),
                       ("seq2seq", "spelled_numbers")):
        config = resolve(compose([f"data={data}"]))
        assert config["task"]["name"] == task and config["callbacks"]["monitor"][4:] in METRICS[task]
