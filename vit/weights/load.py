"""Weights from elsewhere into a model of another resolution or other classes, with an account of every tensor."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vit.nn.embed import TokenEmbed
from vit.nn.position import resample
from vit.weights.bert import BERT
from vit.weights.format import State
from vit.weights.timm import TIMM, to_timm
from vit.weights.torchvision import TORCHVISION
from vit.weights.transformers import TRANSFORMERS

FORMATS = (TIMM, TORCHVISION, TRANSFORMERS, BERT)  # the first that knows the names counts
POSITIONS = ("embed.pos_embed", "pos_embed")
SHOWN = 8  # rows of one status in the table


@dataclass(frozen=True)
class KeyRow:
    """What became of one tensor: "taken" as it is, "resized", "new" (random as before) or "unused"."""

    name: str
    status: str
    shape: tuple[int, ...] | None
    source_shape: tuple[int, ...] | None


@dataclass(frozen=True)
class KeyReport:
    rows: list[KeyRow]

    def count(self, status: str) -> int:
        return sum(row.status == status for row in self.rows)

    def table(self) -> str:
        """The sum, then every tensor that was not simply taken."""
        counts = [f"{self.count(status)} {status}" for status in ("taken", "resized", "new", "unused")]
        lines = [", ".join(counts)]
        for status in ("resized", "new", "unused"):
            rows = [row for row in self.rows if row.status == status]
            lines += [f"  {status:8}{row.name}  {shapes(row)}" for row in rows[:SHOWN]]
            if len(rows) > SHOWN:
                lines.append(f"  {status:8}... and {len(rows) - SHOWN} more")
        return "\n".join(lines)


def shapes(row: KeyRow) -> str:
    """`(1, 197, 192) -> (1, 65, 192)`, or the one there is."""
    return " -> ".join(str(shape) for shape in (row.source_shape, row.shape) if shape is not None)


def to_ours(state: State) -> dict[str, Tensor]:
    """A state dict of timm's, torchvision's or transformers' ViT or BERT under our names; any other as it is."""
    for foreign in FORMATS:
        if foreign.known(state):
            return foreign.convert(state)
    return dict(state)


def load_weights(
    model: nn.Module,
    state: State,
    *,
    head: bool = True,
    source_grid: tuple[int, int] | None = None,
    parts: tuple[str, ...] = ("",),
) -> KeyReport:
    """Copy into the model what fits by name and shape; learned positions are fitted to the model's grid or length.

    What does not fit keeps its random values: a head of another class count, an input projection of other patches.

    Args:
        state: names of any format of `vit.weights`.
        head: False leaves the head new although it may fit, for other classes of the same count.
        source_grid: (rows, columns) of the source's position table; a square one need not be named.
        parts: beginnings of the names to load, such as ("embed.", "encoder."); the rest of the model is left out of it.

    Raises:
        ValueError: fewer than half of the model's tensors fit; this is another network's file.
    """
    target = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(parts)}
    state = to_ours(state)
    if is_ours(state) and not is_ours(target):
        state = to_timm(state)
    rows, chosen = [], {}
    for name, own in target.items():
        found = state.get(name) if head or not is_head(name, model) else None
        status, tensor = fit(found, own)
        if name in POSITIONS and found is not None and reads_text(model):
            status, tensor = fit_lengths(found, own)
        elif name in POSITIONS and found is not None:
            status, tensor = fit_positions(found, own, grid(model), prefix_length(state), source_grid)
        if tensor is not None:
            chosen[name] = tensor
        rows.append(KeyRow(name, status, tuple(own.shape), tuple(state[name].shape) if name in state else None))
    rows += [KeyRow(name, "unused", None, tuple(state[name].shape)) for name in state if name not in target]
    check_half(model, rows)
    with torch.no_grad():
        for name, tensor in chosen.items():
            target[name].copy_(tensor)
    return KeyReport(rows)


def fit(tensor: Tensor | None, own: Tensor) -> tuple[str, Tensor | None]:
    return ("taken", tensor) if tensor is not None and tensor.shape == own.shape else ("new", None)


def fit_positions(
    table: Tensor, own: Tensor, new: tuple[int, int] | None, prefix: int, old: tuple[int, int] | None
) -> tuple[str, Tensor | None]:
    """A position table (1,P+rows*columns,D) of grid `old` in the shape of our own one, of grid `new`.

    Rows of class token and registers that only one side has keep the values of our own.
    """
    same = table.shape == own.shape and old in (None, new)
    if same or new is None or table.ndim != 3 or table.shape[2] != own.shape[2]:
        return fit(table, own)
    old = old or square_grid(table.shape[1], prefix)
    resampled = resample(table, old, new)  # (1,P+N',D)
    theirs, ours = table.shape[1] - math.prod(old), own.shape[1] - math.prod(new)
    fitted, shared = own.detach().clone(), min(theirs, ours)
    fitted[:, :shared] = resampled[:, :shared]
    fitted[:, ours:] = resampled[:, theirs:]
    return "resized", fitted


def fit_lengths(table: Tensor, own: Tensor) -> tuple[str, Tensor | None]:
    """The positions of a text (1,max_len,D): those that both sides have are taken."""
    if table.shape == own.shape or table.ndim != 3 or table.shape[2] != own.shape[2]:
        return fit(table, own)
    fitted, shared = own.detach().clone(), min(table.shape[1], own.shape[1])
    fitted[:, :shared] = table[:, :shared]
    return "resized", fitted


def square_grid(length: int, prefix: int) -> tuple[int, int]:
    """The grid of a table of `length` rows, which may have rows for the `prefix` first tokens or not."""
    for patches in (length - prefix, length):
        edge = math.isqrt(max(patches, 0))
        if edge and edge * edge == patches:
            return edge, edge
    raise ValueError(f"a position table of {length} rows is of no square grid; give source_grid=(rows, columns)")


def prefix_length(state: State) -> int:
    """How many class and register tokens a state dict has."""
    return sum(tensor.shape[1] for name, tensor in state.items() if name.split(".")[-1] in ("cls_token", "reg_token"))


def grid(model: nn.Module) -> tuple[int, int] | None:
    """The patch grid of our models and of timm's; None where positions are no grid."""
    embed = getattr(model, "embed", None) or getattr(model, "patch_embed", None)
    size = getattr(embed, "grid", None) or getattr(embed, "grid_size", None)
    return None if size is None else tuple(size)


def reads_text(model: nn.Module) -> bool:
    return isinstance(getattr(model, "embed", None), TokenEmbed)


def is_ours(state: State) -> bool:
    return any(name.startswith("encoder.blocks.") for name in state)


def is_head(name: str, model: nn.Module) -> bool:
    """timm names its classifiers differently from model to model, and says so."""
    cfg = getattr(model, "pretrained_cfg", None) or {}
    heads = cfg.get("classifier") or "head"
    heads = (heads,) if isinstance(heads, str) else tuple(heads)
    return name.startswith(tuple(f"{head}." for head in heads))


def check_half(model: nn.Module, rows: list[KeyRow]) -> None:
    body = [row for row in rows if row.shape is not None and not is_head(row.name, model)]
    fitting = [row for row in body if row.status in ("taken", "resized")]
    if 2 * len(fitting) >= len(body):
        return
    same = [row for row in body if row.source_shape is not None and row not in fitting]
    if same:
        hint = f"{same[0].name} is {same[0].source_shape} there and {same[0].shape} here: the model has another size"
    else:
        unused = [row.name for row in rows if row.status == "unused"]
        hint = f"its names, such as {unused[0]}, are not known" if unused else "it is empty"
    raise ValueError(f"these weights belong to another network: only {len(fitting)} of {len(body)} tensors fit; {hint}")
