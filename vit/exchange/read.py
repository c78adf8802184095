"""Sources of weights: files, folders, state dicts, models in memory, names on a hub -> tensors, and what they say of
themselves.
"""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.bundle import CONFIG, Contract, load_bundle
from vit.bundle.files import ACCEPTED, Mapped, SourceError, read_file, read_json
from vit.bundle.record import contract_from_dict
from vit.data import Preprocessing
from vit.data.text.tokenizers import Tokenizer, tokenizer_from_dict
from vit.exchange import pixels
from vit.files.checkpoints import verify
from vit.models.timm_model import nearest_timm_models
from vit.weights import detect_format
from vit.weights.trained import trained_weights

TIMM, HUB = "timm:", "hub:"
FILES = ("model.safetensors", "model.safetensors.index.json", "open_clip_model.safetensors",
         "pytorch_model.bin", "pytorch_model.bin.index.json", "open_clip_pytorch_model.bin")
CONFIGS = (CONFIG, "open_clip_config.json")
PIXELS = "preprocessor_config.json"
MULTI_LABEL, THRESHOLDS = "multi_label_classification", "label_thresholds"  # words of a config.json
# what programs call the weights in what they save; averages come before what they are averages of
WRAPPERS = ("state_dict_ema", "model_ema", "ema_state_dict", "ema", "state_dict", "model_state_dict", "model",
            "teacher", "student", "target_encoder", "encoder", "module", "network", "net", "weights", "params")
KINDS = f"a file ({ACCEPTED}), a folder of this program, timm or transformers, {TIMM}NAME or {HUB}OWNER/NAME"
Anything = str | PathLike[str] | Mapping[str, Any] | nn.Module


@dataclass(frozen=True)
class Source:
    """What was read, and all that it says about itself.

    Args:
        state: tensors under the source's own names.
        config: `config.json` of timm, transformers or OpenCLIP, parsed; `{"module": model}` for a model in memory; {}.
        model: the values of our own config, where the source is ours.
        use: what one of our checkpoints or bundles says of how its model is used.
        notes: what a report must say about the reading.
        shared: somebody else uses these tensors, so that they must be copied.
    """

    name: str
    state: dict[str, Tensor]
    config: Mapping[str, Any] = field(default_factory=dict)
    model: dict[str, Any] | None = None
    preprocessing: Contract | None = None
    classes: list[str] = field(default_factory=list)
    tokenizers: dict[str, Tokenizer] = field(default_factory=dict)
    thresholds: tuple[float, ...] = ()
    use: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    shared: bool = False


def read(source: Anything) -> Source:
    """Tensors and facts from a path, a state dict, a module of timm, torchvision, transformers or ours, or a hub name.

    Raises:
        SourceError: nothing there, or nothing that is understood; says what was seen and what is accepted.
    """
    if isinstance(source, nn.Module):
        return from_module(source)
    if isinstance(source, Mapping):
        state, notes = unwrap(source, "the mapping")
        return Source("the state dict", state, notes=notes, shared=True)
    if not isinstance(source, str | PathLike):
        raise SourceError(f"{type(source).__name__} is no source of weights; accepted: {KINDS}, a state dict, a model")
    name = str(source)
    if name.startswith(TIMM):
        return from_timm(name.removeprefix(TIMM))
    path = Path(source).expanduser()
    if name.startswith(HUB):
        path = fetched(name)
    if not path.exists():
        hint = f"; a model of the hub is written {HUB}{name}" if name.count("/") == 1 and "." not in name[:2] else ""
        raise SourceError(f"{name}: no such file or folder{hint}; accepted: {KINDS}")
    found = from_folder(path) if path.is_dir() else from_file(path)
    return found if not name.startswith(HUB) else named(found, name, path)


def from_folder(folder: Path) -> Source:
    """A bundle, a run folder with one, or a folder of timm, transformers or OpenCLIP."""
    inner = folder / "model"
    place = inner if not (folder / CONFIG).is_file() and (inner / CONFIG).is_file() else folder
    said = next((place / name for name in CONFIGS if (place / name).is_file()), None)
    config = read_json(said) if said else {}
    if "vit" in config:
        return from_bundle(place)
    file = next((place / name for name in FILES if (place / name).is_file()), None)
    if file is None:
        there = ", ".join(sorted(item.name for item in place.iterdir())[:5]) or "nothing"
        raise SourceError(f"{folder} holds no weights that are known: none of {', '.join(FILES)}, but {there}")
    return described(file, config, str(folder))


def from_file(path: Path) -> Source:
    """One file; a config.json beside it is read where the file has a name that such a config describes."""
    beside = next((path.parent / name for name in CONFIGS if (path.parent / name).is_file()), None)
    config = read_json(beside) if beside and path.name in FILES else {}
    return from_bundle(path.parent) if "vit" in config else described(path, config, str(path))


def from_bundle(folder: Path) -> Source:
    """Something of ours."""
    bundle = load_bundle(folder)
    return Source(str(folder), bundle.model.state_dict(), model=bundle.model.config.to_dict(),
                  preprocessing=bundle.preprocessing, classes=bundle.classes, tokenizers=bundle.tokenizers,
                  thresholds=bundle.thresholds, use=bundle.extra)


def described(path: Path, config: Mapping[str, Any], name: str) -> Source:
    """A file of weights with what its config says."""
    content = read_file(path)
    if isinstance(content, Mapping) and is_own_checkpoint(content):
        with explained(f"{path}: the config in it"):
            return from_checkpoint(path, content)
    state, notes = unwrap(content, str(path))
    if isinstance(content, Mapped):
        state = unmapped(path, state)
    if not config and detect_format(state) is None:
        config = config_by_name(path, state)
        notes += [f"by its name a {config['architecture']} of timm"] if config else []
    processor = read_json(path.parent / PIXELS) if config and (path.parent / PIXELS).is_file() else {}
    with explained(f"{path.parent}: how images are prepared"):
        prepared = preprocessing(config, processor)
    with explained(f"{path.parent}: the names of the classes"):
        classes = class_names(config)
        several = thresholds(config, len(classes))
    return Source(name, state, config, preprocessing=prepared, classes=classes, notes=notes, thresholds=several)


def is_own_checkpoint(content: Mapping[str, Any]) -> bool:
    """Whether this program's training wrote it; other users of Lightning may keep a `config` of their own."""
    config = content.get("config")
    model = config.get("model") if isinstance(config, Mapping) else None
    return "pytorch-lightning_version" in content and isinstance(model, Mapping) and "kind" in model


def config_by_name(file: Path, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """What a timm folder would say of a file that is named like a model of timm, as timm's own files are
    (`resnet18-5c106cde.pth`, `tf_efficientnet_lite0.safetensors`); {} for any other."""
    import timm

    name = file.name.split(".")[0].split("-")[0]
    if not timm.is_model(name):
        return {}
    cfg = timm.get_pretrained_cfg(name).to_dict()
    heads = cfg.get("classifier") or ()
    weights = [state.get(f"{head}.weight") for head in ([heads] if isinstance(heads, str) else heads)]
    classes = next((len(weight) for weight in weights if weight is not None), 0)
    return {"architecture": name, "num_classes": classes, "pretrained_cfg": {**cfg, "num_classes": classes}}


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Raises SourceError where a config is read and cannot be understood."""
    try:
        yield
    except SourceError:
        raise
    except Exception as error:  # the config may be anybody's
        raise SourceError(f"{what} cannot be understood from the config beside the weights "
                          f"({type(error).__name__}: {error}); correct it") from None


def unmapped(path: Path, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a mapped file in memory of their own."""
    if 2 * sum(tensor.nbytes for tensor in state.values()) > path.stat().st_size:  # little else would be read with them
        return unwrap(read_file(path, mapped=False), str(path))[0]
    return {name: tensor.clone() for name, tensor in state.items()}


def from_checkpoint(path: Path, content: Mapping[str, Any]) -> Source:
    """A training checkpoint of this project, of any task; its averaged weights where it has them."""
    if reason := verify(path):
        raise SourceError(f"checkpoint {path} cannot be used: {reason}")
    config = content["config"]
    tokenizers = {side: tokenizer_from_dict(values) for side, values in config.get("tokenizers", {}).items()}
    state = trained_weights(content)
    if isinstance(content, Mapped):
        state = {name: tensor.clone() for name, tensor in state.items()}
    if config["model"].get("tied") == "all":  # an average has the shared matrix under one name
        state.setdefault("target_embed.token.weight", state["embed.token.weight"])
    return Source(str(path), state, model=dict(config["model"]),
                  preprocessing=contract_from_dict(config["data"].get("preprocessing")),
                  classes=list(config.get("classes", ())), tokenizers=tokenizers, use=config.get("use", {}))


def from_module(module: nn.Module) -> Source:
    """A model in memory, whoever wrote it; what its class knows of itself counts as its config."""
    package, state = type(module).__module__.partition(".")[0], dict(module.state_dict())
    name = f"the {type(module).__name__} in memory"
    check_plain(state, name)
    config = getattr(module, "config", None)
    if getattr(config, "kind", None) and hasattr(config, "to_dict"):
        return Source(name, state, model=config.to_dict(), shared=True)
    if package == "transformers":
        values, classes = config.to_dict(), class_names(config.to_dict())
        return Source(name, state, values, classes=classes, thresholds=thresholds(values, len(classes)), shared=True)
    prepared = None
    if package == "timm" and getattr(module, "pretrained_cfg", None):
        timm = importlib.import_module("timm")
        prepared = pixels.of_timm(timm.data.resolve_model_data_config(module))
    known = package in ("timm", "torchvision", "vit_pytorch")
    return Source(name, state, {"module": module} if known else {}, preprocessing=prepared, shared=True)


def from_timm(name: str) -> Source:
    """Pretrained weights of a timm model, by its name there."""
    return named(from_module(pretrained(name)), f"{TIMM}{name}")


def pretrained(name: str) -> nn.Module:
    """A timm model with its weights, fetched by timm or taken from its cache.

    Raises:
        SourceError: timm has no such model, or its weights cannot be had.
    """
    import timm  # here, because it takes a second that most runs need not wait for

    if not timm.is_model(name.split(".")[0]):
        near = [each.replace("timm/", TIMM) for each in nearest_timm_models(name, 0.4)]
        raise SourceError(f"{TIMM}{name}: timm {timm.__version__} has no such model"
                          + (f"; nearest: {', '.join(near)}" if near else ""))
    try:
        ask_once(timm.get_pretrained_cfg(name))
        return timm.create_model(name, pretrained=True)
    except Exception as error:
        raise SourceError(f"{TIMM}{name}: its weights could not be fetched ({type(error).__name__}); without a network "
                          "give a file or folder of this machine") from None


def ask_once(cfg: Any) -> None:
    """Whether the hub answers, where timm would try for half a minute without a network; what is cached needs none."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    repo = getattr(cfg, "hf_hub_id", None)
    if repo and not any(isinstance(try_to_load_from_cache(repo, file), str) for file in FILES):
        HfApi(library_name="vit").model_info(repo)


def fetched(name: str) -> Path:
    """The folder of a model of the hub, after it was fetched."""
    from vit.exchange.hub import fetch  # here, because only this needs a network

    return fetch(name)


def named(source: Source, name: str, folder: Path | None = None) -> Source:
    values = {each: getattr(source, each) for each in source.__dataclass_fields__}
    notes = [*source.notes, f"from {folder}"] if folder else source.notes
    return Source(**{**values, "name": name, "notes": notes})


def unwrap(content: Any, place: str) -> tuple[dict[str, Tensor], list[str]]:
    """The state dict inside what a program saved, and what was left out around it.

    Raises:
        SourceError: there is none.
    """
    notes, trail = [], []
    while isinstance(content, Mapping) and len(trail) < len(WRAPPERS):  # a pickle can hold itself
        inside = [key for key in WRAPPERS if isinstance(content.get(key), Mapping)]
        if not inside:
            break
        trail.append(inside[0])
        if len(inside) > 1:
            notes.append(f"of {', '.join(inside)} the weights of {inside[0]} are taken")
        content = content[inside[0]]
    if not isinstance(content, Mapping):
        raise SourceError(f"{place} holds {type(content).__name__} and no tensors by name; accepted: {KINDS}")
    state = {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, Tensor)}
    check_plain(state, place)
    if not state:
        keys = ", ".join(map(str, list(content)[:5])) or "nothing"
        raise SourceError(f"{place} holds no tensors by name, but {keys}; accepted: a state dict, alone or under one "
                          f"of {', '.join(WRAPPERS)}")
    if len(state) < len(content):
        others = [str(name) for name in content if name not in state]
        notes.append(f"no tensors, so left out: {', '.join(others[:5])}")
    return state, notes


def check_plain(state: Mapping[str, Tensor], place: str) -> None:
    """Raises SourceError where tensors are only described, or not kept number by number."""
    for name, tensor in state.items():
        if tensor.is_meta or tensor.layout != torch.strided:
            what = "is on the meta device, without numbers" if tensor.is_meta else f"is kept as {tensor.layout}"
            raise SourceError(f"{place}: {name} {what}; give weights that are plain tensors")


def preprocessing(config: Mapping[str, Any], processor: Mapping[str, Any]) -> Preprocessing | None:
    """How images are prepared, where timm, transformers or OpenCLIP say it."""
    if "image_mean" in processor:
        return pixels.of_transformers(processor)
    if "preprocess_cfg" in config:
        return pixels.of_openclip(config["preprocess_cfg"], config.get("model_cfg", config))
    cfg = config.get("pretrained_cfg") or {}
    return pixels.of_timm(cfg) if {"input_size", "mean", "std"} <= set(cfg) else None


def thresholds(config: Mapping[str, Any], count: int) -> tuple[float, ...]:
    """For several names per image, which transformers calls a problem type: those written here, else one half."""
    if config.get("problem_type") != MULTI_LABEL:
        return ()
    return tuple(map(float, config.get(THRESHOLDS) or [0.5] * count))


def class_names(config: Mapping[str, Any]) -> list[str]:
    """timm's `label_names`, or transformers' `id2label` in the order of its numbers."""
    if isinstance(config.get("label_names"), list):
        return [str(name) for name in config["label_names"]]
    labels = config.get("id2label") or {}
    return [str(labels[number]) for number in sorted(labels, key=int)]
