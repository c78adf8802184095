"""Loading weights into a model, possibly of another resolution or number of classes, with a report on every tensor."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from vit.nn.attention import Attention
from vit.nn.embed import TokenEmbed
from vit.weights.format_detection import DetectedWeights, detect_format, is_vit
from vit.weights.formats.timm import to_timm
from vit.weights.key_report import KeyReport, KeyRow
from vit.weights.resizing import Fitted, fit_grid_positions, fit_patch_projection, fit_text_positions, fit_unchanged
from vit.weights.weight_format import State

HEADS = ("head", "head_dist")
PREFIX_TOKENS = ("cls_token", "dist_token", "reg_token")  # come before the patch tokens
POSITIONS = ("embed.pos_embed", "pos_embed")
REORDERED = "rows in the order of the model's classes, which is another one in the source"
PATCH_PROJECTIONS = ("embed.proj.weight", "patch_embed.proj.weight")


def load_weights(
    model: nn.Module,
    source: State | DetectedWeights,
    *,
    head: bool = True,
    class_order: Sequence[int] | None = None,
    source_grid: tuple[int, int] | None = None,
    parts: tuple[str, ...] = ("",),
    assign: bool = False,
) -> KeyReport:
    """Copy every tensor that the model has by name and shape. Learned positions are resampled to the model's grid or
    length, and the patch projection to its patch size and channels.

    Tensors that do not fit keep their initial values, such as a head for another number of classes.

    Args:
        source: state dict in any format of `vit.weights`, with or without a wrapper's prefix.
        head: False leaves the head at its initial values even if it fits, for other classes of the same number.
        class_order: the index in the source of each of the model's classes, if it has the same ones in another order;
            the rows of linear heads are reordered, and other heads are as with `head=False`.
        source_grid: (rows, columns) of the source's position table; needed only if it is not square.
        parts: prefixes of the names to load, such as ("embed.", "encoder."); the report covers only these.
        assign: use the source's tensors themselves, without a copy, if they fit unchanged.

    Raises:
        ValueError: fewer than half of the model's tensors fit, or a position table has no square grid and no
            `source_grid`.
    """
    target = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(parts)}
    detected, state = convert_source(model, target, source)
    rows, fitting = [], {}
    for name, own in target.items():
        tensor, reason = state.get(name), ""
        if tensor is not None and is_head(name, model):
            tensor, reason = head_tensor(name, tensor, own, model, head, class_order)
        status, fitted, how = fit(name, tensor, own, model, state, source_grid)
        how = how or reason
        if fitted is not None:
            fitting[name] = fitted
        source_shape = tuple(state[name].shape) if name in state else None
        rows.append(with_sources(KeyRow(name, status, tuple(own.shape), source_shape, how), state))
    excluded = detected.format.excluded if detected else {}
    rows += [unused_row(name, state[name], excluded) for name in state if name not in target]
    check_coverage(model, rows)
    copy_tensors(model, fitting, target, assign)
    notes = detected.notes() if detected else []
    reordered = [row.name for row in rows if row.how == REORDERED]
    return KeyReport(rows, [*notes, f"{', '.join(reordered)}: {REORDERED}"] if reordered else notes)


def convert_source(model: nn.Module, target: State,
                   source: State | DetectedWeights) -> tuple[DetectedWeights | None, dict[str, Tensor]]:
    """The format of the source, None if it is unknown, and its tensors by the names of the model."""
    detected = source if isinstance(source, DetectedWeights) else detect_format(source)
    if detected is not None and detected.format.with_heads is not None:
        detected = replace(detected, num_heads=first_num_heads(model))
    state = dict(source) if detected is None else detected.converted
    if is_vit(state) and not is_vit(target):
        state = best_match(target, detected.state, to_timm(state)) if detected else to_timm(state)
    return detected, state


def first_num_heads(model: nn.Module) -> int | None:
    """The number of heads of the model's first attention layer."""
    return next((module.heads.num_heads for module in model.modules() if isinstance(module, Attention)), None)


def best_match(target: State, *states: State) -> dict[str, Tensor]:
    """The state with the most names of the target, the first one on a tie: a timm model's own names are preferred to
    names converted there and back.
    """
    return dict(max(states, key=lambda state: sum(name in state for name in target)))


def copy_tensors(model: nn.Module, tensors: State, target: State, assign: bool) -> None:
    """Copy tensors into the model.

    Args:
        target: the model's own tensors by name.
        assign: replace the model's parameters by these tensors instead, unless parameters are tied.
    """
    tied = len({tensor.data_ptr() for tensor in target.values()}) != len(target)
    if assign and not tied:  # assigned tensors would no longer be tied
        assigned = {name: tensor.to(target[name].dtype).contiguous() for name, tensor in tensors.items()}
        model.load_state_dict(assigned, strict=False, assign=True)
        return
    with torch.no_grad():
        for name, tensor in tensors.items():
            target[name].copy_(tensor)


def with_sources(row: KeyRow, state: State) -> KeyRow:
    """The row with the names of the source's tensors, if the format recorded them, and the status they imply."""
    sources: Mapping[str, tuple[str, ...]] = getattr(state, "sources", {})
    if row.status == "new" or row.name not in sources:
        return row
    own = sources[row.name]
    if row.status != "loaded":
        return replace(row, sources=own)
    if not own:
        return replace(row, status="implied", how="zero or the identity: the source has none", source_shape=None)
    if len(own) > 1:
        return replace(row, status="fused", sources=own)
    shared = any(own == others for name, others in sources.items() if name != row.name)
    return replace(row, status="split" if shared else "loaded", sources=own)


def unused_row(name: str, tensor: Tensor, excluded: Mapping[str, str]) -> KeyRow:
    """The row of a tensor without a counterpart in the model: excluded by the format, or unused."""
    for pattern, what in excluded.items():
        if re.match(pattern, name):
            return KeyRow(name, "excluded", None, tuple(tensor.shape), how=what, sources=(name,))
    return KeyRow(name, "unused", None, tuple(tensor.shape), sources=(name,))


def fit(
    name: str, tensor: Tensor | None, own: Tensor, model: nn.Module, state: State, source_grid: tuple[int, int] | None
) -> Fitted:
    """The source's tensor in the shape of the model's own one; None if it does not fit."""
    if tensor is not None and name in POSITIONS:
        if is_text_model(model):
            return fit_text_positions(tensor, own)
        return fit_grid_positions(tensor, own, patch_grid(model), prefix_length(state), source_grid)
    if tensor is not None and name in PATCH_PROJECTIONS:
        return fit_patch_projection(tensor, own)
    return fit_unchanged(tensor, own)


def head_tensor(
    name: str, tensor: Tensor, own: Tensor, model: nn.Module, head: bool, class_order: Sequence[int] | None
) -> tuple[Tensor | None, str]:
    """The source's tensor of a head for the model's classes, and the reason if it was changed or does not fit."""
    if tensor.shape != own.shape:
        return tensor, ""  # it does not fit, as its shapes show
    if not head:
        return None, "for other or unnamed classes"
    if class_order is None:
        return tensor, ""
    layer = name.rpartition(".")[0]
    if layer in head_names(model) and isinstance(model.get_submodule(layer), nn.Linear):
        return tensor[list(class_order)], REORDERED
    return None, "the classes are in another order"


def prefix_length(state: State) -> int:
    """The number of class, distillation and register tokens in a state dict."""
    return sum(tensor.shape[1] for name, tensor in state.items() if name.split(".")[-1] in PREFIX_TOKENS)


def patch_grid(model: nn.Module) -> tuple[int, int] | None:
    """The patch grid of a model of vit or timm; None for other models."""
    embed = getattr(model, "embed", None) or getattr(model, "patch_embed", None)
    size = getattr(embed, "grid", None) or getattr(embed, "grid_size", None)
    return None if size is None else tuple(size)


def is_text_model(model: nn.Module) -> bool:
    return isinstance(getattr(model, "embed", None), TokenEmbed)


def is_head(name: str, model: nn.Module) -> bool:
    """Whether a parameter belongs to the classification head."""
    return name.startswith(tuple(f"{head}." for head in head_names(model)))


def head_names(model: nn.Module) -> tuple[str, ...]:
    """The names of the heads; a timm model has them in `pretrained_cfg`."""
    cfg = getattr(model, "pretrained_cfg", None) or {}
    heads = cfg.get("classifier") or HEADS
    return (heads,) if isinstance(heads, str) else tuple(heads)


def check_coverage(model: nn.Module, rows: list[KeyRow]) -> None:
    """Checks that at least half of the model's tensors, without the head, are in the source.

    Raises:
        ValueError: they are not; names a tensor of another shape or an unknown name.
    """
    body = [row for row in rows if row.shape is not None and not is_head(row.name, model)]
    fitting = [row for row in body if row.status != "new"]
    if 2 * len(fitting) >= len(body):
        return
    other_shape = [row for row in body if row.source_shape is not None and row not in fitting]
    if other_shape:
        row = other_shape[0]
        hint = f"{row.name} is {row.source_shape} in the source and {row.shape} here: the model has another size"
    else:
        unused = [row.name for row in rows if row.status == "unused"]
        hint = f"names such as {unused[0]} are unknown" if unused else "there are no tensors"
    raise ValueError(f"these weights belong to another network: only {len(fitting)} of {len(body)} tensors fit; {hint}")
