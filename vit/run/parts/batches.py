"""Training and validation batches, from the `data` and `recipe` nodes of the config."""

import logging
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from hydra.utils import instantiate
from torch import nn
from torch.utils.data import Dataset

from vit.data import (
    Augment,
    DeviceImages,
    EvalBatches,
    ImageDataset,
    LinePreprocessing,
    Mixup,
    PackedAugment,
    PackedImageDataset,
    PackedPreprocessing,
    PairDataset,
    PairSource,
    Preprocessing,
    RandomCrop,
    RandomPatches,
    RandomResizedCrop,
    Source,
    Split,
    TrainBatches,
)
from vit.data.augment.random_crop import Sizing
from vit.data.text.tokenizers import Tokenizer
from vit.data.threads import StageProgress
from vit.messages import agree, number_of
from vit.run.config.composing import ConfigError
from vit.run.config.overrides import check_kind, checked
from vit.run.config.value_checks import too_many_repeats
from vit.run.parts.recipe import AUTO
from vit.tasks import Batches, DeviceBatches

log = logging.getLogger("vit")


def build_batches(config: dict, datasets: Mapping[str, ImageDataset]) -> Batches:
    """The training and validation loaders of images; `recipe.batch_size` is global, over devices and micro-batches."""
    data, recipe, seed = config["data"], config["recipe"], config["seed"]
    repeats = recipe.get("repeats", 1)
    return (DeviceBatches if data.get("cache") == "device" else Batches)(
        partial(train_loader, datasets["train"], recipe, seed, data["workers"], data["balance"], repeats=repeats),
        partial(val_loader, datasets["val"], micro_batch(recipe), data["workers"]),
    )


def image_datasets(config: dict, source: Source, preprocessing: Preprocessing) -> dict[str, ImageDataset]:
    """The training images, with their random crop, and the validation images; their caches are not filled yet."""
    data, recipe, seed = config["data"], config["recipe"], config["seed"]
    packed = isinstance(preprocessing, PackedPreprocessing)
    crop = build_crop(recipe["crop"], seed, relative=packed) if recipe["crop"] else None
    if packed and data["min_patches"] is not None:
        crop = RandomPatches(data["min_patches"], crop, seed)
    return {"train": image_dataset(data, source.splits["train"], preprocessing, crop),
            "val": image_dataset(data, source.splits["val"], preprocessing)}


def image_dataset(data: dict, split: Split, preprocessing: Preprocessing, crop: Sizing | None = None) -> ImageDataset:
    """A split with the caching and decoding that the `data` node selects; its cache is not filled yet.

    Raises:
        DataError: the images cannot be on the device.
    """
    if data.get("cache") != "device":
        dataset = PackedImageDataset if isinstance(preprocessing, PackedPreprocessing) else ImageDataset
        return dataset(split, preprocessing, crop, **image_loading(data), fill=False)
    limit = int(data["cache_limit"] * 1e9)
    return DeviceImages(
        split, preprocessing, crop, cache_bytes=limit, on_bad_sample=data["on_bad_sample"], fill=False
    )


def check_device_images(config: dict) -> None:
    """Checks what `data.cache=device` requires, before the data is read.

    Raises:
        ConfigError: loading processes, or random crops, which need whole images on the host.
    """
    workers = config["data"]["workers"]
    if workers not in (0, AUTO):
        raise ConfigError(f"data.workers={workers} has no effect with data.cache=device, whose images are loaded once; "
                          "use data.workers=auto")
    if config["recipe"]["crop"]:
        raise ConfigError("data.cache=device keeps images of the final size, but recipe.crop cuts random boxes out of "
                          "whole images; use recipe.crop=null, or data.cache=memory")


def image_loading(data: dict) -> dict:
    """The arguments of `ImageDataset` that the `data` node selects. Runs of versions without `data.resampling` used
    Pillow.
    """
    found = {"decoder": data.get("decoder", "auto"), "resampling": data.get("resampling", "pillow"),
             "cache": data.get("cache", "auto")}
    if found["cache"] in ("memory", "disk"):
        found["cache_bytes"] = int(data["cache_limit"] * 1e9)
        found["cache_side"] = data["cache_side"]
        found["cache_dir"] = Path(data["cache_dir"]).expanduser() if data["cache_dir"] else None
    found["cache"] = False if found["cache"] == "none" else found["cache"]
    return {**found, "on_bad_sample": data["on_bad_sample"]}


def build_pair_datasets(
    data: dict,
    source: PairSource,
    preprocessing: LinePreprocessing | None,
    tokenizers: Mapping[str, Tokenizer],
    max_len: int,
    augment: Augment | None,
    progress: StageProgress | None = None,
) -> dict[str, PairDataset]:
    """The tokenized train and val splits. With `data.on_long=error` the test split is included, so that a text that is
    too long is reported before training. Otherwise long texts of val are truncated, never left out.

    Args:
        max_len: the model's limit of tokens, which is used if the config has none.
        progress: called while texts are tokenized and images are read.
    """
    limits = {
        "max_source_len": data["max_source_len"] or max_len,
        "max_target_len": data["max_target_len"] or max_len,
    }
    strict = data["on_long"] == "error"
    made = {
        key: PairDataset(
            split,
            preprocessing or tokenizers["source"],
            tokenizers["target"],
            **limits,
            on_long=data["on_long"] if strict or key == "train" else "cut",
            on_bad_sample=data["on_bad_sample"],
            augment=augment if key == "train" else None,
            progress=progress,
        )
        for key, split in source.splits.items()
        if strict or key in ("train", "val")
    }
    for key, dataset in made.items():
        warn_about_cut_texts(dataset.cut, key)
        if dataset.squeezed:
            wider = agree(len(dataset.squeezed), "is wider", "are wider")
            log.warning("%d of %s of %s %s than data.preprocessing.max_width=%d and squeezed to it, such as %s: %s; "
                        "raise it, or set it to null", len(dataset.squeezed), number_of(len(dataset.split), "image"),
                        key, wider, preprocessing.max_width, *dataset.squeezed[0])
    return made


def warn_about_cut_texts(cut: list[tuple[str, str]], key: str) -> None:
    """Warn about the texts (name, reason) of a split that are truncated, if there are any."""
    if cut:
        log.warning("%s of %s %s cut, such as %s: %s", number_of(len(cut), "text"), key, agree(len(cut), "is", "are"),
                    *cut[0])


def build_crop(crop: dict, seed: int, relative: bool = False) -> RandomResizedCrop | RandomCrop:
    """The random crop of training: a box of random size with `scale`, otherwise the largest box, at a random position.

    Args:
        relative: whether `ratio` is relative to the aspect ratio of the image.

    Raises:
        ConfigError: names `scale` or `ratio`.
    """
    if crop["scale"] is None:
        return RandomCrop(seed)
    return checked("recipe.crop", partial(RandomResizedCrop, seed=seed, relative=relative), crop, unpack=True)


def build_mixup(mixup: dict, num_classes: int) -> Mixup:
    """Mixup and CutMix of a recipe.

    Raises:
        ConfigError: names the key of `recipe.mixup`.
    """
    return checked("recipe.mixup", partial(Mixup, num_classes), mixup, unpack=True)


def build_augment(steps: dict | None, seed: int, packed: bool = False) -> Augment | None:
    """The batch augmentations, in the order of the recipe, without steps that are null.

    Args:
        packed: the images have different sizes.

    Raises:
        ConfigError: names the step.
    """
    made = []
    for key, step in (steps or {}).items():
        if step is None:
            continue
        if not isinstance(step, dict) or step.get("_target_") is None:
            raise ConfigError(f"recipe.augment.{key}={step}: must be null, or a node with the _target_ of a step, "
                              "such as vit.data.RandomErasing")
        node = {name: value for name, value in step.items() if value is not None}
        made.append(checked(f"recipe.augment.{key}", instantiate, node))
        check_kind(f"recipe.augment.{key}", made[-1], nn.Module, "torch.nn.Module", node)
    return (PackedAugment if packed else Augment)(made, seed) if made else None


def check_no_augment(recipe: dict) -> None:
    """Raises ConfigError for image augmentation of texts."""
    if steps := [key for key, step in (recipe.get("augment") or {}).items() if step is not None]:
        raise ConfigError(
            f"recipe.augment ({', '.join(steps)}) is for images, but this data is text; leave augment= out")


def train_loader(
    dataset: Dataset, recipe: dict, seed: int, workers: int | str, balance: str, rank: int, world: int,
    repeats: int = 1,
) -> TrainBatches:
    drop_last = recipe.get("drop_last", True)
    return TrainBatches(
        dataset, recipe["batch_size"], seed, rank, world, workers, balance, recipe["accumulate"], drop_last, repeats
    )


def val_loader(dataset: Dataset, batch_size: int, workers: int | str, rank: int, world: int) -> EvalBatches:
    return EvalBatches(dataset, max(batch_size, world) // world * world, rank, world, workers)


def micro_batch(recipe: dict) -> int:
    """Samples of a micro-batch over all devices."""
    return recipe["batch_size"] // recipe["accumulate"]


def check_batch(recipe: dict, train: int, unit: str, devices: int = 1) -> None:
    """Checks that `train` samples fill a batch, and that it has room for all copies of an image.

    Raises:
        ConfigError: they do not; names a batch size that fits the samples, micro-batches and devices, if there is one.
    """
    if problem := too_many_repeats(recipe):  # of an automatic batch size
        raise ConfigError(problem)
    if train < recipe["batch_size"]:
        multiple = recipe["accumulate"] * devices
        valid = (train // 2 // multiple or train // multiple) * multiple
        fix = f"use recipe.batch_size={valid}" if valid else (
            f"recipe.accumulate={recipe['accumulate']} on {number_of(devices, 'device')} needs at least {multiple} "
            f"{unit}")
        raise ConfigError(f"recipe.batch_size={recipe['batch_size']} is larger than the training set of "
                          f"{number_of(train, unit.removesuffix('s'))}; {fix}")


def check_devices(config: dict, devices: int) -> None:
    """Checks that the global batch is divisible by micro-batches and devices; `auto` always is.

    Raises:
        ConfigError: names the key and the nearest valid batch size.
    """
    batch_size, accumulate = config["recipe"]["batch_size"], config["recipe"]["accumulate"]
    if batch_size is None:
        raise ConfigError("recipe.batch_size=null: must be a number of samples; only task=seq2seq has "
                          "recipe.batch_tokens instead")
    if batch_size == AUTO:
        return
    near = max(1, math.ceil(batch_size / (accumulate * devices) - 0.5)) * accumulate * devices
    if batch_size % accumulate:
        raise ConfigError(
            f"recipe.batch_size={batch_size} is not divisible by recipe.accumulate={accumulate}; nearest: {near}"
        )
    if batch_size % (accumulate * devices):
        micro = f" x recipe.accumulate={accumulate}" if accumulate > 1 else ""
        raise ConfigError(f"recipe.batch_size={batch_size}, the global batch, is not divisible by "
                          f"{number_of(devices, 'device')}{micro}; nearest: {near}")
