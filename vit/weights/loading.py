"""Weights from elsewhere into a model of another resolution or other classes, with an account of every tensor."""

import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vit.nn.embed import TokenEmbed
from vit.nn.position import resample
from vit.weights.format_detection import Recognised, is_ours, recognise
from vit.weights.formats.timm import to_timm
from vit.weights.key_report import KeyReport, KeyRow
from vit.weights.resizing import fit_patches
from vit.weights.weight_format import Format, State

HEADS = ("head", "head_dist")
TOKENS = ("cls_token", "dist_token", "reg_token")  # what stands before the patches
POSITIONS = ("embed.pos_embed", "pos_embed")
PATCHES = ("embed.proj.weight", "patch_embed.proj.weight")


def load_weights(
    model: nn.Module,
    source: State | Recognised,
    *,
    head: bool = True,
    source_grid: tuple[int, int] | None = None,
    parts: tuple[str, ...] = ("",),
    assign: bool = False,
) -> KeyReport:
    """Copy into the model what fits by name and shape; learned positions are fitted to the model's grid or length, the
    projection of the patches to its patch size and channels.

    What does not fit keeps its random values, such as a head of another class count.

    Args:
        source: names of any format of `vit.weights`, with a wrapper's prefix or without.
        head: False leaves the head new although it may fit, for other classes of the same count.
        source_grid: (rows, columns) of the source's position table; a square one need not be named.
        parts: beginnings of the names to load, such as ("embed.", "encoder."); the rest of the model is left out of it.
        assign: the model takes the tensors themselves where they fit as they are, instead of copies: for a file's.

    Raises:
        ValueError: fewer than half of the model's tensors fit; this is another network's file.
    """
    target = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(parts)}
    found = source if isinstance(source, Recognised) else recognise(source)
    state = dict(source) if found is None else found.ours
    if is_ours(state) and not is_ours(target):
        state = closer(target, found.state, to_timm(state)) if found else to_timm(state)
    rows, chosen = [], {}
    for name, own in target.items():
        there = state.get(name) if head or not is_head(name, model) else None
        how, (status, tensor) = "", fit(there, own)
        if name in POSITIONS and there is not None and reads_text(model):
            status, tensor = fit_lengths(there, own)
            how = f"the first {min(there.shape[1], own.shape[1])} positions" if status == "resized" else ""
        elif name in POSITIONS and there is not None:
            status, tensor, how = fit_positions(there, own, grid(model), prefix_length(state), source_grid)
        elif name in PATCHES and there is not None:
            status, tensor, how = fit_patches(there, own)
        if tensor is not None:
            chosen[name] = tensor
        rows.append(KeyRow(name, status, tuple(own.shape), tuple(state[name].shape) if name in state else None, how))
    rows = [with_origin(row, state) for row in rows]
    rows += [left(name, state[name], found.format if found else None) for name in state if name not in target]
    check_half(model, rows)
    put(model, chosen, target, assign)
    return KeyReport(rows, found.notes() if found else [])


def closer(target: State, *states: State) -> dict[str, Tensor]:
    """The first of those that know most of the target's names: a timm model wants its own, not ours in other words."""
    return dict(max(states, key=lambda state: sum(name in state for name in target)))


def put(model: nn.Module, chosen: State, target: State, assign: bool) -> None:
    if assign and len({tensor.data_ptr() for tensor in target.values()}) == len(target):  # tied ones must stay one
        taken = {name: tensor.to(target[name].dtype).contiguous() for name, tensor in chosen.items()}
        model.load_state_dict(taken, strict=False, assign=True)
        return
    with torch.no_grad():
        for name, tensor in chosen.items():
            target[name].copy_(tensor)


def with_origin(row: KeyRow, state: State) -> KeyRow:
    """The row with the names its tensor was made of, where the format tells them."""
    origins: Mapping[str, tuple[str, ...]] = getattr(state, "origins", {})
    if row.status == "new" or row.name not in origins:
        return row
    theirs = origins[row.name]
    if row.status != "taken":
        return row.but(sources=theirs)
    if not theirs:
        return row.but(status="implied", how="zero or the identity: the source has none", source_shape=None)
    if len(theirs) > 1:
        return row.but(status="fused", sources=theirs)
    shared = any(theirs == others for name, others in origins.items() if name != row.name)
    return row.but(status="split" if shared else "taken", sources=theirs)


def left(name: str, tensor: Tensor, found: Format | None) -> KeyRow:
    """The row of a tensor that the model has no place for: left out on purpose, or unused."""
    for pattern, what in (found.apart if found else {}).items():
        if re.match(pattern, name):
            return KeyRow(name, "left out", None, tuple(tensor.shape), how=what, sources=(name,))
    return KeyRow(name, "unused", None, tuple(tensor.shape), sources=(name,))


def fit(tensor: Tensor | None, own: Tensor) -> tuple[str, Tensor | None]:
    return ("taken", tensor) if tensor is not None and tensor.shape == own.shape else ("new", None)


def fit_positions(
    table: Tensor, own: Tensor, new: tuple[int, int] | None, prefix: int, old: tuple[int, int] | None
) -> tuple[str, Tensor | None, str]:
    """A position table (1,P+rows*columns,D) of grid `old` in the shape of our own one, of grid `new`, and how.

    Rows of class token and registers that only one side has keep the values of our own.
    """
    same = table.shape == own.shape and old in (None, new)
    if same or new is None or table.ndim != 3 or table.shape[2] != own.shape[2]:
        return *fit(table, own), ""
    old = old or square_grid(table.shape[1], prefix)
    resampled = resample(table, old, new)  # (1,P+N',D)
    theirs, ours = table.shape[1] - math.prod(old), own.shape[1] - math.prod(new)
    fitted, shared = own.detach().clone(), min(theirs, ours)
    fitted[:, :shared] = resampled[:, :shared]
    fitted[:, ours:] = resampled[:, theirs:]
    return "resized", fitted, f"grid of {old[0]}x{old[1]} to {new[0]}x{new[1]} patches"


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
    return sum(tensor.shape[1] for name, tensor in state.items() if name.split(".")[-1] in TOKENS)


def grid(model: nn.Module) -> tuple[int, int] | None:
    """The patch grid of our models and of timm's; None where positions are no grid."""
    embed = getattr(model, "embed", None) or getattr(model, "patch_embed", None)
    size = getattr(embed, "grid", None) or getattr(embed, "grid_size", None)
    return None if size is None else tuple(size)


def reads_text(model: nn.Module) -> bool:
    return isinstance(getattr(model, "embed", None), TokenEmbed)


def is_head(name: str, model: nn.Module) -> bool:
    """timm names its classifiers differently from model to model, and says so."""
    cfg = getattr(model, "pretrained_cfg", None) or {}
    heads = cfg.get("classifier") or HEADS
    heads = (heads,) if isinstance(heads, str) else tuple(heads)
    return name.startswith(tuple(f"{head}." for head in heads))


def check_half(model: nn.Module, rows: list[KeyRow]) -> None:
    body = [row for row in rows if row.shape is not None and not is_head(row.name, model)]
    fitting = [row for row in body if row.status != "new"]
    if 2 * len(fitting) >= len(body):
        return
    same = [row for row in body if row.source_shape is not None and row not in fitting]
    if same:
        hint = f"{same[0].name} is {same[0].source_shape} there and {same[0].shape} here: the model has another size"
    else:
        unused = [row.name for row in rows if row.status == "unused"]
        hint = f"its names, such as {unused[0]}, are not known" if unused else "it is empty"
    raise ValueError(f"these weights belong to another network: only {len(fitting)} of {len(body)} tensors fit; {hint}")
