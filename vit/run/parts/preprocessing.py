"""The preprocessing of a run: the values of the config, else those of `init_from`, else measured on the training
images.
"""

import logging

from vit.data import (
    AnyPreprocessing,
    LinePreprocessing,
    PackedPreprocessing,
    PairSource,
    PairSplit,
    Preprocessing,
    Source,
    Split,
    estimate,
)
from vit.data.decoding.bit_depth import FULL, RULES, has_unknown_depth
from vit.data.images.preprocessing_values import IMAGENET_MEAN, IMAGENET_STD, as_size
from vit.data.pairs.line_widths import fitting_width
from vit.data.statistics import array_type, resolve_range
from vit.messages import override_for_shell
from vit.run.config.overrides import checked
from vit.run.config.valid_values import DEFAULT_SIZE
from vit.run.parts.init_from import Initial

log = logging.getLogger("vit")


def build_preprocessing(data: dict, source: Source, initial: Initial | None) -> Preprocessing:
    """The preprocessing of images of one size; in a resumed run with `data.pack`, the recorded one. Mean, std and range
    are measured on the training split if neither the config nor `init_from` has them.

    Raises:
        ConfigError: names the key of `data.preprocessing`; or `init_from` is not a model of images.
    """
    if initial is not None:
        initial.check_classifies()
    stated, rule = stated_preprocessing(data)
    if data["image_size"] is not None:
        stated["size"] = as_size(data["image_size"])
    train = source.splits["train"]
    if initial is not None and initial.preprocessing is not None:
        known = initial.preprocessing
        values = merged(known.of_one_size() if isinstance(known, PackedPreprocessing) else known, stated)
        return with_range(checked("data.preprocessing", Preprocessing.from_dict, values), train, rule)
    if initial is not None and not {"mean", "std"} <= set(stated):
        log.warning("init_from=%s does not state its preprocessing: mean and std are measured on the training images; "
                    "most weights were trained with %s %s", initial.name,
                    override_for_shell("data.preprocessing.mean", list(IMAGENET_MEAN)),
                    override_for_shell("data.preprocessing.std", list(IMAGENET_STD)))
    stated.setdefault("size", (initial.image_size if initial is not None else None) or as_size(DEFAULT_SIZE))
    recorded = PackedPreprocessing if "max_patches" in stated else Preprocessing
    made = checked("data.preprocessing", recorded.from_dict, with_default_statistics(stated))
    return with_statistics(with_range(made, train, rule), train, stated)


def build_line_preprocessing(data: dict, source: PairSource, initial: Initial | None) -> LinePreprocessing:
    """The preprocessing of line images. Mean, std and range are taken from `init_from` if it has the same colour mode;
    otherwise they are measured on the training split. A `max_width` of null is measured there, too.

    Raises:
        ConfigError: names the key of `data.preprocessing`.
    """
    stated, rule = stated_preprocessing(data)
    stated["patch_size"] = data["patch_size"]
    known = initial.preprocessing.to_dict() if initial is not None and initial.preprocessing is not None else {}
    if known.get("mode") == stated.get("mode", "RGB"):
        stated = {key: known[key] for key in ("mean", "std", "range")} | stated
    train, measured = source.splits["train"], "max_width" not in stated
    if measured:
        stated["max_width"] = as_size(stated["patch_size"])[1]
    made = checked("data.preprocessing", LinePreprocessing.from_dict, with_default_statistics(stated))
    if measured:
        made = made.replace(max_width=max(fitting_width(train, made), known.get("max_width", 0)))
        log.info("lines: up to %d x %d pixels (data.preprocessing.max_width)", made.height, made.max_width)
    return with_statistics(with_range(made, train, rule), train, stated)


def with_default_statistics(stated: dict) -> dict:
    """The stated values, with a mean and std of one half where they are missing."""
    channels = 1 if stated.get("mode") == "L" else 3
    return {"mean": [0.5] * channels, "std": [0.5] * channels, **stated}


def with_statistics(preprocessing: AnyPreprocessing, train: Split | PairSplit, stated: dict) -> AnyPreprocessing:
    """The preprocessing with the mean and std of the training images where they are not stated."""
    if "mean" in stated and "std" in stated:
        return preprocessing
    measured = dict(zip(("mean", "std"), estimate(train, preprocessing), strict=True))
    return preprocessing.replace(**measured | {key: stated[key] for key in ("mean", "std") if key in stated})


def stated_preprocessing(data: dict) -> tuple[dict, str | None]:
    """The values of `data.preprocessing` that are not null, and the rule by which the range is measured.

    The rule is None if the config has a range that needs no measurement: `full`, [low, high], or the recorded range of
    a resumed run. It is empty if the config has no range, which is then that of `init_from`, else measured by the rule
    `auto`.
    """
    stated = {key: value for key, value in data["preprocessing"].items() if value is not None}
    rule = stated.get("range", "" if "range" in data["preprocessing"] else FULL)
    if rule not in ("", *RULES) or rule == FULL:
        return {**stated, "range": rule}, None
    return {key: value for key, value in stated.items() if key != "range"}, rule


def with_range(preprocessing: AnyPreprocessing, train: Split | PairSplit, rule: str | None) -> AnyPreprocessing:
    """The preprocessing with the range of pixel values measured by the rule of `stated_preprocessing`.

    Raises:
        DataError: the stated range is `full`, and arrays of integers may be of 8 or of 16 bits.
    """
    if preprocessing.range != FULL and not rule:
        return preprocessing
    if rule is None:
        dtype = array_type(train)
        known = dtype is None or not has_unknown_depth(dtype)
        return preprocessing if known else resolve_range(train, preprocessing, FULL)[0]
    preprocessing, text = resolve_range(train, preprocessing, rule or "auto")
    if text:
        log.info("pixels: %s", text)
    return preprocessing


def merged(initial: Preprocessing, stated: dict) -> dict:
    """The values of `init_from`, replaced by the stated ones. Where the colour mode changes, mean and std are averaged
    over the channels, because those of colours do not fit grey pixels and vice versa.
    """
    values = initial.to_dict()
    if stated.get("mode", initial.mode) != initial.mode:
        channels = 1 if stated["mode"] == "L" else 3
        values |= {key: [sum(values[key]) / len(values[key])] * channels for key in ("mean", "std")}
    return {**values, **stated}
