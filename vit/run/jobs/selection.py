"""The job of a config; options that its task does not support are errors."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path

from hydra.utils import get_class

from vit.data import CorpusSplit, PairSplit, Split, TextSplit
from vit.messages import did_you_mean, nearest_names
from vit.run.config.composing import ConfigError
from vit.run.config.overrides import checked
from vit.run.console import console, stage_bar
from vit.run.jobs.base import Job
from vit.run.parts.batches import check_no_augment
from vit.run.parts.data_source import build_source
from vit.run.parts.devices import Devices
from vit.run.parts.finetuning import check_frozen, read_finetune, what_freezes
from vit.run.parts.init_from import check_source_name
from vit.run.parts.loggers import check_loggers
from vit.run.parts.named_targets import check_targets
from vit.run.parts.recipe import AUTO, check_optimizer, is_progressive
from vit.run.records.splits import DataRecord
from vit.training.optimization.optim import check_shardable

JOBS = {  # task.name -> class below `vit.run.jobs`, imported when needed
    "classification": "classification.ImageClassificationJob",
    "text_classification": "texts.TextClassificationJob",
    "masked_image": "masked_images.MaskedImageJob",
    "masked_text": "masked_texts.MaskedTextJob",
    "seq2seq": "seq2seq.Seq2SeqJob",
}
# nodes that records of earlier versions and a user's own primary config may lack, or that are null
DEFAULTS = {"calibrate": "none", "distill": {"kind": "none"}, "finetune": {}, "report": False}
SAMPLES = {  # class of a split -> what it has, and the tasks that use it
    Split: ("images", ("classification", "masked_image")),
    TextSplit: ("labelled texts", ("text_classification",)),
    CorpusSplit: ("sentences of documents", ("masked_text",)),
    PairSplit: ("pairs of a text or image and its target text", ("seq2seq",)),
}
SPLITS = {  # data set of the project, which `data._target_` names -> class of its splits
    **dict.fromkeys(("cifar10", "cifar100", "digits", "fashion_mnist", "folder", "imagenet", "mnist",
                     "unlabelled_images"), Split),
    "text_table": TextSplit,
    "corpus": CorpusSplit,
    **dict.fromkeys(("digit_strips", "image_text", "parallel", "spelled_numbers"), PairSplit),
}
MULTI_LABEL_JOB = "multi_label.MultiLabelJob"  # task=classification on images with several labels each


def build_job(config: dict, devices: Devices, checkpoint: Path | None = None, record: DataRecord | None = None) -> Job:
    """The job of a config.

    Args:
        devices: devices of the run, among which the batch must be divisible.
        checkpoint: the checkpoint from which the run is resumed.
        record: the recorded samples of a resumed run.

    Raises:
        ConfigError, DataError: with the key or file, and the fix.
    """
    config = with_defaults(config)
    job = check_job(config, devices)
    with nullcontext() if devices.rank else stage_bar(console) as progress:
        source = build_source(config["data"], record, config.get("overrides"), progress)
    check_split_class(job, type(next(iter(source.splits.values()))), config)
    if config["task"]["name"] == "classification" and source.multi_label:
        job = get_class(f"{__package__}.{MULTI_LABEL_JOB}")
    return job(config, source, devices, checkpoint)


def check_job(config: dict, devices: Devices) -> type[Job]:
    """The class of the job, after the checks that need no data.

    Raises:
        ConfigError: with the key and the fix.
    """
    config = with_defaults(config)
    if (task := config["task"]["name"]) not in JOBS:
        hint = did_you_mean(nearest_names(task, JOBS))
        raise ConfigError(f"task.name={task} is not one of {', '.join(JOBS)}{hint}")
    job = get_class(f"{__package__}.{JOBS[task]}")
    if split_class := SPLITS.get(str(config["data"]["_target_"]).removeprefix("vit.data.")):
        check_split_class(job, split_class, config)
    check_task(job, config)
    job.check_config(config, devices)
    job.check_recipe(config)
    if not config.get("resumed"):
        for key, source in (("init_from", config["init_from"]), ("distill.teacher", config["distill"].get("teacher"))):
            if source:
                check_source_name(key, source)
    check_targets(config)
    optimizer = config["recipe"]["optimizer"]
    check_optimizer(optimizer)
    if config["strategy"].get("name") == "fsdp":
        name = optimizer.get("name", "adamw")
        checked("recipe.optimizer", partial(check_shardable, name), optimizer.get("options"))
    if config["logger"]:
        check_loggers(config["logger"])
    return job


def check_split_class(job: type[Job], split_class: type, config: dict) -> None:
    """Raises ConfigError if the task cannot use splits of this class."""
    if not issubclass(split_class, job.split_class):
        kind, tasks = next(found for each, found in SAMPLES.items() if issubclass(split_class, each))
        raise ConfigError(f"data={config['data']['name']} has {kind}, but task={config['task']['name']} needs "
                          f"{SAMPLES[job.split_class][0]}; choose other data, or "
                          f"{' or '.join(f'task={each}' for each in tasks)}")


def with_defaults(config: dict) -> dict:
    """The config, with the nodes of `DEFAULTS` that it lacks."""
    return config | {key: value for key, value in DEFAULTS.items() if config.get(key) is None}


def check_task(job: type[Job], config: dict) -> None:
    """Checks options that not every task has.

    Raises:
        ConfigError: names the option and the task.
    """
    task, recipe, finetune, distill = config["task"]["name"], config["recipe"], read_finetune(config), config["distill"]
    if distill["kind"] != "none" and task != "classification":
        raise ConfigError(f"distill={distill['kind']} is for task=classification; {task} has no teacher")
    if finetune.freezes and not job.finetunes:
        cause, fix = what_freezes(finetune)
        raise ConfigError(f"{cause} freezes weights, but task={task} trains the whole model; {fix}")
    for key in () if job.accepts_auto else ("batch_size", "epochs", "ema"):
        if recipe.get(key) == AUTO:
            raise ConfigError(f"recipe.{key}=auto is for images, but task={task} trains on {job.unit}; give a number")
    if not config.get("resumed"):
        check_frozen(finetune, config["init_from"])
    if not job.accepts_progressive and is_progressive(recipe):
        raise ConfigError(f"recipe.progressive is for image classification, but this is task={task}; set its "
                          "image_size and patch_drop to null")
    if not job.accepts_repeats and (repeats := recipe.get("repeats", 1)) != 1:
        raise ConfigError(f"recipe.repeats={repeats} is for image classification and masked pre-training of images, "
                          f"but this is task={task}; set it to 1")
    if not job.accepts_augment:
        check_no_augment(recipe)
