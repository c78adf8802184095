"""Low-rank adaptation (LoRA): trainable updates of frozen matrices, merged into them when a model is saved."""

import math
import re
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.messages import check_several, did_you_mean, nearest_names
from vit.nn.drop import Dropout
from vit.training.optimization.layer_decay import BLOCK

FUSED = ("qkv", "kv")  # layers that are several matrices in one, named after them in order
# MLPs of relative positions, here and in timm: from offsets (2) to a bias per head, too small for low-rank updates
POSITION_MLP = re.compile(r"\.(relative|rel_pos|cpb_mlp)\.")


class Lora(nn.Module):
    """The low-rank update of a frozen linear layer: alpha / rank * up @ down @ x (arXiv 2106.09685).

    `up` starts at zero, so that the adapted model starts equal to the original. A fused layer, such as q, k and v in
    one matrix, gets one product for each of its P adapted parts.

    Args:
        parts: indices of the adapted parts of the layer, from 0.
        of: total number of parts of the layer, all equally wide.
        dropout: rate on the input of `down`.
    """

    def __init__(
        self, layer: nn.Linear, rank: int, alpha: float, dropout: float, parts: Sequence[int] = (0,), of: int = 1
    ) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(len(parts), rank, layer.in_features))  # (P,R,D)
        self.up = nn.Parameter(torch.zeros(len(parts), layer.out_features // of, rank))  # (P,O,R)
        for part in self.down:
            nn.init.kaiming_uniform_(part, a=math.sqrt(5))  # as in nn.Linear
        self.register_buffer("parts", torch.tensor(parts))  # saved: `merge_lora` needs only the state dict
        self.register_buffer("scale", torch.tensor(alpha / rank))
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """input of the layer (...,D), its output (...,O*parts) -> the output plus the update (...,O*parts)"""
        P, R, _ = self.down.shape
        z = F.linear(self.dropout(x), self.down.flatten(0, 1)) * self.scale  # (...,P*R)
        if P == 1 and self.up.shape[1] == y.shape[-1]:
            return y + F.linear(z, self.up[0])
        update = torch.einsum("...pr,por->...po", z.unflatten(-1, (P, R)), self.up)  # (...,P,O)
        return y.unflatten(-1, (-1, self.up.shape[1])).index_add(-2, self.parts, update.to(y.dtype)).flatten(-2)


def add_lora(
    model: nn.Module,
    matrices: Sequence[str],
    rank: int = 8,
    alpha: float = 8.0,
    dropout: float = 0.0,
) -> None:
    """Add a `Lora` to linear layers inside the blocks. Their classes and parameter names stay the same.

    Args:
        matrices: last parts of the layers' names, such as proj, fc1, fc2; q, k and v also where one layer holds all.

    Raises:
        TypeError: one name instead of several.
        ValueError: a matrix that no block has, or a rank above the smaller dimension of a matrix.
    """
    check_several("lora.matrices", matrices)
    if rank < 1:
        raise ValueError(f"lora.rank is {rank}, but must be 1 or more")
    check_matrices(model, matrices)
    for name, layer in list(block_layers(model)):
        parts = selected_parts(name, matrices)
        if not parts:
            continue
        of = number_of_parts(name, layer)
        largest = min(layer.in_features, layer.out_features // of)
        if rank > largest:
            raise ValueError(f"lora.rank is {rank}, but the largest rank of {name} is {largest}")
        layer.lora = Lora(layer, rank, alpha, dropout, parts, of).to(layer.weight.device)
        layer.register_forward_hook(add_update)


def add_update(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """The forward hook: input (...,D), output (...,O) -> the output plus the low-rank update (...,O)"""
    return layer.lora(inputs[0], output)


def block_layers(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """(name, layer) of the linear layers in numbered blocks, without the MLPs of relative positions."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and BLOCK.search(name) and not POSITION_MLP.search(name):
            yield name, layer


def selected_parts(name: str, matrices: Sequence[str]) -> list[int]:
    """Indices of the selected parts of a layer: [q, v] selects 0 and 2 of `attn.qkv`; [fc1] selects 0 of `mlp.fc1`."""
    leaf = name.rpartition(".")[2]
    if leaf in FUSED:
        return [i for i, letter in enumerate(leaf) if letter in matrices or leaf in matrices]
    return [0] if leaf in matrices or leaf.removesuffix("_proj") in matrices else []


def number_of_parts(name: str, layer: nn.Linear) -> int:
    """Number of matrices in a layer: 3 for `qkv`.

    Raises:
        ValueError: they are not equally wide.
    """
    leaf = name.rpartition(".")[2]
    if leaf not in FUSED:
        return 1
    widths = set(getattr(layer, "parts", [layer.out_features / len(leaf)] * len(leaf)))
    if len(widths) > 1 or layer.out_features % len(leaf):
        raise ValueError(f"{name} is {layer.out_features} wide, which is not {len(leaf)} equal parts; lora needs those")
    return len(leaf)


def check_matrices(model: nn.Module, matrices: Sequence[str]) -> None:
    """Check that the blocks of the model have these matrices.

    Raises:
        ValueError: there are no blocks, no names, or a name that no block has.
    """
    leaves = list(dict.fromkeys(name.rpartition(".")[2] for name, _ in block_layers(model)))
    known = list(dict.fromkeys(matrix for leaf in leaves for matrix in (leaf if leaf in FUSED else [leaf])))
    if not known:
        raise ValueError(f"lora needs linear layers inside numbered blocks, but {type(model).__name__} has none")
    if not matrices:
        raise ValueError(f"lora.matrices is empty; name some of {', '.join(known)}")
    for matrix in matrices:
        if not any(selected_parts(leaf, [matrix]) for leaf in leaves):
            hint = did_you_mean(nearest_names(matrix, known))
            raise ValueError(f"lora.matrices has {matrix!r}, but the blocks have {', '.join(known)}{hint}")
