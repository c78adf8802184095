"""`init_from`: weights to start from, with the architecture and preprocessing they came with where the source tells
them.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from vit.bundle import load_bundle
from vit.data import Preprocessing
from vit.data.text import Tokenizer
from vit.launch.composing import ConfigError, nearest
from vit.models import MaskedImageConfig, VisionTransformerConfig
from vit.training import trained_weights
from vit.weights import to_ours

HUB = "timm:"
IMAGE_KINDS = {cls.kind: cls for cls in (VisionTransformerConfig, MaskedImageConfig)}


@dataclass(frozen=True)
class Initial:
    """Weights under our names (`state`), and what else the source says: the model's config, the preprocessing."""

    name: str
    state: dict[str, Tensor]
    model: dict | None = None
    preprocessing: Preprocessing | None = None
    classes: list[str] | None = None
    tokenizers: dict[str, Tokenizer] | None = None

    @property
    def grid(self) -> tuple[int, int] | None:
        """(rows, columns) in patches, where the source says it."""
        config = IMAGE_KINDS.get((self.model or {}).get("kind"))
        return None if config is None else config.from_dict(self.model).grid

    @property
    def classifier(self) -> dict | None:
        """The config of an image classifier that takes the weights over: that of the source, or what it began for."""
        if self.model is None or self.model["kind"] != MaskedImageConfig.kind:
            return self.model
        return MaskedImageConfig.from_dict(self.model).classifier()


def load_initial(source: str) -> Initial:
    """A bundle, a run folder, one of our checkpoints, a weights file (.safetensors, .pt, .pth), or timm:NAME.

    Raises:
        ConfigError: nothing there, or nothing that is understood; says what is.
    """
    if source.startswith(HUB):
        return from_timm_hub(source.removeprefix(HUB))
    path = Path(source).expanduser()
    if not path.exists():
        raise ConfigError(f"init_from={source}: no such file or folder (a timm model by name: init_from=timm:NAME)")
    if path.is_dir():
        bundle = load_bundle(path)
        config = bundle.model.config.to_dict()
        return Initial(
            source, bundle.model.state_dict(), config, bundle.preprocessing, bundle.classes, bundle.tokenizers
        )
    return from_file(path)


def from_file(path: Path) -> Initial:
    if path.suffix not in (".safetensors", ".ckpt", ".pt", ".pth", ".bin"):
        raise ConfigError(
            f"init_from={path}: {path.suffix or 'no'} ending is not known; "
            "takes .safetensors, .ckpt, .pt, .pth, .bin or a folder"
        )
    try:
        content = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except Exception as error:
        raise ConfigError(
            f"init_from={path}: cannot be read as weights alone ({str(error).splitlines()[0][:120]})"
        ) from None
    if "pytorch-lightning_version" in content and "config" in content:
        return from_checkpoint(path, content)
    state = content.get("state_dict", content.get("model", content)) if isinstance(content, dict) else content
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigError(f"init_from={path}: holds no state dict of tensors")
    return Initial(str(path), to_ours(state))


def from_checkpoint(path: Path, content: dict) -> Initial:
    """One of our own training checkpoints; its averaged weights where it has them."""
    config = content["config"]
    preprocessing = Preprocessing.from_dict(config["data"]["preprocessing"])
    return Initial(str(path), trained_weights(path), config["model"], preprocessing, config["classes"])


def from_timm_hub(name: str) -> Initial:
    """Pretrained weights of a timm model, fetched by timm; the model trains as the timm model it is."""
    import timm

    if not timm.is_model(name.split(".")[0]):
        raise ConfigError(
            f"init_from={HUB}{name}: timm has no such model{nearest(name.split('.')[0], timm.list_models())}"
        )
    try:
        source = timm.create_model(name, pretrained=True)
    except Exception as error:
        raise ConfigError(
            f"init_from={HUB}{name}: its weights could not be fetched ({type(error).__name__}); without a network "
            "give a model, run or file of this machine, or init_from=null to start from nothing"
        ) from None
    return of_timm(name, source)


def of_timm(name: str, source: nn.Module) -> Initial:
    """A timm model with the preprocessing that it was made for."""
    import timm

    facts = timm.data.resolve_model_data_config(source)
    resize = {"center": "shorter", "squash": "squash", "border": "pad"}[facts["crop_mode"]]
    preprocessing = Preprocessing(
        facts["input_size"][1:],
        resize,
        1.0 if resize == "pad" else facts["crop_pct"],
        facts["interpolation"],
        facts["mean"],
        facts["std"],
    )
    channels, height, width = facts["input_size"]
    model = {
        "kind": "timm",
        "name": name.split(".")[0],
        "image_size": [height, width],
        "in_chans": channels,
        "num_classes": source.num_classes,
    }
    return Initial(f"{HUB}{name}", source.state_dict(), model, preprocessing)
