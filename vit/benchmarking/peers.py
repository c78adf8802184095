"""The same Vision Transformer in other libraries, with the same shapes and, where a library has all of its parameters,
the same weights.
"""

import importlib.util
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vit.files.strict_json import json_text
from vit.models import VisionTransformer, VisionTransformerConfig
from vit.weights import timm_arguments, to_timm
from vit.weights.export_checks import check_exportable
from vit.weights.formats.torchvision import to_torchvision
from vit.weights.transformers_export import to_transformers


class MissingPeer(ValueError):
    """A library that is not installed or lacks a part of the model; the message is the reason."""


@dataclass(frozen=True)
class Peer:
    """A network of another library.

    Args:
        has_same_weights: whether it has the weights of the model, so that the outputs are equal.
        extra_parameters: number of its weights minus that of the model.
        remark: a note on the weights that it has in addition or lacks.
    """

    network: nn.Module
    has_same_weights: bool = True
    extra_parameters: int = 0
    remark: str | None = None


class LogitsOnly(nn.Module):
    """A classifier of transformers that returns only its logits."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """(B,C,H,W) -> (B,classes)"""
        return self.network(pixel_values=images).logits


def in_timm(model: VisionTransformer) -> Peer:
    """timm's network.

    Raises:
        MissingPeer: timm has no such model.
    """
    import timm

    arguments = timm_arguments(model.config)
    if isinstance(arguments, str):
        raise MissingPeer(arguments)
    name, values = arguments["architecture"], arguments["model_args"]
    network = timm.create_model(name, num_classes=model.config.num_classes, **values)
    network.load_state_dict(to_timm(model.state_dict(), model.config))
    return Peer(network)


def in_torchvision(model: VisionTransformer) -> Peer:
    """torchvision's VisionTransformer.

    Raises:
        ValueError: torchvision's class lacks a part of the model.
    """
    from torchvision.models import VisionTransformer as TorchvisionTransformer

    config = model.config
    state = to_torchvision(model.state_dict(), config)
    network = TorchvisionTransformer(
        image_size=config.image_size[0],
        patch_size=config.patch_size[0],
        num_layers=config.depth,
        num_heads=config.num_heads,
        hidden_dim=config.dim,
        mlp_dim=config.hidden,
        num_classes=config.num_classes,
    )
    network.load_state_dict(state)
    return Peer(network)


def in_transformers(model: VisionTransformer) -> Peer:
    """The classifier of transformers, with torch's fused attention.

    Raises:
        ValueError: no class of transformers computes the same function.
    """
    from safetensors.torch import save_file
    from transformers import AutoModelForImageClassification
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    config, tensors = to_transformers(model.state_dict(), model.config)
    labels = {str(i): f"class {i}" for i in range(model.config.num_classes)}
    config = {**config, "id2label": labels, "label2id": {name: int(i) for i, name in labels.items()}}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json_text(config), encoding="utf-8")
        tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        save_file(tensors, Path(folder, "model.safetensors"), metadata={"format": "pt"})
        network = AutoModelForImageClassification.from_pretrained(folder, attn_implementation="sdpa")
    return Peer(LogitsOnly(network))


def in_vit_pytorch(model: VisionTransformer) -> Peer:
    """vit-pytorch's ViT, which has norms around the patch projection and no bias of queries, keys and values.

    Raises:
        ValueError: vit-pytorch's class lacks a part of the model.
    """
    from vit_pytorch import ViT

    config = model.config
    supported = {"stem": ("linear", "normed"), "pool": ("class", "mean"), "class_token": (True, False),
                 "activation": ("gelu",), "positions": ("learned",)}
    check_exportable(config, "vit-pytorch's ViT", supported)
    if (config.pool == "class") != config.class_token:
        raise MissingPeer(f"vit-pytorch's ViT has a class token with pool=class only, not with pool={config.pool}")
    network = ViT(
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_classes=config.num_classes,
        dim=config.dim,
        depth=config.depth,
        heads=config.num_heads,
        mlp_dim=config.hidden,
        pool="cls" if config.pool == "class" else "mean",
        channels=config.in_chans,
        dim_head=config.head_width,
    )
    norms = 0 if config.stem == "normed" else 2 * (config.in_chans * patch_pixels(config) + config.dim)
    biases = 3 * config.dim * config.depth if config.qkv_bias else 0
    remark = f"has {norms:,} weights of norms around the patch projection; lacks {biases:,} biases of queries, keys " \
             "and values" if norms or biases else None
    return Peer(network, has_same_weights=False, extra_parameters=norms - biases, remark=remark)


def patch_pixels(config: VisionTransformerConfig) -> int:
    return config.patch_size[0] * config.patch_size[1]


MODEL_PEERS: dict[str, Callable[[VisionTransformer], Peer]] = {
    "timm": in_timm,
    "torchvision": in_torchvision,
    "transformers": in_transformers,
    "vit-pytorch": in_vit_pytorch,
}
INSTALL = {  # peer -> how to install it
    "transformers": 'pip install "vitwright[bench]"',
    "vit-pytorch": 'pip install "vitwright[bench]"',
    "ctranslate2": 'pip install "vitwright[bench]"',
}


def check_installed(name: str) -> None:
    """Checks that the library of a peer can be imported.

    Raises:
        MissingPeer: it is not installed.
    """
    if importlib.util.find_spec(name.replace("-", "_")) is None:
        raise MissingPeer(f"{name} is not installed: {INSTALL.get(name, f'pip install {name}')}")


def build_peer(name: str, model: VisionTransformer) -> Peer:
    """The network of the library `name` with the architecture of the model; the number of parameters is checked.

    Raises:
        MissingPeer: the library is not installed, or cannot express the model.
    """
    if name not in MODEL_PEERS:
        raise MissingPeer(f"{name} has no image classifiers")
    check_installed(name)
    if getattr(model.config, "kind", None) != "vit":
        raise MissingPeer("only Vision Transformers of this project are compared")
    try:
        peer = MODEL_PEERS[name](model)
    except ValueError as error:
        raise MissingPeer(str(error)) from None
    expected = count_parameters(model) + peer.extra_parameters
    if (parameters := count_parameters(peer.network)) != expected:
        raise MissingPeer(f"it has {parameters:,} parameters instead of {expected:,}, so it is another network")
    return peer


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@torch.inference_mode()
def difference(model: nn.Module, peer: nn.Module, images: Tensor) -> float:
    """Largest difference of the logits of images (B,C,H,W), relative to the largest logit.

    Args:
        model, peer: networks in evaluation mode.
    """
    ours, theirs = model(images), peer(images)
    return float((ours - theirs).abs().max() / ours.abs().max())
