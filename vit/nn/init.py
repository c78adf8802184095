"""Weight initialization, and the training and evaluation mode of modules."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from vit.nn.attention import Sliced
from vit.nn.embed import PatchEmbed, TokenEmbed
from vit.nn.pool import AttentionPool
from vit.nn.stem import LinearPatches


def init_weights(
    model: nn.Module, std: float | None = None, token_std: float | None = None, position_std: float | None = None
) -> None:
    """Initialize the weights of a model in place, as the original ViT and big_vision do: Xavier matrices, zero biases.

    Queries, keys and values are one matrix each. The patch projection is initialized as a matrix (MoCo v3, arXiv
    2104.02057; MAE, arXiv 2111.06377). Token, segment and position tables have std D^-1/2 (big_vision), so that their
    sums are balanced. Class token and registers have std 1e-6 (MoCo v3), a `head` 0.02, which is zero in big_vision.
    Norms, LayerScale and the convolutions of a stem keep their own initialization.

    Args:
        std: deviation of the matrices, from a normal distribution, instead of Xavier: 0.02 in BERT, DeiT and timm.
        token_std: deviation of class token, distillation token and registers, and of the tables of tokens and
            segments: 0.02 in BERT and DeiT.
        position_std: deviation of learned position tables: 0.02 in BERT, DeiT and timm.
    """
    for name, module in model.named_modules():
        leaf = name.rpartition(".")[2]
        # torch truncates at -2 and 2, 100 deviations of 0.02: as timm's, in effect a normal distribution; that of BERT
        # ends at two deviations
        if isinstance(module, nn.Linear) and leaf in ("head", "head_dist"):
            nn.init.trunc_normal_(module.weight, std=0.02)
        elif isinstance(module, nn.Linear) and std is not None:
            nn.init.trunc_normal_(module.weight, std=std)
        elif isinstance(module, nn.Linear):
            parts = getattr(module, "parts", [module.out_features])  # several matrices in one
            for matrix in module.weight.detach().split(parts):
                nn.init.xavier_uniform_(matrix)
        elif isinstance(module, Sliced) and std is not None:  # its own initialization is Xavier's
            nn.init.trunc_normal_(module.weight, std=std)
        elif isinstance(module, LinearPatches):
            nn.init.xavier_uniform_(module.weight.detach().flatten(1))
        elif isinstance(module, PatchEmbed):
            for token in (module.cls_token, module.dist_token, module.reg_token):
                if token is not None:
                    nn.init.normal_(token, std=1e-6 if token_std is None else token_std)
        elif isinstance(module, TokenEmbed):
            for table in (module.token, module.segment):
                if table is not None:
                    nn.init.normal_(table.weight, std=table.embedding_dim**-0.5 if token_std is None else token_std)
        elif isinstance(module, AttentionPool):
            nn.init.normal_(module.latent, std=module.latent.shape[-1] ** -0.5)
        if isinstance(module, (nn.Linear, LinearPatches)) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(getattr(module, "pos_embed", None), nn.Parameter):
            deviation = module.pos_embed.shape[-1] ** -0.5 if position_std is None else position_std
            nn.init.normal_(module.pos_embed, std=deviation)


RANDOM = (torch.Tensor.normal_, torch.Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.trunc_normal_,
          nn.init.kaiming_uniform_, nn.init.kaiming_normal_, nn.init.xavier_uniform_, nn.init.xavier_normal_)


class SkipInit(TorchFunctionMode):
    """A context in which modules are built without random initialization, for models that are loaded right after.

    It saves the seconds that the initialization of a ViT-B takes; memory that is never written is never allocated.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.normal_:  # trunc_normal_ redraws until all values are in range: garbage may never be
            return args[0].zero_()
        if func in RANDOM:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def restored_modes(*models: nn.Module) -> Iterator[None]:
    """Restore the mode of every module on exit, including submodules whose mode differs from that of their parent."""
    modes = {module: module.training for model in models for module in model.modules()}
    try:
        yield
    finally:
        for module, mode in modes.items():
            if module.training != mode:  # setting an attribute of a module is slow
                module.training = mode


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Put the models in evaluation mode, and restore the mode of every module on exit."""
    with restored_modes(*models):
        for model in models:
            if any(module.training for module in model.modules()):
                model.eval()
        yield
