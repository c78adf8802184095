"""Values without effect: each rule of the table is reported where it holds and only there, and it is true: runs with
and without the value end with the same bits.
"""

import fnmatch
import inspect
import re
from dataclasses import fields

import numpy as np
import pytest
import torch
import yaml

import vit
from tests.blank_pictures import use_blank_pictures
from tests.run.conftest import run, table, write_photos, write_questions, write_stories
from tests.run.test_resume import StopAfter
from vit.data import Mixup
from vit.models.config import VisionTransformerConfig
from vit.models.mae import MaskedImageConfig
from vit.models.masked import MaskedTextConfig
from vit.models.seq2seq import EncoderDecoderConfig, ImageToTextConfig
from vit.models.text import TextClassifierConfig
from vit.run.config.composing import compose, resolve
from vit.run.config.groups import options
from vit.run.config.hydra_interface import config_folder
from vit.run.config.overrides import dotted_items, override_items
from vit.run.config.without_effect import MODEL_DEFAULTS, POSITIONS, RULES, without_effect
from vit.run.parts.data_source import build_source

EFFECT = re.compile(r"(\S+?)=.* has no effect")
CONFIGS = {"classification": VisionTransformerConfig, "text_classification": TextClassifierConfig,
           "masked_image": MaskedImageConfig, "masked_text": MaskedTextConfig, "seq2seq": EncoderDecoderConfig}

RUN = ["recipe.epochs=1", "precision=32-true", "logger=csv", "trainer.accelerator=cpu"]
TINY = ["model.dim=16", "model.depth=1"]
FOLDER = ["data=folder", "data.root=x"]
DIGITS = [*TINY, "recipe.batch_size=256"]
OTHERS = [*DIGITS, "++model.qkv_bias=false", "++model.positions=sincos", "model.class_token=true", "model.pool=class",
          "recipe.schedule.name=constant", "recipe.optimizer.name=sgd", "callbacks.monitor=val/loss",
          "recipe.mixup={mixup: 0.3, cutmix: 0.0}"]
GRU = [*DIGITS, "model.mixer=gru", "recipe.schedule.name=wsd", "recipe.schedule.cooldown=0",
       "recipe.optimizer.name=rprop", "recipe.mixup={prob: 0}"]
CUTMIX = [*DIGITS, "recipe=three_augment", "recipe.mixup.mixup=0"]  # with LAMB, and crops without a scale
NOAM = [*DIGITS, "recipe.schedule.name=noam", "recipe.schedule.warmup=4"]
PRETRAINED = [*DIGITS, "model=pretrained", "model.name=vit_tiny", "model.num_heads=2"]
MASKED = ["task=masked_image", "model=mae", "model.name=mae_tiny", *TINY, "model.num_heads=2", "model.decoder_dim=16",
          "model.decoder_depth=1", "model.decoder_num_heads=2", "data.patch_size=2", "recipe=scratch", "augment=none",
          "recipe.batch_size=256", "task.examples=0"]
NUMBERS = ["data=spelled_numbers", "data.limit=1000", "data.train=200", "data.val=20", "data.test=24", *TINY,
           "model.decoder_depth=1", "recipe.batch_tokens=1000", "task.decode_rows=0", "task.decode.beam=1"]
STRIPS = ["data=digit_strips", "data.train=64", "data.val=16", "data.test=16", *TINY, "model.decoder_depth=1",
          "task.decode.beam=1"]
STORIES = ["data=corpus", "STORIES", *TINY, "data.tokenizer.kind=char", "data.max_len=32", "recipe=sequence"]
QUESTIONS = ["data=text_table", "QUESTIONS", *TINY, "data.tokenizer.kind=byte", "model.pool=mean",
             "data.max_len=160"]
PHOTOS = ["data=folder", "PHOTOS", "model=micro", *TINY, "data.image_size=16", "data.patch_size=8",
          "recipe.batch_size=8", "recipe.crop=null", "data.cache=memory", "augment=none"]

# (overrides with which others have no effect, these, and overrides with which each of them may have one)
TRAINED = [
    (DIGITS, ["allow_change=[seed]"], ["resume=x"]),
    (DIGITS, ["hydra.sweep.dir=x", "hydra/launcher=basic"], None),
    (DIGITS, ["data.audit_seconds=3", "data.cache=memory", "data.resampling=pillow"], FOLDER),
    (DIGITS, ["data.cache_dir=x", "data.cache_side=4"], [*FOLDER, "data.cache=disk"]),
    (DIGITS, ["data.cache_limit=3"], ["data.cache=device"]),
    (PHOTOS[:-2], ["data.cache_limit=4"], ["data.cache=memory"]),
    (DIGITS, ["data.decoder=pillow"], FOLDER),
    ([*DIGITS, "recipe.augment=null"], ["augment=flip"],
     ["recipe.augment={flip: {_target_: vit.data.HorizontalFlip}}"]),
    (DIGITS, ["recipe.progressive.stages=3", "recipe.progressive.until=0.5"], ["recipe.progressive.image_size=[4,8]"]),
    (DIGITS, ["recipe.progressive={stages: 3, until: 0.5}"], ["+recipe.progressive.patch_drop=[0.5,0.0]"]),
    (DIGITS, ["recipe.schedule.cooldown=0.5"], ["recipe.schedule.name=wsd"]),
    (DIGITS, ["distill.alpha=0.3", "distill.tau=2", "distill.target=hard"],
     ["distill=soft", "distill.teacher=x", "distill.target=soft"]),
    ([*DIGITS, "data.workers=0"], ["trainer.timeout=9"], ["data.workers=1"]),
    (DIGITS, ["+data.max_len=3", "+data.max_source_len=3", "+data.max_target_len=3", "+data.on_long=skip",
              "+data.on_empty=skip", "+data.tokenizer={kind: byte, lower: true}"], None),
    (DIGITS, ["finetune.head_init=fit"], ["init_from=x"]),
    (DIGITS, ["finetune.always_trainable=[embed]"], ["finetune=head"]),
    (DIGITS, ["callbacks.start_margin=2"], ["init_from=x"]),
    (DIGITS, ["on_leakage=warn"], ["init_from=x"]),
    (DIGITS, ["callbacks.patience=1"], ["recipe.epochs=2"]),
    (DIGITS, ["trainer.log_every_n_steps=1"], ["logger=default"]),
    (DIGITS, ["model.window=3"], ["model.attention=local"]),
    (DIGITS, ["model.kernel=5"], ["model.mixer=conv1d"]),
    (DIGITS, ["model.sincos_channels=interleaved"], ["++model.positions=sincos"]),
    (DIGITS, ["++model.rotary_theta=50", "++model.rotary_pairs=interleaved", "++model.rotary_coordinates=centred"],
     ["++model.positions=rotary"]),
    (OTHERS, ["++model.rotary_offset=0.5", "++model.rotary_span=[3,3]", "++model.rotary_columns_first=true"],
     ["++model.positions=learned_rotary"]),
    (DIGITS, ["++model.relative_hidden=8"], ["++model.positions=relative"]),
    (DIGITS, ["++model.pool_heads=1", "++model.pool_mlp_ratio=2"], ["model.pool=attention"]),
    (DIGITS, ["++model.drop_path=0.3"], ["model.depth=2"]),
    (DIGITS, ["++model.drop_path=0.3"], ["++model.drop_path_schedule=constant"]),
    (OTHERS, ["++model.drop_path_schedule=constant"], ["++model.drop_path=0.1"]),
    (DIGITS, ["recipe.loss.target_threshold=0.0"], ["recipe.loss.name=bce", "recipe.mixup={mixup: 0.8, cutmix: 1.0}"]),
    (OTHERS, ["++model.key_bias=false"], ["++model.qkv_bias=true"]),
    (OTHERS, ["++model.prefix_positions=false", "++model.position_std=0.3"], ["++model.positions=learned"]),
    (DIGITS, ["++model.token_std=0.3"], ["++model.registers=2"]),
    (OTHERS, ["++model.pool_prefix=true"], ["model.pool=mean"]),
    (OTHERS, ["recipe.schedule.final=0.3"], ["recipe.schedule.name=cosine"]),
    (OTHERS, ["+recipe.optimizer.options.dampening=0.3"], ["+recipe.optimizer.options.momentum=0.9"]),
    (OTHERS, ["task.monitor=val/accuracy"], ["callbacks.monitor=val/accuracy"]),
    (OTHERS, ["+recipe.mixup.switch=0.7"], ["recipe.mixup={mixup: 0.3, cutmix: 1.0}"]),
    (GRU, ["++model.attention_dropout=0.3", "++model.qkv_bias=false", "model.num_heads=1"], ["model.mixer=attention"]),
    (GRU, ["recipe.schedule.final=0.3"], ["recipe.schedule.cooldown=0.1"]),
    (GRU, ["recipe.optimizer.weight_decay=0.3"], ["recipe.optimizer.name=adamw"]),
    (GRU, ["+recipe.mixup.mixup=0.9", "+recipe.mixup.cutmix=0.1", "+recipe.mixup.switch=0.9"],
     ["++recipe.mixup.prob=0.1"]),
    (CUTMIX, ["+recipe.mixup.switch=0.7"], ["recipe.mixup.mixup=0.1"]),
    (CUTMIX, ["recipe.crop.ratio=[0.5,2.0]"], ["recipe.crop.scale=[0.2,1.0]"]),
    (NOAM, ["recipe.optimizer.lr_base_batch=128"], ["recipe.schedule.name=cosine"]),
    (PRETRAINED, ["model.fallback=vit_small"], ["model.name=null"]),
    (MASKED, ["calibrate=full", "report=true", "data.balance=loss", "recipe.loss.name=bce",
              "recipe.loss.label_smoothing=0.3", "recipe.mixup.prob=0.9", "recipe.mixup.mixup=0.9"],
     None),
    (MASKED, ["finetune.head_init=fit", "finetune.head_norm=batch", "finetune.batch_norm=frozen",
              "finetune.always_trainable=[embed]"], None),
    (MASKED, ["task.examples_every=3"], ["task.examples=2"]),
    (MASKED, ["+data.mask_ratio=0.5"], None),
    (NUMBERS, ["data.on_bad_sample=skip", "data.on_empty=skip"], None),
    (NUMBERS, ["data.tokenizer.vocab_size=900", "data.tokenizer.min_frequency=5"], ["data.tokenizer.kind=bpe"]),
    (NUMBERS, ["calibrate=full", "report=true", "model.name=other"], None),
    (NUMBERS, ["recipe.batch_size=16"], ["recipe.batch_tokens=null"]),
    ([*NUMBERS, "task.decode.length_penalty=0"], ["task.decode.length_penalty_form=gnmt"],
     ["task.decode.length_penalty=0.6"]),
    (NUMBERS, ["task.examples=1"], ["task.decode_rows=10"]),
    (STRIPS, ["+data.cache=disk", "+data.cache_side=4", "+data.cache_limit=3", "+data.cache_dir=x",
              "+data.decoder=pillow", "+data.resampling=pillow", "+data.pack=true", "+data.max_patches=4",
              "+data.min_patches=2", "+data.image_size=16", "+data.audit_seconds=2", "+data.balance=sampler"], None),
    (STRIPS, ["data.on_bad_sample=skip", "data.on_empty=skip", "data.tokenizer.shared=false"],
     None),
    (STORIES, ["+data.image_size=16", "+data.balance=loss", "+data.pack=true"], None),
    (QUESTIONS, ["+data.image_size=16", "+data.cache=memory", "+data.pack=true"], None),
    (STORIES, ["data.tokenizer.min_frequency=5"], ["data.tokenizer.kind=bpe"]),
    (STORIES, ["recipe.batch_tokens=500", "recipe.loss.label_smoothing=0.3", "model.name=bert_base"], None),
    (QUESTIONS, ["model.pool_hidden=9"], ["model.pool=attention"]),
    (QUESTIONS, ["model.name=text_base", "data.tokenizer.min_frequency=5"], None),
    (PHOTOS, ["data.cache_side=9", "data.decoder=pillow", "data.resampling=pillow"],
     ["recipe.crop={scale: [0.2,1.0], ratio: [1.0,1.0]}"]),
]
SOURCES = [  # of which the data sets are compared
    (["data=text_table"], ["data.text=a", "data.second=b", "data.label=c", "data.split=d", "data.classes=[e,f]",
                           "data.on_empty=skip", "data.fractions=[0.5,0.3,0.2]"], ["data.path=x"]),
    (["data=corpus"], ["data.train=a", "data.val=b", "data.test=c", "data.fractions=[0.5,0.3,0.2]"], ["data.root=x"]),
    (["data=table", "data.path=ARRAYS"], ["data.image=a", "data.label=b", "data.split=c", "data.label_separator=d",
                                          "data.root=e"], ["data.path=x.csv"]),
]
COMPOSED = [  # that would take longer, or a network, to compare
    (["data=hub", "data.root=x"], ["data.revision=abc"], ["data.root=null", "data.repo=a/b"]),
    (["resume=x"], ["run_dir=y", "runs=z"], ["resume=auto"]),
    (["distill=hard", "distill.teacher=x"], ["distill.tau=4"], ["distill.target=soft"]),
    (["init_from=x", "model.mixer=gru", "model.pool=mean"],  # which replace the values of init_from
     ["++model.attention_dropout=0.3", "model.num_heads=1", "++model.pool_heads=1"],
     ["model.mixer=attention", "model.pool=attention"]),
    (["init_from=x", "data=text_table", "model.pool=mean"], ["model.pool_hidden=9"], ["model.pool=attention"]),
    (["init_from=x", "model=micro"], ["model.window=3"], ["model.attention=local"]),  # whose own values are used
    (["init_from=x", "task=masked_image", "model=mae", "recipe=mae"], ["++model.rotary_theta=5", "model.window=3"],
     ["++model.positions=rotary", "model.attention=local"]),
    (["data=text_table", "recipe=scratch"], ["recipe.mixup.prob=0.3", "recipe.crop.scale=[0.5,1.0]",
                                             "recipe.crop.ratio=[0.9,1.0]"], ["task=classification"]),
]
EFFECTIVE = [
    ["data=cifar10", "calibrate=none", "report=false", "data.balance=loss", "data.cache=memory", "data.cache_limit=1",
     "recipe.loss.name=bce", "recipe.loss.label_smoothing=0.3", "recipe.mixup.prob=0.9", "recipe.mixup.mixup=0.9"],
    ["init_from=x", "finetune=head", "finetune.head_init=random", "finetune.batch_norm=frozen",
     "finetune.always_trainable=[embed]", "model.dropout=0.1"],
    ["init_from=x", "model.window=4", "model.kernel=5", "++model.pool_heads=1"],  # of a model that is not known yet
    ["task=masked_image", "model=mae", "recipe=mae", "data.balance=sampler", "model.num_heads=2", "model.depth=1",
     "++model.drop_path=0.1", "model.sincos_channels=interleaved"],
    ["data=image_text", "data.path=x", "data.on_bad_sample=skip", "data.on_empty=skip", "data.tokenizer.kind=bpe",
     "data.tokenizer.vocab_size=300", "recipe.batch_size=8", "data.fractions=[0.8,0.1,0.1]"],
    ["data=parallel", "data.root=x", "data.tokenizer.shared=false", "data.tokenizer.vocab_size=300"],
    ["data=parallel", "data.root=x", "model.mixer=gru", "model.num_heads=2", "model.attention_dropout=0.1",
     "recipe.batch_tokens=1000", "recipe.optimizer.lr_base_batch=64", "recipe.batch_size=128"],
    ["data=text_table", "data.fold=1/5", "data.fractions=[0.8,0.1,0.1]"],
    ["data=text_table", "data.path=x", "model.num_heads=2", "model.pool_hidden=9", "data.tokenizer.min_frequency=3"],
    ["callbacks.patience=5", "recipe.epochs=auto"],  # a number that is not known yet
    ["data.cache_dir=null", "callbacks.patience=null", "allow_change=[]"],  # which state nothing
    ["recipe.schedule.cooldown=0", "data.decoder=auto", "data.cache_side=auto", "finetune.head_init=random",
     "model.depth=1", "++model.drop_path=0.0", "model.mixer=gru", "++model.attention_dropout=0"],  # or ask for nothing
    ["data=corpus", "report=false", "calibrate=none", "recipe.loss.label_smoothing=0", "finetune.batch_norm=auto"],
    ["experiment=cifar10", "data.cache=none"],
]


def warnings(overrides):
    return without_effect(resolve(compose(overrides)), overrides)


def keys_of(overrides):
    """The dotted keys that overrides set, without nodes."""
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        content = yaml.safe_load(value)
        yield from ([name for name, _ in dotted_items(content, f"{key}.")] if isinstance(content, dict) else [key])


def files(overrides, tmp_path):
    """The overrides with the files that their words in capitals stand for; none is read when a config is composed."""
    words = {"STORIES": "data.root=x", "QUESTIONS": "data.path=x", "PHOTOS": "data.root=x"}
    return [words.get(each, each).replace("ARRAYS", str(tmp_path / "set.npz")) for each in overrides]


@pytest.mark.parametrize(("base", "dead", "alive"), [*TRAINED, *SOURCES, *COMPOSED])
def test_a_value_is_reported_where_it_has_no_effect(tmp_path, base, dead, alive):
    base = files(["recipe.epochs=1", "logger=csv", *base], tmp_path)
    assert warnings(base) == ()
    found = [each.partition("=")[0] for each in warnings([*base, *dead])]
    assert found == list(keys_of(dead))
    if alive is not None:
        reported = {each.partition("=")[0] for each in warnings([*base, *dead, *alive])}
        assert not reported & {*keys_of(dead)}


@pytest.mark.parametrize("overrides", EFFECTIVE)
def test_values_with_an_effect_are_not_reported(overrides):
    assert warnings(overrides) == ()


@pytest.mark.parametrize(("data", "model", "fix"), [
    (["data=spelled_numbers"], "tiny", "model=seq2seq"), (["data=digit_strips"], "small", "model=image_to_text"),
    (["data=text_table", "data.path=a.csv"], "mae", "model=text"),
])
def test_the_size_of_a_network_of_images_is_reported_on_texts(data, model, fix):
    """Such a model has the default size, which is that of Transformer base for translation."""
    (message,) = warnings([*data, f"model={model}"])
    assert message.startswith(f"model={model}: the size ") and f"such as {fix}, or set model.dim, " in message
    assert warnings([*data, f"model={model}", "model.dim=64", "model.depth=2", "model.num_heads=2"]) == ()
    assert warnings([*data, "model=micro"]) == warnings([*data, fix]) == ()  # with a width and a depth of their own


@pytest.mark.parametrize(("overrides", "size"), [
    (["model=tiny", "model.name=vit_tiny_patch2_32"], "32 in the name has no effect with data.image_size=8;"),
    (["model=base", "model.name=vit_base_384", *FOLDER], "384 in the name has no effect with data.image_size=224;"),
    (["model=timm", "model.name=vit_base_patch16_clip_384.openai_ft_in1k", *FOLDER], "add data.image_size=384 "),
    (["model=tiny", "model.name=timm:swin_tiny_patch4_window7_224", *FOLDER, "data.image_size=null"], ""),
    (["model=tiny", "model.name=vit_tiny_patch2_32", "data.image_size=16"], ""),
    (["model=timm", "model.name=regnety_320", *FOLDER], ""),
    (["model=timm", "model.name=vit_small_patch16_384", *FOLDER, "init_from=x.safetensors"], ""),  # has a size
])
def test_a_size_in_the_name_of_a_model_that_the_data_replaces_is_reported(overrides, size):
    found = warnings(overrides)
    assert len(found) == bool(size) and size in "".join(found)


def test_the_name_of_other_data_is_reported_on_the_digits(tmp_path):
    assert warnings(["data.name=mnist"]) == (
        "data.name=mnist only names the data, which are those of data=digits; write data=mnist",)
    assert warnings(["data.name=mine"]) == warnings([*FOLDER, "data.name=mnist"]) == ()


def test_values_of_an_experiment_in_an_option_that_an_override_chooses_are_reported(tmp_path):
    sets = "experiment=cifar10 sets model.dim=96, model.num_heads=3 also with model=small; override these keys too"
    (message,) = warnings(["experiment=cifar10", "data.root=x", "model=small"])
    assert message.startswith(sets)
    (message,) = warnings(["model=small", "experiment=cifar10", "data=digits", "model.dim=384"])  # in any order
    assert "sets model.num_heads=3 also" in message
    for chosen in (["model=small", "model.dim=384", "model.num_heads=6"], ["model=micro"], ["recipe=deit"], []):
        assert warnings(["experiment=cifar10", "data.root=x", *chosen]) == ()
    (message,) = warnings(["experiment=mae", "recipe=scratch", "recipe.batch_size=8"])
    assert "recipe.epochs=40" in message and "batch_size" not in message


def test_only_overrides_are_reported_not_the_values_of_files():
    """Every recipe has a cooldown and most of them a schedule without one."""
    for name in options("recipe"):
        assert warnings([f"recipe={name}"]) == ()
    assert without_effect(resolve(compose(["recipe.schedule.cooldown=0.5"])), ["seed=1"]) == ()


@pytest.mark.parametrize(("override", "message"), [
    ("recipe.schedule.cooldown=0.2", "recipe.schedule.cooldown=0.2 has no effect with recipe.schedule.name=cosine; add "
                                     "recipe.schedule.name=wsd, or leave it out"),
    ("model.window=8", "model.window=8 has no effect on the network with model.attention=scaled; add "
                       "model.attention=local, or leave it out"),
    ("data.decoder=pillow", "data.decoder=pillow has no effect with data._target_=vit.data.digits; leave it out"),
    ("hydra.sweep.dir=x", "hydra.sweep.dir=x has no effect with hydra.mode=RUN; add -m, or leave it out"),
])
def test_the_message_names_both_keys_and_the_fix(override, message):
    assert warnings([override]) == (message,)


def config_keys():
    """Every key of conf/, the options of models and of mixup, and those of optimizers that rules name."""
    folder = config_folder()
    for path in folder.rglob("*.yaml"):
        group = path.relative_to(folder).parts[0]
        if group not in ("experiment", "augment"):
            content = yaml.safe_load(path.read_text()) or {}
            yield group
            prefix = "" if group in ("train.yaml", "finetune") else f"{group}."
            yield from (key for key, _ in dotted_items(content, prefix))
    for config in (*CONFIGS.values(), ImageToTextConfig):
        yield from (f"model.{field.name}" for field in fields(config))
    yield from (f"recipe.mixup.{name}" for name in inspect.signature(Mixup).parameters)
    yield from (f"recipe.optimizer.options.{name}" for name in inspect.signature(torch.optim.SGD).parameters)
    yield from ("model.kind", "hydra.mode")


def test_every_rule_names_keys_of_the_config():
    known = {*config_keys(), "augment"}  # a group without a node of its own
    for rule in RULES:
        for key in (*rule.keys, rule.other, *rule.where):
            assert key.startswith("hydra") or fnmatch.filter(known, key), key


def test_every_key_of_every_rule_has_a_case(tmp_path):
    unseen = {(number, key) for number, rule in enumerate(RULES) for key in rule.keys}
    for base, dead, _ in (*TRAINED, *SOURCES, *COMPOSED):
        overrides = files(["recipe.epochs=1", "logger=csv", *base, *dead], tmp_path)
        values = {**dict(dotted_items(resolve(compose(overrides)))), "hydra.mode": "RUN"}
        for key, own in override_items(overrides):
            unseen -= {(number, pattern) for number, rule in enumerate(RULES) for pattern in rule.keys
                       if fnmatch.fnmatchcase(key, pattern) and rule.applies(key, {key: own, **values})}
    assert {(RULES[number].other, key) for number, key in unseen} == {
        ("hydra.mode", key) for key in ("hydra.sweeper.*", "hydra.launcher.*", "hydra/sweeper")}


def test_the_defaults_of_models_are_those_of_their_configs():
    for task, config in CONFIGS.items():
        defaults = {f"model.{field.name}": field.default for field in fields(config)}
        assert POSITIONS[task] == defaults["model.positions"]
        assert {key: defaults.get(key, value) for key, value in MODEL_DEFAULTS.items()} == MODEL_DEFAULTS
    assert ImageToTextConfig.positions == POSITIONS["seq2seq"]


def outcome(folder):
    """The weights of the best epoch, and all metrics but speed."""
    rows = [{key: value for key, value in row.items() if not key.endswith(("per_second", "data_wait"))}
            for row in table(folder / "metrics.csv")]
    return torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"], rows


def assert_same(one, other):
    (weights, rows), (expected, expected_rows) = outcome(one), outcome(other)
    assert rows == expected_rows
    assert weights.keys() == expected.keys() and all(torch.equal(weights[name], expected[name]) for name in weights)


BASES = list(dict.fromkeys(tuple(base) for base, _, _ in TRAINED))


@pytest.mark.parametrize("base", [
    pytest.param(list(base), marks=pytest.mark.slow if number % 2 else ()) for number, base in enumerate(BASES)
])
def test_runs_with_and_without_the_values_end_with_the_same_bits(tmp_path, monkeypatch, base):
    """All values that have no effect with the same overrides are in one run."""
    use_blank_pictures(monkeypatch)
    values = [override for other, dead, _ in TRAINED if other == base for override in dead]
    overrides = [*RUN, *base]
    if "STORIES" in base:
        overrides[overrides.index("STORIES")] = write_stories(tmp_path)
    if "QUESTIONS" in base:
        overrides[overrides.index("QUESTIONS")] = write_questions(tmp_path / "questions.csv")
    if "PHOTOS" in base:
        overrides[overrides.index("PHOTOS")] = f"data.root={write_photos(tmp_path / 'photos', {'cat': 16, 'dog': 14})}"
    vit.train([*overrides, "report=false", f"run_dir={tmp_path / 'without'}"])
    vit.train([*overrides, "report=false", *values, f"run_dir={tmp_path / 'with'}"])
    assert_same(tmp_path / "with", tmp_path / "without")
    reported = EFFECT.findall((tmp_path / "with" / "log.txt").read_text())
    assert sorted(reported) == sorted({*keys_of(values)})
    assert not EFFECT.search((tmp_path / "without" / "log.txt").read_text())


@pytest.mark.parametrize(("base", "values"), [(base, dead) for base, dead, _ in SOURCES])
def test_sources_with_and_without_the_values_are_equal(tmp_path, base, values):
    pixels, labels = np.arange(20 * 64, dtype=np.uint8).reshape(20, 8, 8), np.arange(20) % 2
    np.savez(tmp_path / "set.npz", images=pixels, labels=labels)
    one, other = (build_source(resolve(compose(files(each, tmp_path)))["data"]) for each in (base, [*base, *values]))
    assert one.splits.keys() == other.splits.keys()
    for key, split in one.splits.items():
        assert list(split.names) == list(other.splits[key].names)
        if hasattr(split, "labels"):
            assert np.array_equal(split.labels, other.splits[key].labels)


def test_a_temperature_with_hard_targets(tmp_path, monkeypatch):
    use_blank_pictures(monkeypatch)
    teacher = vit.train([*RUN, *DIGITS, "report=false", f"run_dir={tmp_path / 'teacher'}"]).path
    overrides = [*RUN, *DIGITS, "report=false", "distill=hard", f"distill.teacher={teacher}"]
    one = vit.train([*overrides, f"run_dir={tmp_path / 'one'}"]).path
    other = vit.train([*overrides, "distill.tau=4", f"run_dir={tmp_path / 'other'}"]).path
    assert_same(one, other)


def test_a_resumed_run_reports_the_values_of_its_command(tmp_path, monkeypatch):
    """Not those that the run was started with; and run_dir is that of the stopped run."""
    use_blank_pictures(monkeypatch)
    overrides = [*RUN, *DIGITS, "report=false", "recipe.schedule.cooldown=0.5"]
    with monkeypatch.context() as patch:
        StopAfter(patch, 1)
        with pytest.raises(SystemExit):
            vit.train([*overrides, f"run_dir={tmp_path / 'run'}"])
    assert EFFECT.findall((tmp_path / "run" / "log.txt").read_text()) == ["recipe.schedule.cooldown"]
    vit.train([f"resume={tmp_path / 'run'}", f"run_dir={tmp_path / 'other'}", "data.cache_limit=3"])
    assert not (tmp_path / "other").exists()
    assert EFFECT.findall((tmp_path / "run" / "log.txt").read_text()) == [
        "recipe.schedule.cooldown", "run_dir", "data.cache_limit"]


@pytest.mark.slow
def test_a_distributed_run_reports_a_value_once(tmp_path):
    code, out, err = run([*RUN, *DIGITS, "report=false", "trainer.devices=2", "strategy=ddp", "data.cache_limit=3"],
                         tmp_path)
    assert code == 0, err
    assert EFFECT.findall(out) == ["data.cache_limit"]


@pytest.mark.slow
def test_a_sweep_runs_although_a_value_has_no_effect_in_some_runs(tmp_path):
    code, out, err = run(["-m", *RUN, *DIGITS, "report=false", "recipe.schedule.name=cosine,wsd",
                          "recipe.schedule.cooldown=0.2", "hydra.sweep.dir=sweep"], tmp_path)
    assert code == 0, err
    assert EFFECT.findall(out) == ["recipe.schedule.cooldown"]
