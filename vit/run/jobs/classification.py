"""Prepares image classification, with one label or several per image: the parts in the order of their dependencies."""

from functools import partial
from pathlib import Path

from torch import nn

from vit.data import Mixup, Preprocessing, Source
from vit.models import flops
from vit.run.config.checked import checked
from vit.run.config.composing import ConfigError
from vit.run.jobs.base import completed, log_parts
from vit.run.jobs.images import ImageClassification, audited, cost, describe, recorded_data
from vit.run.jobs.label_sets import LabelSets, settled
from vit.run.parts.auto_values import fit_recipe, steps_per_epoch
from vit.run.parts.batches import build_augment, build_batches, check_devices
from vit.run.parts.data_source import build_source
from vit.run.parts.devices import Devices
from vit.run.parts.distillation import build_distillation, with_absolute_teacher, with_token
from vit.run.parts.finetuning import start_finetuning
from vit.run.parts.head_fit import start_head
from vit.run.parts.init_from import load_initial, load_weights_of
from vit.run.parts.networks import build_model, model_name
from vit.run.parts.optimization import build_loss, build_optimization
from vit.run.parts.preprocessing import build_preprocessing
from vit.run.records import DataRecord
from vit.tasks import Classification, Distillation, MultiLabel


def prepare(
    config: dict, devices: Devices, checkpoint: Path | None = None, record: DataRecord | None = None
) -> ImageClassification:
    """Data, preprocessing, model, task. A resumed run loads nothing from `init_from`, and everything from its
    checkpoint.
    """
    data = config["data"]
    source = build_source(data, record)
    if not source.classes:
        raise ConfigError(f"data={data['name']}: its images have no labels, which task=classification needs; take "
                          "data=folder or data=table, or pre-train on them with task=masked_image model=mae")
    initial = load_initial(config, checkpoint, config["model"])
    preprocessing = build_preprocessing(data, source, initial)
    source, report = audited(source, preprocessing, data)
    config = fit_recipe(config, len(source.splits["train"]), devices.world)
    check_devices(config, devices.world)
    model = build_model(with_token(config), data["patch_size"], preprocessing, source.classes, initial)
    same = initial is not None and initial.classes == source.classes
    loaded = load_weights_of(initial, model, head=same, source_grid=initial.grid if initial is not None else None)
    name = config.get("model_name") or model_name(config["model"], initial)
    config = completed(config, model, name, data=recorded_data(data, source, preprocessing), classes=source.classes,
                       distill=with_absolute_teacher(config.get("distill")))
    if source.multi_label:
        config = settled(config, source)
    work = flops(model)
    facts = f"{source.num_classes} classes"
    log_parts(source.name, source.splits, facts, model, describe(config), cost(work, preprocessing.size))
    fit_head = partial(start_head, model, source, preprocessing, devices, data["on_bad_sample"])
    config = start_finetuning(config, model, loaded, fit_head)
    distillation = build_distillation(config, model, source, preprocessing)
    task = build_task(config, model, source, preprocessing, distillation)
    batches = build_batches(config, source, preprocessing)
    job = LabelSets if source.multi_label else ImageClassification
    return job(config, model, task, batches, source, preprocessing, report, work)


def build_task(
    config: dict, model: nn.Module, source: Source, preprocessing: Preprocessing, distillation: Distillation | None
) -> Classification:
    recipe, mixup = config["recipe"], None
    if recipe["mixup"]:
        mixup = checked("recipe.mixup", partial(Mixup, source.num_classes), recipe["mixup"], spread=True)
    return (MultiLabel if source.multi_label else Classification)(
        model,
        preprocessing,
        source.num_classes,
        build_loss(recipe["loss"], source, config["data"]["balance"]),
        build_optimization(recipe, model, steps_per_epoch(recipe, len(source.splits["train"]))),
        augment=build_augment(recipe["augment"], config["seed"]),
        mixup=mixup,
        seed=config["seed"],
        config=config,
        distillation=distillation,
    )
