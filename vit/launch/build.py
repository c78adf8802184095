"""From a plain config to the parts of a run. Each function reads one node of the config and returns one part."""

import importlib
import inspect
import logging
from functools import partial

from hydra.errors import HydraException
from hydra.utils import instantiate
from torch import nn

from vit.data import (
    Augment,
    ImageDataset,
    Mixup,
    Preprocessing,
    RandomCrop,
    RandomResizedCrop,
    Source,
    eval_batches,
    estimate,
    train_batches,
)
from vit.launch.composing import ConfigError, nearest
from vit.launch.initial import Initial
from vit.models import create_model, model_from_config
from vit.tasks import Batches, BinaryCrossEntropy, Classification, CrossEntropy
from vit.training import build_optimizer, build_schedule, scaled_lr

log = logging.getLogger("vit")

DEFAULT_SIZE = 224
LOADING = {"_target_", "name", "image_size", "patch_size", "preprocessing", "workers", "balance", "on_bad_sample", "audit_seconds"}


def build_source(data: dict) -> Source:
    """Call the data set function that `data._target_` names with the keys of `data` that it takes."""
    module, _, name = data["_target_"].rpartition(".")
    function = getattr(importlib.import_module(module), name)
    takes = inspect.signature(function).parameters
    for key in data:
        if key not in takes and key not in LOADING:
            raise ConfigError(f"data.{key}: {data['_target_']} takes no {key!r}{nearest(key, list(takes))}")
    return function(**{key: data[key] for key in takes if key in data})


def build_preprocessing(data: dict, source: Source, initial: Initial | None) -> Preprocessing:
    """The contract: what the config states, else what `init_from` brings, else the default (mean and std measured)."""
    stated = {key: value for key, value in data["preprocessing"].items() if value is not None}
    if data["image_size"] is not None:
        stated["size"] = pair(data["image_size"])
    if initial is not None and initial.preprocessing is not None:
        adopted = initial.preprocessing.to_dict()
        return Preprocessing.from_dict({**adopted, **stated})
    stated.setdefault("size", pair(DEFAULT_SIZE))
    if "mean" in stated and "std" in stated:
        return Preprocessing.from_dict(stated)
    channels = 1 if stated.get("mode") == "L" else 3
    blank = Preprocessing.from_dict({"mean": [0.5] * channels, "std": [0.5] * channels, **stated})
    mean, std = estimate(source.splits["train"], blank)
    return blank.replace(**{"mean": mean, "std": std, **{k: stated[k] for k in ("mean", "std") if k in stated}})


def build_model(model: dict, patch_size, preprocessing: Preprocessing, classes: list[str], initial: Initial | None) -> nn.Module:
    """The network of `model`, for these pixels and classes.

    With `init_from` the architecture is the source's, unless `model` states one; a resumed run's config holds it whole.
    """
    if model.get("kind"):
        return model_from_config(model)
    fits = {"image_size": preprocessing.size, "in_chans": preprocessing.channels, "num_classes": len(classes)}
    stated = {key: value for key, value in model.items() if value is not None and key != "name"}
    if initial is not None and model["name"] is None:
        return model_from_config({**initial.model, **_listed(fits), **_listed(stated)})
    if model["name"] is None:
        raise ConfigError("model.name must be given, such as model.name=vit_tiny (python -m vit models lists them)")
    if not model["name"].startswith("timm/"):
        stated.setdefault("patch_size", patch_size)
    return create_model(model["name"], **{**fits, **stated})


def build_loss(loss: dict, source: Source, balance: str) -> nn.Module:
    """Soft-label cross entropy, or binary cross entropy over classes (Wightman et al. 2021)."""
    weights = source.class_weights() if balance == "loss" else None
    losses = {"cross_entropy": CrossEntropy, "bce": BinaryCrossEntropy}
    if loss["name"] not in losses:
        raise ConfigError(f"recipe.loss.name={loss['name']}: must be cross_entropy or bce{nearest(loss['name'], list(losses))}")
    return losses[loss["name"]](loss["label_smoothing"], weights)


def build_task(config: dict, model: nn.Module, source: Source, preprocessing: Preprocessing) -> Classification:
    recipe, seed = config["recipe"], config["seed"]
    lr = recipe["optimizer"]["lr"]
    if recipe["optimizer"]["lr_base_batch"]:
        lr = scaled_lr(lr, recipe["batch_size"], recipe["optimizer"]["lr_base_batch"])
    optimizer = {key: value for key, value in recipe["optimizer"].items() if key not in ("lr", "lr_base_batch")}
    mixup = Mixup(source.num_classes, **recipe["mixup"]) if recipe["mixup"] else None
    return Classification(
        model,
        preprocessing,
        source.num_classes,
        loss=build_loss(recipe["loss"], source, config["data"]["balance"]),
        optimizer=partial(build_optimizer, lr=lr, **optimizer),
        schedule=partial(_schedule, **recipe["schedule"]),
        augment=build_augment(recipe["augment"], seed),
        mixup=mixup,
        clip=recipe["clip"],
        seed=seed,
        config=config,
    )


def build_augment(steps: dict | None, seed: int) -> Augment | None:
    """The batch augmentations in the order in which the recipe names them; a step that is null is left out."""
    made = []
    for key, step in (steps or {}).items():
        if step is not None:
            try:
                made.append(instantiate({name: value for name, value in step.items() if value is not None}))
            except HydraException as error:
                raise ConfigError(f"recipe.augment.{key}: {' '.join(str(error.__cause__ or error).split())}") from None
    return Augment(made, seed) if made else None


def build_batches(config: dict, source: Source, preprocessing: Preprocessing) -> Batches:
    """The training and validation loaders; `recipe.batch_size` counts all devices and accumulated micro-batches."""
    data, recipe = config["data"], config["recipe"]
    if recipe["batch_size"] % recipe["accumulate"]:
        raise ConfigError(f"recipe.batch_size={recipe['batch_size']} is not divisible by recipe.accumulate={recipe['accumulate']}")
    micro = recipe["batch_size"] // recipe["accumulate"]
    sizing = build_sizing(recipe["crop"], config["seed"])
    train = ImageDataset(source.splits["train"], preprocessing, sizing, on_bad_sample=data["on_bad_sample"])
    val = ImageDataset(source.splits["val"], preprocessing, on_bad_sample=data["on_bad_sample"])
    return Batches(
        partial(_train_loader, train, micro, config["seed"], data["workers"], data["balance"]),
        partial(_val_loader, val, micro, data["workers"]),
    )


def build_sizing(crop: dict | None, seed: int) -> RandomResizedCrop | RandomCrop | None:
    """The random crop of training: boxes of random size where `scale` is given, else the largest box at a random place."""
    if not crop:
        return None
    if crop["scale"] is None:
        return RandomCrop(seed)
    return RandomResizedCrop(tuple(crop["scale"]), tuple(crop["ratio"]), seed)


def check_devices(config: dict, devices: int) -> None:
    """A global batch that the devices cannot share is an error now, not in the first step."""
    micro = config["recipe"]["batch_size"] // config["recipe"]["accumulate"]
    if micro % devices:
        near = max(1, micro // devices) * devices * config["recipe"]["accumulate"]
        raise ConfigError(
            f"recipe.batch_size={config['recipe']['batch_size']} cannot be shared by {devices} devices; "
            f"nearest: {near} (it is the global batch)"
        )


def pair(size) -> tuple[int, int]:
    """`32` or `[32, 48]` -> (rows, columns)."""
    return (size, size) if isinstance(size, int) else tuple(size)


def _train_loader(dataset, batch_size, seed, workers, balance, rank, world):
    return train_batches(dataset, batch_size, seed, rank, world, workers, balance)


def _val_loader(dataset, batch_size, workers, rank, world):
    return eval_batches(dataset, max(batch_size, world) // world * world, rank, world, workers)


def _schedule(optimizer, total_steps, name, warmup, final, cooldown):
    steps = round(warmup * total_steps) if warmup < 1 else int(warmup)
    return build_schedule(optimizer, name, total_steps, steps, final, cooldown)


def _listed(values: dict) -> dict:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
