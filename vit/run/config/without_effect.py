"""Values that have no effect because of another value: a table, and a warning for each such override of a command.

They are not errors, because a sweep such as `recipe.schedule=cosine,wsd recipe.schedule.cooldown=0.2` must run. The
table lists only what the code never reads, or what leaves all weights and results as they are. It does not cover values
that depend on the data, and there is no warning where the other value is not known before the run, as with those of the
model of `init_from` that no override replaces.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from vit.run.config.name_hints import nearest, without_key
from vit.run.config.needed_keys import ALL_TASKS, ON_IMAGES, ON_TEXTS
from vit.run.config.overrides import dotted_items, override_items, yaml_text
from vit.run.config.stated_names import NAMES

Values = Mapping[str, Any]  # dotted key -> its value
Condition = Collection | Callable[[Any, Any], bool]


@dataclass(frozen=True)
class Rule:
    """Keys whose values have no effect while another key has certain values.

    Args:
        keys: dotted keys; * matches any name.
        other: the key whose value decides whether `keys` have an effect.
        when: values of `other` with which `keys` have no effect; or a function of both values that returns whether
            there is none.
        fix: what to change so that `keys` have an effect; empty if nothing can be changed.
        where: further keys, and the values of each for which the rule holds.
        values: values of `keys` for which the rule holds; empty for all.
        off: values of `keys` that turn the feature off, so that there is nothing to warn about.
        why: reason in the message, instead of the value of `other`.
        effect: the word for what is missing in the message, "has no EFFECT".
    """

    keys: tuple[str, ...]
    other: str
    when: Condition
    fix: str = ""
    where: Mapping[str, Collection] = field(default_factory=dict)
    values: Collection = ()
    off: Collection = ()
    why: str = ""
    effect: str = "effect"

    def applies(self, key: str, values: Values) -> bool:
        """Whether the value of this key has no effect among all values."""
        if key not in self.keys and not any("*" in each and fnmatchcase(key, each) for each in self.keys):
            return False
        own, other = values[key], effective_value(self.other, values)
        if own in self.off or self.values and own not in self.values:
            return False
        if any(effective_value(name, values) not in valid for name, valid in self.where.items()):
            return False
        return self.when(own, other) if callable(self.when) else other in self.when

    def reads_model(self, own: Values) -> bool:
        """Whether the rule depends on a value of the model that no override states."""
        return any(key.startswith("model.") and own.get(key) is None for key in (self.other, *self.where))

    def sentence(self, key: str, values: Values) -> str:
        """`KEY=VALUE has no effect with OTHER=VALUE; FIX`"""
        why = self.why or f"with {self.other}={yaml_text(effective_value(self.other, values))}"
        fix = f"{self.fix}, or leave it out" if self.fix else "leave it out"
        # a model is saved in timm's format only if timm has the values of its config, also of parts that it lacks
        effect = "effect on the network" if key.startswith("model.") else self.effect
        return f"{key}={yaml_text(values[key])} has no {effect} {why}; {fix}"


def is_set(own: object, other: object) -> bool:
    return other is not None


def is_path(own: object, other: object) -> bool:
    return other not in (None, "auto")


def is_npz(own: object, other: object) -> bool:
    return str(other).lower().endswith(".npz")


def is_different(own: object, other: object) -> bool:
    return own != other


def is_reached(own: Any, other: Any) -> bool:
    return isinstance(other, int) and own >= other


def is_empty(own: object, other: object) -> bool:
    """Whether all values of a node are null."""
    return isinstance(other, dict) and all(value is None for value in other.values())


PRE_TRAINING = ("masked_image", "masked_text")
WITHOUT_CLASSES = (*PRE_TRAINING, "seq2seq")
ENCODERS = ("classification", "text_classification", "masked_text")  # tasks of models without a decoder
WITHOUT_ATTENTION = ("lstm", "gru", "conv1d", "fnet")  # values of model.mixer
WITHOUT_ROTARY = ("learned", "sincos", "sincos_simple", "relative", "none")  # values of model.positions
WITHOUT_POOL_OPTIONS = ("class", "mean", "sum", "class_mean", "pooler")  # values of model.pool

# values of model keys that are null or that no file lists, as in the config classes of vit.models
MODEL_DEFAULTS = {"model.mixer": "attention", "model.attention": "scaled", "model.pool": "class"}
POSITIONS = {"classification": "learned", "text_classification": "learned", "masked_image": "sincos",
             "masked_text": "learned", "seq2seq": "sincos"}  # task -> model.positions

TRAINER = (*ALL_TASKS["trainer"], "timeout", "deterministic")  # keys of the node, also of runs of earlier versions

RULES = (  # the first one that applies to a key is reported
    # the command
    Rule(("allow_change",), "resume", (None,), "add resume=RUN"),
    Rule(("run_dir", "runs"), "resume", is_path),
    Rule(("hydra.sweep.*", "hydra.sweeper.*", "hydra.launcher.*", "hydra/sweeper", "hydra/launcher"), "hydra.mode",
         ("RUN",), "add -m"),
    Rule(("calibrate", "report"), "task.name", WITHOUT_CLASSES, off=("none", "NONE", "None", False)),
    # the data; keys of other kinds of data can be added with +
    Rule(("data.cache", "data.cache_side", "data.cache_limit", "data.cache_dir", "data.decoder", "data.resampling",
          "data.pack", "data.max_patches", "data.min_patches", "data.image_size", "data.audit_seconds"), "task.name",
         ON_TEXTS, off=("auto", False)),
    Rule(("data.max_len", "data.max_source_len", "data.max_target_len", "data.on_long", "data.on_empty",
          "data.tokenizer.*"), "task.name", ON_IMAGES),
    Rule(("data.cache_dir", "data.cache_side", "data.audit_seconds", "data.decoder"), "data._target_",
         ("vit.data.digits",), off=("auto", 0)),
    Rule(("data.cache",), "data._target_", ("vit.data.digits",), values=("memory", "disk")),
    Rule(("data.cache_limit",), "data._target_", ("vit.data.digits",),
         where={"data.cache": ("auto", "none", "memory", "disk")}),
    Rule(("data.cache_dir",), "data.cache", ("auto", "none", "memory", "device"), "add data.cache=disk"),
    Rule(("data.cache_side",), "data.cache", ("auto", "none", "device"), "add data.cache=memory or disk",
         off=("auto",)),
    Rule(("data.cache_limit",), "data.cache", ("auto", "none"), "add data.cache=memory, disk or device"),
    Rule(("data.cache_side", "data.decoder", "data.resampling"), "recipe.crop", (None,),
         where={"data.pack": (None, False)}, off=("auto",)),
    Rule(("data.mask_ratio",), "task.name", ("masked_image",), "set model.mask_ratio"),
    Rule(("data.balance",), "task.name", ("masked_text", "seq2seq"), off=("none",)),
    Rule(("data.balance",), "task.name", ("masked_image",), values=("loss",)),
    Rule(("data.on_bad_sample",), "data._target_",
         ("vit.data.parallel", "vit.data.spelled_numbers", "vit.data.digit_strips")),
    Rule(("data.on_empty",), "data._target_", ("vit.data.spelled_numbers", "vit.data.digit_strips")),
    Rule(("data.train", "data.val", "data.test", "data.fractions"), "data.root", (None,), "add data.root=FOLDER",
         where={"data._target_": ("vit.data.corpus",)}),
    Rule(("data.text", "data.second", "data.label", "data.split", "data.classes", "data.on_empty"), "data.path",
         (None,), "add data.path=TABLE", where={"data._target_": ("vit.data.text_table",)}),
    Rule(("data.fractions",), "data.path", (None,), "add data.path=TABLE",
         where={"data._target_": ("vit.data.text_table",), "data.fold": (None,), "data.group": (None,)}),
    Rule(("data.image", "data.label", "data.split", "data.label_separator", "data.root"), "data.path", is_npz,
         where={"data._target_": ("vit.data.table",)}),
    Rule(("data.revision",), "data.root", is_set, "add data.repo=OWNER/NAME instead",
         where={"data._target_": ("vit.data.hub",)}),
    Rule(("data.tokenizer.vocab_size", "data.tokenizer.min_frequency"), "data.tokenizer.kind", ("byte",),
         "add data.tokenizer.kind=bpe", where={"init_from": (None,)}),
    Rule(("data.tokenizer.min_frequency",), "data.tokenizer.kind", ("char",), "add data.tokenizer.kind=bpe",
         where={"init_from": (None,)}),
    Rule(("data.tokenizer.shared",), "data._target_", ("vit.data.image_text", "vit.data.digit_strips")),
    # the model
    Rule(("model.name",), "task.name", ON_TEXTS,
         "set model.dim, model.depth and model.num_heads"),
    Rule(("model.fallback",), "model.name", is_set, "add model.name=null"),
    Rule(("model.window",), "model.attention", ("scaled", "dot", "cosine", "bilinear", "additive"),
         "add model.attention=local"),
    Rule(("model.attention_dropout",), "model.mixer", WITHOUT_ATTENTION, "add model.mixer=attention",
         where={"task.name": ENCODERS}, off=(0,)),
    Rule(("model.qkv_bias",), "model.mixer", WITHOUT_ATTENTION, "add model.mixer=attention",
         where={"task.name": ENCODERS}),
    Rule(("model.num_heads",), "model.mixer", WITHOUT_ATTENTION, "add model.mixer=attention",
         where={"task.name": ENCODERS, "model.pool": WITHOUT_POOL_OPTIONS}),
    Rule(("model.kernel",), "model.mixer", ("attention", "lstm", "gru", "fnet"), "add model.mixer=conv1d",
         where={"model.decoder_mixer": (None, "attention", "lstm", "gru")}),
    Rule(("model.key_bias",), "model.qkv_bias", (False,), "add model.qkv_bias=true"),
    Rule(("model.sincos_channels",), "model.positions",
         ("learned", "rotary", "learned_rotary", "relative", "none"), "add model.positions=sincos"),
    Rule(("model.rotary_theta", "model.rotary_pairs", "model.rotary_coordinates", "model.rotary_offset",
          "model.rotary_span", "model.rotary_columns_first"), "model.positions", WITHOUT_ROTARY,
         "add model.positions=rotary"),
    Rule(("model.relative_hidden",), "model.positions", (*WITHOUT_ROTARY[:3], "rotary", "learned_rotary", "none"),
         "add model.positions=relative"),
    Rule(("model.token_std",), "model.class_token", (False,), "add model.class_token=true or model.registers=4",
         where={"task.name": ON_IMAGES, "model.registers": (None, 0)}),
    Rule(("model.prefix_positions", "model.position_std"), "model.positions",
         ("sincos", "sincos_simple", "rotary", "relative", "none"),
         "add model.positions=learned"),
    Rule(("model.pool_heads", "model.pool_mlp_ratio", "model.pool_hidden"), "model.pool", WITHOUT_POOL_OPTIONS,
         "add model.pool=attention", where={"task.name": ("classification", "text_classification")}),
    Rule(("model.pool_prefix",), "model.pool", ("class",), "add model.pool=mean",
         where={"task.name": ("classification",)}, off=(False,)),
    Rule(("model.drop_path",), "model.depth", (1,), "add model.drop_path_schedule=constant",
         where={"task.name": ENCODERS, "model.drop_path_schedule": (None, "linear")}, off=(0,)),
    Rule(("model.drop_path_schedule",), "model.drop_path", (None, 0), "add model.drop_path=0.1"),
    # the task
    Rule(("task.monitor",), "callbacks.monitor", is_different),
    Rule(("task.decode.length_penalty_form",), "task.decode.length_penalty", (0,),
         "set task.decode.length_penalty=0.6"),
    Rule(("task.examples",), "task.decode_rows", (0,), "raise task.decode_rows", off=(0,)),
    Rule(("task.examples_every",), "task.examples", (0,), "raise task.examples"),
    # the recipe
    Rule(("recipe.batch_size",), "recipe.batch_tokens", is_set, "add recipe.batch_tokens=null",
         where={"task.name": ("seq2seq",), "recipe.optimizer.lr_base_batch": (None,)}, effect="effect on training"),
    Rule(("recipe.batch_tokens",), "task.name", ("classification", "text_classification", *PRE_TRAINING)),
    Rule(("recipe.optimizer.lr_base_batch",), "recipe.schedule.name", ("noam",)),
    Rule(("recipe.optimizer.weight_decay",), "recipe.optimizer.name", ("rprop",), off=(0,)),
    Rule(("recipe.optimizer.options.dampening",), "recipe.optimizer.options.momentum", (None, 0),
         "add recipe.optimizer.options.momentum=0.9", where={"recipe.optimizer.name": ("sgd",)}, off=(0,)),
    Rule(("recipe.schedule.cooldown",), "recipe.schedule.name", ("cosine", "constant", "inverse_sqrt", "noam"),
         "add recipe.schedule.name=wsd", off=(0,)),
    Rule(("recipe.schedule.final",), "recipe.schedule.name", ("constant", "inverse_sqrt", "noam"),
         "add recipe.schedule.name=cosine or wsd"),
    Rule(("recipe.schedule.final",), "recipe.schedule.cooldown", (0,), "raise recipe.schedule.cooldown",
         where={"recipe.schedule.name": ("wsd", "trapezoid")}),
    Rule(("recipe.loss.name", "recipe.loss.label_smoothing"), "task.name", PRE_TRAINING, off=(0,)),
    Rule(("recipe.loss.target_threshold",), "recipe.loss.name", ("cross_entropy",), "add recipe.loss.name=bce"),
    Rule(("recipe.loss.target_threshold",), "recipe.mixup", (None,),
         "add 'recipe.mixup={mixup: 0.8, cutmix: 1.0}'"),
    Rule(("augment",), "recipe.augment", (None,), "leave recipe.augment=null out", off=("none",)),
    Rule(("recipe.crop.scale", "recipe.crop.ratio"), "task.name", ON_TEXTS),
    Rule(("recipe.crop.ratio",), "recipe.crop.scale", (None,), "add 'recipe.crop.scale=[0.2,1.0]'"),
    Rule(("recipe.mixup.*",), "task.name", ("text_classification", *WITHOUT_CLASSES), off=(0,)),
    Rule(("recipe.mixup.mixup", "recipe.mixup.cutmix", "recipe.mixup.switch"), "recipe.mixup.prob", (0,),
         "raise recipe.mixup.prob"),
    Rule(("recipe.mixup.switch",), "recipe.mixup.mixup", (0,), "raise recipe.mixup.mixup"),
    Rule(("recipe.mixup.switch",), "recipe.mixup.cutmix", (0,), "raise recipe.mixup.cutmix"),
    Rule(("recipe.progressive.stages", "recipe.progressive.until"), "recipe.progressive.image_size", (None,),
         "add recipe.progressive.image_size or recipe.progressive.patch_drop",
         where={"recipe.progressive.patch_drop": (None,)}),
    # fine-tuning and distillation
    Rule(("finetune.head_init", "finetune.head_norm", "finetune.batch_norm", "finetune.always_trainable"), "task.name",
         PRE_TRAINING, off=("auto", "random", "train", "none")),
    Rule(("finetune.head_init",), "init_from", (None,), "add init_from=MODEL", off=("auto", "random")),
    Rule(("finetune.always_trainable",), "finetune.trainable", ("all",), "add finetune=head",
         where={"finetune.depth": (None,), "finetune.unfreeze_epochs": (None,)}),
    Rule(("distill.alpha", "distill.tau", "distill.target"), "distill.kind", ("none",),
         "add distill=soft, hard or token with distill.teacher=MODEL"),
    Rule(("distill.tau",), "distill.target", ("hard",), "add distill.target=soft"),
    # the trainer and its callbacks
    Rule(("trainer.timeout",), "data.workers", (0,), "set data.workers",
         where={"strategy.name": ("single",), "trainer.devices": (1,), "trainer.num_nodes": (1,)}),
    Rule(("trainer.log_every_n_steps",), "logger", is_empty, "add logger=default", why="without a logger"),
    Rule(("callbacks.patience",), "recipe.epochs", is_reached, "lower it"),
    Rule(("callbacks.start_margin",), "init_from", (None,), "add init_from=MODEL"),
    Rule(("on_leakage",), "init_from", (None,), "add init_from=MODEL", where={"distill.kind": ("none",)},
         off=("error",)),
)


def without_effect(config: dict, overrides: list[str]) -> tuple[str, ...]:
    """A sentence for each override that has no effect because of another value.

    Args:
        config: config of the run, with all interpolations resolved.
    """
    values = {**dict(dotted_items(config)), "hydra.mode": "RUN"}
    own = dict(override_items(overrides))
    found = (sentence(key, {key: value, **values}, own) for key, value in own.items())
    of_names = (each for key, check in NAMES.items() if key in own for each in check(config, overrides))
    return (*unknown_options(config), *models_of_trackers(config), *of_names, *(each for each in found if each))


def unknown_options(config: dict) -> Iterator[str]:
    """A sentence for each key of the node `trainer` that a file of the user adds, and no code reads."""
    unknown = {f"trainer.{key}": value for key, value in config["trainer"].items() if key not in TRAINER}
    known = [key for key, _ in dotted_items(config) if key not in unknown] if unknown else []
    for key, value in unknown.items():
        hint = f"; {why}" if (why := without_key(key)) else nearest(key, known)
        yield f"{key}={yaml_text(value)} has no effect: the trainer has no such option{hint}"


def models_of_trackers(config: dict) -> Iterator[str]:
    """A sentence for each logger that would copy the checkpoints of Lightning's own callback, which no run has, or that
    would record nothing.
    """
    for key, node in config["logger"].items():
        if isinstance(node, dict) and (value := node.get("log_model")):
            yield (f"logger.{key}.log_model={yaml_text(value)} has no effect: checkpoints and model stay in the run "
                   "folder")
        if isinstance(node, dict) and node.get("online") is False and str(node.get("_target_")).endswith("CometLogger"):
            yield f"logger.{key}.online=false: Lightning's CometLogger then records nothing"


def sentence(key: str, values: Values, own: Values) -> str:
    """About the value of one key; empty where it has an effect, or may have one.

    Args:
        own: the values that overrides state.
    """
    if values[key] in (None, []):
        return ""
    inherited = key.startswith("model.") and has_model_of_source(values)
    rule = next((rule for rule in RULES if rule.applies(key, values) and not (inherited and rule.reads_model(own))),
                None)
    return "" if rule is None else rule.sentence(key, values)


def has_model_of_source(values: Values) -> bool:
    """Whether the values of the model that no override states are those of `init_from`: on images with model=pretrained
    only, in masked pre-training on images never. A resumed run records its own values.
    """
    if values.get("init_from") is None or "model.kind" in values:
        return False
    task = values.get("task.name")
    return task in ON_TEXTS or task == "classification" and values.get("model.name") is None


def effective_value(key: str, values: Values) -> Any:
    """The value of a key; the default of the model where it is null or not listed."""
    if (found := values.get(key)) is not None:
        return found
    if key == "model.positions":
        return POSITIONS.get(values.get("task.name"))
    return MODEL_DEFAULTS.get(key)
