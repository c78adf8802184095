"""The valid values of a config: the range of every number, the choices of options, and what must be a string or a node.

`vit.run.config.value_checks` checks them before heavy imports and before the data is read.
"""

from dataclasses import replace
from fnmatch import fnmatchcase

from vit.exchange.private_paths import PATH_KEYS
from vit.run.config.value_kinds import INT64, Boolean, Choice, Duration, Fold, Names, Node, NotEmpty, Number, Text
from vit.training.monitoring.metric_direction import MODES

DEFAULT_SIZE = 224  # pixels; of images whose size neither the config nor init_from states

AUTO = ("auto",)
ANY = Number()
COUNT = Number(1, whole=True)
COUNT_OR_0 = Number(0, whole=True)
POSITIVE = Number(0, above=True)
AT_LEAST_0 = Number(0)
FRACTION = Number(0, 1)
FRACTION_BELOW_1 = Number(0, 1, below=True)
FRACTION_ABOVE_0 = Number(0, 1, above=True)
BETWEEN_0_AND_1 = Number(0, 1, above=True, below=True)
SEED = Number(*INT64, whole=True)
BYTE = Number(0, 255, lists=True)


def or_null(number: Number) -> Number:
    return replace(number, null=True)


def or_list(number: Number) -> Number:
    return replace(number, lists=True)


def only_list(number: Number, length: int | None = None) -> Number:
    return replace(number, lists=True, length=length, scalar=False)


SIZES = or_list(or_null(COUNT))
SIZE = replace(SIZES, length=2)  # size of images and patches: one number, or height and width
SKIPPING = Choice(("error", "skip"))
SAMPLES = or_list(replace(or_null(AT_LEAST_0), names=None))  # a number, a fraction, or the name of a file
Kind = Boolean | Choice | Duration | Fold | Names | Node | NotEmpty | Number | Text
MODEL_FLAGS = ("attn_norm", "class_token", "dist_token", "embed_norm", "key_bias", "mlp_norm", "norm_pixels",
               "patch_bias", "patch_norm", "pool_prefix", "pre_norm", "prefix_positions", "proj_bias", "qk_norm",
               "qkv_bias", "residual", "rotary_columns_first", "rotary_mixed", "scale_embed")  # true or false
VALID_VALUES: dict[str, Kind] = {  # key -> its valid values; * matches any name
    **dict.fromkeys(PATH_KEYS, NotEmpty()),
    "compare": Node(null=True),
    "compare.*": Names("overrides, such as [model=small]"),
    "compile": Boolean(names=AUTO),
    "compile_mode": Choice(("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")),
    "calibrate": Choice(("full", "temperature", "none"), null=True, any_case=True),
    "precision": Choice(("auto", "32-true", "bf16-mixed", "bf16-residual", "16-mixed")),
    "debug": Boolean(),
    "name": Text(),
    "on_leakage": Choice(("error", "warn"), null=True),
    "report": Boolean(),
    "runs": Text(),
    "seed": SEED,
    "callbacks": Node(),
    "callbacks.every_steps": or_null(COUNT),
    "callbacks.film": or_null(COUNT),
    "callbacks.monitor": Choice((*(f"val/{metric}" for metric in MODES), "train/loss")),
    "callbacks.patience": or_null(COUNT),
    "callbacks.start_margin": AT_LEAST_0,
    "data": Node(),
    "data._target_": Text(),
    "data.audit_seconds": AT_LEAST_0,
    "data.balance": Choice(("none", "sampler", "loss")),
    "data.cache": Choice(("auto", "none", "memory", "disk", "device")),
    "data.cache_limit": POSITIVE,
    "data.cache_side": replace(COUNT, names=AUTO),
    "data.class_depth": COUNT,
    "data.classes": Names(),
    "data.decoder": Choice(("auto", "pillow", "simplejpeg", "torchcodec")),
    "data.digits": COUNT,
    "data.fold": Fold(),
    "data.fractions": only_list(FRACTION, length=3),
    "data.image_size": SIZE,
    "data.limit": COUNT,
    "data.mask_ratio": BETWEEN_0_AND_1,
    "data.max_len": Number(2, whole=True),  # eos counts
    "data.max_patches": or_null(COUNT),
    "data.max_source_len": Number(2, whole=True, null=True),
    "data.max_target_len": Number(2, whole=True, null=True),
    "data.min_digits": or_null(COUNT),
    "data.min_patches": or_null(COUNT),
    "data.name": Text(),
    "data.on_bad_sample": SKIPPING,
    "data.on_empty": SKIPPING,
    "data.on_long": Choice(("error", "skip", "cut")),
    "data.on_unknown_split": SKIPPING,
    "data.one_hot": Boolean(),
    "data.pack": Boolean(),
    "data.patch_size": SIZE,
    "data.preprocessing": Node(),
    "data.preprocessing.background": only_list(BYTE),
    "data.preprocessing.crop_pct": or_null(FRACTION_ABOVE_0),
    "data.preprocessing.draft": Boolean(),
    "data.preprocessing.enlarge": Boolean(),
    "data.preprocessing.height": or_null(COUNT),
    "data.preprocessing.interpolation": Choice(("nearest", "box", "bilinear", "bicubic", "lanczos"), null=True),
    "data.preprocessing.max_pixels": or_null(COUNT),
    "data.preprocessing.max_width": or_null(COUNT),
    "data.preprocessing.mean": only_list(or_null(ANY)),
    "data.preprocessing.mode": Choice(("RGB", "L")),
    "data.preprocessing.range": only_list(replace(or_null(ANY), names=("auto", "full", "percentile")), 2),
    "data.preprocessing.resize": Choice(("shorter", "squash", "pad", "none"), null=True),
    "data.preprocessing.std": only_list(or_null(POSITIVE)),
    "data.resampling": Choice(("torch", "pillow")),
    "data.split_seed": SEED,
    "data.test": SAMPLES,
    "data.tokenizer": Node(),
    "data.tokenizer.kind": Choice(("byte", "bpe", "char")),
    "data.tokenizer.lower": Boolean(),
    "data.tokenizer.min_frequency": COUNT,
    "data.tokenizer.shared": Boolean(),
    "data.tokenizer.vocab_size": COUNT,
    "data.train": SAMPLES,
    "data.val": SAMPLES,
    "data.workers": replace(COUNT_OR_0, names=("auto",)),
    "distill.alpha": FRACTION,
    "distill.kind": Choice(("none", "soft", "hard", "token")),
    "distill.target": Choice(("soft", "hard")),
    "distill.tau": AT_LEAST_0,
    "finetune.always_trainable": Names(),
    "finetune.batch_norm": Choice(("auto", "frozen", "train")),
    "finetune.depth": or_null(COUNT_OR_0),
    "finetune.head_init": Choice(("auto", "random", "fit")),
    "finetune.head_norm": Choice(("none", "batch")),
    "finetune.lora": Node(null=True),
    "finetune.lora.alpha": POSITIVE,
    "finetune.lora.dropout": FRACTION_BELOW_1,
    "finetune.lora.matrices": Names(),
    "finetune.lora.rank": COUNT,
    "finetune.trainable": Choice(("all", "attention", "head")),
    "finetune.unfreeze_epochs": or_null(AT_LEAST_0),
    "logger": Node(),
    "logger.*": Node(null=True, target="a logger, such as pytorch_lightning.loggers.CSVLogger"),
    "model": Node(),
    **{f"model.{key}": Boolean() for key in MODEL_FLAGS},
    "model.*dropout": or_null(FRACTION_BELOW_1),
    "model.activation": Choice(("gelu", "gelu_tanh", "quick_gelu", "relu", "silu"), null=True),
    "model.attention": Choice(("scaled", "dot", "cosine", "bilinear", "additive", "local"), null=True),
    "model.block": Choice(("serial", "res_post_norm", "parallel"), null=True, former=("branch_norm",)),
    "model.decoder_depth": COUNT,
    "model.decoder_dim": COUNT,
    "model.decoder_mixer": Choice(("attention", "lstm", "gru", "conv1d"), null=True),
    "model.decoder_mlp_ratio": or_null(POSITIVE),
    "model.decoder_num_heads": COUNT,
    "model.depth": COUNT,
    "model.dilation": or_null(COUNT),
    "model.dim": COUNT,
    "model.drop_path": or_null(FRACTION_BELOW_1),
    "model.drop_path_schedule": Choice(("linear", "constant"), null=True),
    "model.final_norm": Choice(("tokens", "pooled", "none"), null=True),
    "model.global_tokens": or_null(COUNT_OR_0),
    "model.head_dim": or_null(COUNT),
    "model.heads": Choice(("split", "full"), null=True),
    "model.image_size": SIZE,
    "model.init_std": or_null(POSITIVE),
    "model.position_std": or_null(POSITIVE),
    "model.token_std": or_null(POSITIVE),
    "model.kernel": or_null(COUNT),
    "model.layer_scale": or_null(POSITIVE),
    "model.mask_ratio": BETWEEN_0_AND_1,
    "model.mixer": Choice(("attention", "lstm", "gru", "conv1d", "fnet"), null=True),
    "model.mlp": Choice(("mlp", "swiglu"), null=True),
    "model.mlp_ratio": POSITIVE,
    "model.name": Text(null=True),
    "model.norm": Choice(("layer", "rms", "batch"), null=True),
    "model.norm_eps": or_null(POSITIVE),
    "model.num_heads": COUNT,
    "model.patch_size": SIZE,
    "model.pool": Choice(("class", "mean", "sum", "class_mean", "attention", "pooler"), null=True),
    "model.pool_heads": or_null(COUNT),
    "model.pool_hidden": COUNT,
    "model.pool_mlp_ratio": or_null(POSITIVE),
    "model.positions": Choice(("learned", "sincos", "rotary", "relative", "none", "learned_rotary", "sincos_simple"),
                              null=True),
    "model.projection": Choice(("linear", "sliced", "none"), null=True),
    "model.registers": or_null(COUNT_OR_0),
    "model.relative_hidden": or_null(COUNT),
    "model.rotary_coordinates": Choice(("steps", "centred"), null=True),
    "model.rotary_pairs": Choice(("rotate_half", "interleaved"), null=True, former=("halves", "neighbours")),
    "model.rotary_theta": or_null(POSITIVE),
    "model.sincos_channels": Choice(("halves", "interleaved"), null=True),
    "model.stem": Choice(("linear", "normed", "conv", "compact", "masked_conv", "pooled_conv"), null=True),
    "model.tied": Choice(("none", "target", "all"), null=True),
    "model.value_dim": or_null(COUNT),
    "model.window": or_null(COUNT_OR_0),
    "recipe": Node(),
    "recipe.accumulate": COUNT,
    "recipe.augment": Node(null=True),
    "recipe.augment.*": Node(null=True, target="a step, such as vit.data.RandomErasing"),
    "recipe.augment.*.degrees": Number(0, 180),
    "recipe.augment.*.fill": BYTE,
    "recipe.augment.*.magnitude": Number(0, 30, null=True),
    "recipe.augment.*.num_ops": or_null(COUNT_OR_0),
    "recipe.augment.*.operations": Names("names of operations, or torchvision or timm", one=True),
    "recipe.augment.*.p": FRACTION,
    "recipe.augment.*.padding": COUNT_OR_0,
    "recipe.augment.*.reflect": Boolean(),
    "recipe.augment.*.scale": FRACTION_BELOW_1,
    "recipe.augment.*.shear": Number(0, 90, below=True),
    "recipe.augment.*.shift": FRACTION,
    "recipe.augment.*.std": Number(0, null=True),
    "recipe.average_epochs": or_null(COUNT),
    "recipe.batch_size": replace(or_null(COUNT), names=AUTO),
    "recipe.batch_tokens": or_null(COUNT),
    "recipe.clip": or_null(POSITIVE),
    "recipe.crop": Node(null=True),
    "recipe.crop.ratio": only_list(or_null(POSITIVE), length=2),
    "recipe.crop.scale": only_list(or_null(FRACTION_ABOVE_0), length=2),
    "recipe.drop_last": Boolean(names=AUTO),
    "recipe.ema": replace(or_null(BETWEEN_0_AND_1), names=AUTO),
    "recipe.epochs": replace(COUNT, names=AUTO),
    "recipe.loss": Node(),
    "recipe.loss.ctc": FRACTION_BELOW_1,
    "recipe.loss.label_smoothing": FRACTION_BELOW_1,
    "recipe.loss.name": Choice(("cross_entropy", "bce")),
    "recipe.loss.target_threshold": or_null(FRACTION_BELOW_1),
    "recipe.mixup": Node(null=True),
    "recipe.mixup.cutmix": AT_LEAST_0,
    "recipe.mixup.mixup": AT_LEAST_0,
    "recipe.mixup.prob": FRACTION,
    "recipe.mixup.switch": FRACTION,
    "recipe.optimizer": Node(),
    "recipe.optimizer.layer_decay": or_null(FRACTION_ABOVE_0),
    "recipe.optimizer.lr": or_null(AT_LEAST_0),
    "recipe.optimizer.lr_base_batch": or_null(COUNT),
    "recipe.optimizer.name": Text(),
    "recipe.optimizer.options": Node(null=True),
    "recipe.optimizer.options.betas": only_list(FRACTION_BELOW_1),
    "recipe.optimizer.options.eps": AT_LEAST_0,
    "recipe.optimizer.options.fallback_lr_scale": AT_LEAST_0,
    "recipe.optimizer.options.max_grad_norm": or_null(POSITIVE),
    "recipe.optimizer.options.momentum": FRACTION_BELOW_1,
    "recipe.optimizer.weight_decay": AT_LEAST_0,
    "recipe.progressive": Node(null=True),
    "recipe.progressive.image_size": only_list(or_null(COUNT), length=2),
    "recipe.progressive.patch_drop": only_list(or_null(FRACTION_BELOW_1), length=2),
    "recipe.progressive.stages": Number(2, 5, whole=True),  # each is one more compilation with compile=true
    "recipe.progressive.until": BETWEEN_0_AND_1,
    "recipe.repeats": COUNT,
    "recipe.schedule": Node(),
    "recipe.schedule.cooldown": FRACTION,
    "recipe.schedule.final": FRACTION,
    "recipe.schedule.name": Choice(("cosine", "wsd", "constant", "inverse_sqrt", "noam"), former=("trapezoid",)),
    "recipe.schedule.warmup": AT_LEAST_0,
    "strategy": Node(),
    "strategy.name": Choice(("auto", "single", "ddp", "fsdp")),
    "strategy.options.bucket_cap_mb": POSITIVE,
    "task": Node(),
    "task.decode": Node(),
    "task.decode.beam": COUNT,
    "task.decode.ctc": or_null(FRACTION),
    "task.decode.length_penalty": ANY,
    "task.decode.length_penalty_form": Choice(("power", "gnmt"), null=True),
    "task.decode.max_len": or_null(COUNT),
    "task.decode.min_len": COUNT_OR_0,
    "task.decode.no_repeat_ngram": COUNT_OR_0,
    "task.decode.tta": COUNT,
    "task.decode_rows": COUNT_OR_0,
    "task.examples": COUNT_OR_0,
    "task.examples_every": COUNT,
    "task.name": Choice(("classification", "text_classification", "masked_image", "masked_text", "seq2seq")),
    "task.pair_loss": AT_LEAST_0,
    "task.token_loss": AT_LEAST_0,
    "trainer": Node(),
    "trainer.accelerator": Choice(("auto", "cpu", "gpu", "cuda", "mps")),
    "trainer.deterministic": Boolean(),
    "trainer.devices": replace(Number(-1, whole=True), names=("auto",)),  # -1: all devices
    "trainer.log_every_n_steps": COUNT,
    "trainer.max_time": Duration(),
    "trainer.num_nodes": COUNT,
    "trainer.timeout": or_null(POSITIVE),
}


def valid_values(key: str) -> Kind | None:
    """The valid values of a dotted key; None for a key that may have any value, or that is checked where it is read."""
    if key in VALID_VALUES:
        return VALID_VALUES[key]
    patterns = (pattern for pattern in VALID_VALUES if "*" in pattern and key.count(".") == pattern.count(".")
                and fnmatchcase(key, pattern))
    return VALID_VALUES.get(next(patterns, key))
