"""Models of timm, built by name, with a config from which they can be rebuilt."""

import warnings
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from vit.messages import nearest_names, on_one_line
from vit.models.checks import check_values, pair
from vit.models.config import ModelConfig


@dataclass(frozen=True)
class TimmConfig(ModelConfig):
    """Configuration of a model of timm.

    Args:
        name: timm's name, with or without the prefix `timm:` or `timm/`.

    Raises:
        ValueError: a value is out of range.
    """

    kind: ClassVar[str] = "timm"

    name: str
    image_size: tuple[int, int] = (224, 224)
    in_chans: int = 3
    num_classes: int = 1000
    dropout: float = 0.0
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        object.__setattr__(self, "name", self.name.removeprefix("timm:").removeprefix("timm/"))
        check_values(self)

    def input_arguments(self) -> dict[str, int | list[int]]:
        """The input arguments of `timm.create_model`; only models with a fixed input size take `img_size`."""
        from timm.models import get_pretrained_cfg

        cfg = get_pretrained_cfg(self.name)
        fixed = cfg is not None and cfg.fixed_input_size
        return {"in_chans": self.in_chans, **({"img_size": list(self.image_size)} if fixed else {})}


def timm_model(config: TimmConfig) -> nn.Module:
    """The timm module itself with a `.config`; parameter names are timm's.

    Warns if `image_size` is not divisible by the patch size: timm then ignores the last rows or columns of pixels.

    Raises:
        ValueError: timm has no model of this name, or cannot build it with these values.
    """
    import timm  # imported here because it takes a second

    check_timm_name(config.name)
    try:
        model = timm.create_model(
            config.name,
            num_classes=config.num_classes,
            drop_rate=config.dropout,
            drop_path_rate=config.drop_path or None,  # None is accepted by models without stochastic depth
            **config.input_arguments(),
        )
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        reason = on_one_line(error)
        raise ValueError(f"timm cannot build {config.name} with {config.to_dict()}: {reason}") from error
    model.config = config
    check_patches(model, config)
    return model


def check_timm_name(name: str) -> None:
    """Raises ValueError if timm has no model of this name."""
    import timm

    name = name.removeprefix("timm:").removeprefix("timm/")
    if not timm.is_model(name):
        near = nearest_timm_models(name, 0.4)
        hint = f"nearest: {', '.join(near)}" if near else "timm.list_models() lists the names"
        raise ValueError(f"timm has no model {name!r}; {hint}")


def check_patches(model: nn.Module, config: TimmConfig) -> None:
    """Warn if the patches do not cover the image, unless `image_size` is timm's default size of the model.

    Raises:
        ValueError: an image is smaller than a patch.
    """
    from timm.layers import PatchEmbed
    from timm.models import get_pretrained_cfg

    embed, size = getattr(model, "patch_embed", None), config.image_size
    if not isinstance(embed, PatchEmbed) or embed.dynamic_img_pad:
        return
    patch = tuple(embed.patch_size)
    read = tuple(edge // by * by for edge, by in zip(size, patch, strict=True))
    if 0 in read:
        raise ValueError(f"image_size {size} is smaller than a patch of {config.name}, {patch}; use {patch} or more")
    cfg = get_pretrained_cfg(config.name)
    if read != size and (cfg is None or tuple(cfg.input_size[1:]) != size):
        warnings.warn(f"{config.name} reads {read[0]}x{read[1]} of the {size[0]}x{size[1]} pixels of an image, because "
                      f"image_size is not divisible by its patch size {patch[0]}x{patch[1]}", stacklevel=2)


def nearest_timm_models(name: str, cutoff: float) -> list[str]:
    """Up to three similar names in the form of `create_model`, nearest first; with `cutoff` 1 only an exact match."""
    import timm

    near = nearest_names(name.split(".")[0], timm.list_models(), n=3, cutoff=cutoff)
    return [f"timm:{name}" for name in near]
