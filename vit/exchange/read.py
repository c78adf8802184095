"""Reads any source of weights into a `Checkpoint`: files, folders, names on a hub, state dicts, models in memory."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vit.bundle import load_bundle
from vit.bundle.files import Mapped, SourceError, read_file, read_json
from vit.bundle.loading import models_inside
from vit.bundle.record import preprocessing_from_dict
from vit.data import Preprocessing
from vit.data.images.preprocessing_values import as_size
from vit.data.text.tokenizers import tokenizer_from_dict
from vit.exchange import preprocessing
from vit.exchange.checkpoint import Checkpoint
from vit.exchange.options import Hints
from vit.exchange.preprocessing import PREPROCESSING_KEYS
from vit.exchange.source_names import HUB, TIMM, TIMM_SLASH, hint_at_missing_source
from vit.exchange.sources import (
    ACCEPTED_SOURCES,
    CONFIG_FILES,
    PROCESSOR_FILE,
    PROCESSORS_FILE,
    WEIGHT_FILES,
    WeightSource,
)
from vit.exchange.state_dicts import check_plain_tensors, find_state_dict
from vit.exchange.timm_networks import pretrained_timm_model, timm_config_by_name
from vit.files.checkpoints import verify
from vit.weights import detect_format
from vit.weights.formats.transformers_config import declared_num_classes
from vit.weights.training_checkpoint import trained_weights

MULTI_LABEL, THRESHOLDS = "multi_label_classification", "label_thresholds"  # a problem_type and a key of config.json


def read_checkpoint(source: WeightSource, hints: Hints | None = None) -> Checkpoint:
    """The tensors of a source and everything that the source states about itself.

    Args:
        source: a path, a state dict, a module of timm, torchvision, transformers or this project, `timm:NAME` or
            `hub:OWNER/NAME`.
        hints: what the caller states about the network.

    Raises:
        SourceError: the source does not exist or holds no weights of a known form; the message names what was found and
            what is accepted.
        BundleError: a damaged folder of this project.
    """
    found = read_source(source)
    return found if hints is None else replace(found, hints=hints)


def read_source(source: WeightSource) -> Checkpoint:
    """The checkpoint of a source, by its kind: a module, a state dict, timm, the hub, a folder or a file.

    Raises:
        SourceError: it is none of these, or does not exist.
    """
    if isinstance(source, nn.Module):
        return read_module(source)
    if isinstance(source, Mapping):
        state, notes = find_state_dict(source, "the mapping")
        return Checkpoint("the state dict", state, notes=notes, shared=True)
    if not isinstance(source, str | PathLike):
        raise SourceError(f"{type(source).__name__} is not a source of weights; accepted: {ACCEPTED_SOURCES}, a state "
                          "dict, a model")
    name, path = str(source), Path(source).expanduser()
    if name.startswith(TIMM):
        return read_timm_model(name.removeprefix(TIMM))
    if name.startswith(HUB):
        return read_hub_model(name)
    if not path.exists():
        if name.startswith(TIMM_SLASH):
            return read_timm_model(name.removeprefix(TIMM_SLASH))
        raise SourceError(f"no such file or folder{hint_at_missing_source(name) or ''} (accepted: {ACCEPTED_SOURCES})",
                          name)
    return replace(read_path(path), name=str(path))


def read_path(path: Path) -> Checkpoint:
    return read_folder(path) if path.is_dir() else read_single_file(path)


def read_folder(folder: Path) -> Checkpoint:
    """A bundle, a run folder that holds one, or a folder of timm, transformers or OpenCLIP.

    Raises:
        SourceError: the folder has no file of weights.
    """
    bundle = folder / "model"
    if (folder / CONFIG_FILES[0]).is_file() or not (bundle / CONFIG_FILES[0]).is_file():
        bundle = folder
    if "vit" in read_config(bundle):
        return read_bundle(bundle)
    file = next((bundle / name for name in WEIGHT_FILES if (bundle / name).is_file()), None)
    if file is None:
        found = ", ".join(sorted(item.name for item in bundle.iterdir())[:5]) or "nothing"
        raise SourceError(f"the folder holds no known file of weights: none of {', '.join(WEIGHT_FILES)}, but {found}"
                          f"{models_inside(folder)}", folder)
    return read_weights_file(file, read_config(bundle, file.name), str(folder))


def read_single_file(path: Path) -> Checkpoint:
    """The checkpoint in a file, with the config beside it if the file has the usual name of weights with a config."""
    config = read_config(path.parent, path.name) if path.name in WEIGHT_FILES else {}
    return read_bundle(path.parent) if "vit" in config else read_weights_file(path, config, str(path))


def read_config(folder: Path, weights: str = "") -> dict[str, Any]:
    """The config of timm, transformers, OpenCLIP or this project in a folder; {} without one.

    Args:
        weights: the name of the file that is read: a folder may have OpenCLIP's config and weights beside others.
    """
    names = CONFIG_FILES[::-1] if weights.startswith("open_clip") else CONFIG_FILES
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    return with_pretrained_cfg(read_json(file)) if file else {}


def with_pretrained_cfg(config: dict[str, Any]) -> dict[str, Any]:
    """A timm config whose `pretrained_cfg` is an object of its own: versions before 0.8 wrote its keys beside
    `architecture`, and the names of the classes as `labels`. Any other config as it is.
    """
    if "architecture" not in config or "pretrained_cfg" in config or not PREPROCESSING_KEYS & set(config):
        return config
    names = {"label_names": config["labels"]} if "labels" in config else {}
    return {**names, **config, "pretrained_cfg": dict(config)}


def read_processor(folder: Path) -> dict[str, Any]:
    """The config of transformers' image processor in a folder, as transformers finds it; {} without one."""
    together, alone = folder / PROCESSORS_FILE, folder / PROCESSOR_FILE
    if together.is_file() and "image_processor" in (values := read_json(together)):
        return values["image_processor"]
    return read_json(alone) if alone.is_file() else {}


def read_bundle(folder: Path) -> Checkpoint:
    bundle = load_bundle(folder)
    return Checkpoint(str(folder), bundle.model.state_dict(), model_config=bundle.model.config.to_dict(),
                      stated_preprocessing=bundle.preprocessing, class_names=bundle.classes,
                      tokenizers=bundle.tokenizers, thresholds=bundle.thresholds, calibration=bundle.calibration,
                      extra=bundle.extra, bundle=bundle)


def read_weights_file(path: Path, config: Mapping[str, Any], name: str) -> Checkpoint:
    """A file of weights with what its config states."""
    content = read_file(path)
    if isinstance(content, Mapping) and is_own_checkpoint(content):
        with config_errors_explained(f"{path}: the config in it"):
            return read_training_checkpoint(path, content)
    state, notes = find_state_dict(content, str(path))
    if isinstance(content, Mapped):
        state = copy_mapped(path, state)
    if not config and detect_format(state) is None:
        config = timm_config_by_name(path, state)
        notes += [f"by its name a {config['architecture']} of timm"] if config else []
    with config_errors_explained(f"{path.parent}: the preprocessing of images"):
        prepared = find_preprocessing(config, read_processor(path.parent) if config else {})
    with config_errors_explained(f"{path.parent}: the class names"):
        classes = find_class_names(config)
        thresholds = find_thresholds(config, len(classes))
    return Checkpoint(name, state, config, stated_preprocessing=prepared, class_names=classes, notes=notes,
                      thresholds=thresholds)


def is_own_checkpoint(content: Mapping[str, Any]) -> bool:
    """Whether the training of this project saved it; other users of Lightning may have a `config` of their own."""
    config = content.get("config")
    model = config.get("model") if isinstance(config, Mapping) else None
    return "pytorch-lightning_version" in content and isinstance(model, Mapping) and "kind" in model


def read_training_checkpoint(path: Path, content: Mapping[str, Any]) -> Checkpoint:
    """A training checkpoint of this project, of any task; its averaged weights if it has them.

    Raises:
        SourceError: the file is damaged.
    """
    if reason := verify(path):
        raise SourceError(f"the checkpoint cannot be used: {reason}", path)
    config = content["config"]
    tokenizers = {side: tokenizer_from_dict(values) for side, values in config.get("tokenizers", {}).items()}
    state = trained_weights(content)
    if isinstance(content, Mapped):
        state = {name: tensor.clone() for name, tensor in state.items()}
    if config["model"].get("tied") == "all":  # an average has the shared matrix under one name
        state.setdefault("target_embed.token.weight", state["embed.token.weight"])
    classes = list(config.get("classes", ()))
    several = bool(classes) and assigns_several_labels(config)
    notes = ["a run chooses the thresholds of its labels at its end; 0.5 is that of each"] if several else []
    return Checkpoint(str(path), state, model_config=dict(config["model"]),
                      stated_preprocessing=preprocessing_from_dict(config["data"].get("preprocessing")),
                      class_names=classes, tokenizers=tokenizers, thresholds=(0.5,) * len(classes) if several else (),
                      extra=config.get("use", {}), notes=notes, from_training=True)


def assigns_several_labels(config: Mapping[str, Any]) -> bool:
    """Whether the config of a run is that of several labels per image.

    Earlier versions did not record it. Their runs of several labels monitor the mean average precision, or read cells
    or columns of several labels.
    """
    monitor, data = (config.get("callbacks") or {}).get("monitor"), config["data"]
    stated = bool(data.get("label_separator")) or isinstance(data.get("label"), list)
    return bool(config.get("multi_label")) or monitor == "val/map" or stated


@contextmanager
def config_errors_explained(what: str) -> Iterator[None]:
    """Raises SourceError where a config, which may be malformed in any way, cannot be understood."""
    try:
        yield
    except SourceError:
        raise
    except Exception as error:
        raise SourceError(f"{what} cannot be understood from the config beside the weights "
                          f"({type(error).__name__}: {error}); correct it") from None


def copy_mapped(path: Path, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a memory-mapped file in memory of their own."""
    if 2 * sum(tensor.nbytes for tensor in state.values()) > path.stat().st_size:  # the file holds little else
        return find_state_dict(read_file(path, mapped=False), str(path))[0]
    return {name: tensor.clone() for name, tensor in state.items()}


def read_module(module: nn.Module) -> Checkpoint:
    """A model in memory, of any library, also if it is compiled or wrapped for several devices.

    A model of timm, torchvision or vit_pytorch states its config by its modules.
    """
    module = unwrapped(module)
    package, state = type(module).__module__.partition(".")[0], dict(module.state_dict())
    name = f"the {type(module).__name__} in memory"
    check_plain_tensors(state, name)
    config = getattr(module, "config", None)
    if getattr(config, "kind", None) and hasattr(config, "to_dict"):
        return Checkpoint(name, state, model_config=config.to_dict(), shared=True)
    if any(cls.__module__.startswith("transformers.") for cls in type(module).__mro__):  # a subclass too
        values = config.to_dict()
        classes = find_class_names(values)
        return Checkpoint(name, state, values, class_names=classes, thresholds=find_thresholds(values, len(classes)),
                          shared=True)
    known = package in ("timm", "torchvision", "vit_pytorch")
    found = Checkpoint(name, state, {"module": module} if known else {}, shared=True)
    cfg = getattr(module, "pretrained_cfg", None) if package == "timm" else None
    if not cfg:
        return found
    import timm

    return replace(found, class_names=find_class_names(cfg),
                   stated_preprocessing=preprocessing.from_timm(timm.data.resolve_model_data_config(module)))


def unwrapped(module: nn.Module) -> nn.Module:
    """The model inside torch's wrappers: of torch.compile, DataParallel, DistributedDataParallel and AveragedModel."""
    while type(module).__module__.startswith("torch."):
        inside = [part for name, part in module.named_children() if name in ("_orig_mod", "module")]
        if not inside:
            break
        module = inside[0]
    return module


def read_timm_model(name: str) -> Checkpoint:
    """Published weights of a timm model, by its name there."""
    return replace(read_module(pretrained_timm_model(name)), name=f"{TIMM}{name}", shared=False)


def read_hub_model(name: str) -> Checkpoint:
    """A model of the Hugging Face hub, by `hub:OWNER/NAME[@REVISION]`."""
    from vit.exchange.hub import fetch  # only this needs a network

    folder = fetch(name)
    found = read_path(folder)
    return replace(found, name=name, notes=[*found.notes, f"from {folder}"])


def find_preprocessing(config: Mapping[str, Any], processor: Mapping[str, Any]) -> Preprocessing | None:
    """The preprocessing that timm, transformers or OpenCLIP state; None where they state none."""
    model_type = config.get("model_type")
    if preprocessing.states_preprocessing(processor, model_type):
        return preprocessing.from_transformers(processor, model_type)
    if "preprocess_cfg" in config:
        return preprocessing.from_openclip(config["preprocess_cfg"], config.get("model_cfg", config))
    cfg = config.get("pretrained_cfg") or {}
    if not PREPROCESSING_KEYS & set(cfg):
        return None
    size = (config.get("model_args") or {}).get("img_size")
    sized = {"input_size": (3, *as_size(size))} if size is not None and cfg.get("input_size") is None else {}
    return preprocessing.from_timm({**cfg, **sized})


def find_thresholds(config: Mapping[str, Any], count: int) -> tuple[float, ...]:
    """The thresholds of a classifier with several labels per image, by default one half; () for one label.

    Args:
        count: number of class names; 0 if the config has none, although it may have their number.
    """
    if config.get("problem_type") != MULTI_LABEL:
        return ()
    count = count or config.get("num_classes") or (config.get("pretrained_cfg") or {}).get("num_classes") or 0
    return tuple(map(float, config.get(THRESHOLDS) or [0.5] * count))


def find_class_names(config: Mapping[str, Any]) -> list[str]:
    """timm's `label_names`, or transformers' `id2label` in the order of its numbers.

    transformers does not save its default names LABEL_0, LABEL_1, ..., which are restored here.
    """
    for values in (config, config.get("pretrained_cfg") or {}):
        if isinstance(values.get("label_names"), list):
            return [str(name) for name in values["label_names"]]
    labels = config.get("id2label")
    if labels is None:
        return [f"LABEL_{i}" for i in range(declared_num_classes(config).get("num_classes", 0))]
    return [str(labels[number]) for number in sorted(labels, key=int)]
