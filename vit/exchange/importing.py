"""`import_weights`: foreign weights as one of our models, with a report of every tensor; and the positions of models
whose files state two sizes of images.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.data import Preprocessing
from vit.data.images.preprocessing_values import as_size
from vit.exchange.checkpoint import Checkpoint
from vit.exchange.options import Changes, Hints, Size, current_activation
from vit.exchange.read import read_checkpoint
from vit.exchange.sources import WeightSource
from vit.exchange.timm_networks import under_own_names
from vit.messages import first_of
from vit.models import TimmConfig, model_from_config
from vit.nn.init import SkipInit, init_weights
from vit.weights import KeyReport, load_weights
from vit.weights.key_report import MAX_ROWS, format_shapes

HEADS = ("head.", "head_dist.")
IMAGE_KINDS = ("vit", "mae")
COUNTERS = ("num_batches_tracked",)  # integer buffers of BatchNorm
PARTS = ("embed.", "encoder.", "decoder.", "pool.", "head")  # first parts of our own names
ANTIALIAS = {"dinov2": False, "dinov2_with_registers": True}  # model types that resample positions, and how
TABLE = "embeddings.position_embeddings"  # end of the name of their position table


def import_weights(
    source: WeightSource,
    *,
    num_heads: int | None = None,
    activation: str | None = None,
    image_size: Size | None = None,
    patch_size: Size | None = None,
    in_chans: int | None = None,
    num_classes: int | None = None,
    strict: bool = True,
    act: str | None = None,
) -> tuple[nn.Module, KeyReport]:
    """The model that a source's tensors belong to, with these tensors, in eval mode, and the key report.

    A timm network that our model cannot express stays timm's own; the report has the reason.

    Args:
        source: a file, a folder, a state dict, a model of timm, torchvision, transformers or this project, `timm:NAME`,
            or `hub:OWNER/NAME`.
        num_heads, activation: what tensors do not determine; required only where the source has no config.
        image_size, patch_size, in_chans: another resolution, aspect, patch or number of channels than the source's;
            positions and the projection of the patches are resampled.
        num_classes: another number of classes, with a new head; 0 for features without a head.
        strict: every tensor of the source must be used and every tensor of the model loaded, except for the head of
            another number of classes.
        act: deprecated name of `activation`.

    Raises:
        SourceError: no weights, unknown or contradictory ones, or tensors left over; one sentence with the fix.
    """
    hints = Hints(num_heads, current_activation(activation, act), image_size)
    return import_checkpoint(read_checkpoint(source, hints), Changes(image_size, patch_size, in_chans, num_classes),
                             strict)


def import_checkpoint(
    checkpoint: Checkpoint, changes: Changes | None = None, strict: bool = True
) -> tuple[nn.Module, KeyReport]:
    """`import_weights` of a checkpoint.

    Raises:
        SourceError: as `import_weights`.
    """
    config, changed = dict(checkpoint.config), vars(changes or Changes())
    check_numbers(checkpoint)
    has_own_head = changed["num_classes"] in (None, config.get("num_classes"))
    grid = source_grid(config)
    config |= {key: value for key, value in changed.items() if value is not None}
    model, report = build_model(checkpoint, config, grid, has_own_head)
    notes = [*checkpoint.notes, *checkpoint.weights.notes(), *checkpoint.architecture.notes]
    report = KeyReport(report.rows, notes)
    if strict:
        check_complete(checkpoint, report, has_own_head)
    return model.eval(), report


def check_numbers(checkpoint: Checkpoint) -> None:
    """Raises SourceError for tensors of the network that are not finite floating-point numbers."""
    for name, tensor in floating_point_tensors(checkpoint).items():
        if not tensor.is_floating_point():
            raise checkpoint.error(f"{name} is of {str(tensor.dtype).removeprefix('torch.')}, as quantised weights "
                                   "are; use the weights in float32, float16 or bfloat16")
        if not torch.isfinite(tensor.sum(dtype=torch.float64)):
            raise checkpoint.error(f"{name} holds numbers that are not finite; the training that saved it had diverged")


def floating_point_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The tensors that must be floating-point numbers: of our models, or the parameters of a network of timm under its
    own names, whose buffers may be integers.
    """
    if checkpoint.config["kind"] == TimmConfig.kind:
        with torch.device("meta"):
            network = model_from_config(checkpoint.config)
        names = {name for name, _ in network.named_parameters()}
        return {name: tensor for name, tensor in checkpoint.weights.state.items() if name in names}
    return {name: tensor for name, tensor in checkpoint.weights.converted.items()
            if name.startswith(PARTS) and not name.endswith(COUNTERS)}


def source_grid(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """(rows, columns) in patches of an image model's config."""
    if config["kind"] not in IMAGE_KINDS:
        return None
    (height, width), (rows, columns) = (as_size(config[key]) for key in ("image_size", "patch_size"))
    return height // rows, width // columns


def build_model(
    checkpoint: Checkpoint, config: dict[str, Any], grid: tuple[int, int] | None, head: bool
) -> tuple[nn.Module, KeyReport]:
    """The model with the checkpoint's tensors, and the key report; a parameter without a tensor is random.

    Raises:
        SourceError: an invalid config, or tensors that do not fit.
    """
    found = checkpoint.weights
    found = under_own_names(found) if config["kind"] == TimmConfig.kind else found
    options = {"head": head, "source_grid": grid, "assign": not checkpoint.shared}
    try:
        with SkipInit():
            model = model_from_config(config)
        report = load_weights(model, found, **options)
        if new := set(report.named("new")):
            heads = {name: part for name, part in model.named_children()
                     if f"{name}." in HEADS and isinstance(part, nn.Linear) and f"{name}.weight" in new}
            if new == {f"{name}.{leaf}" for name, part in heads.items() for leaf in part.state_dict()}:
                init_weights(nn.ModuleDict(heads))
            else:  # takes twice the memory
                model = model_from_config(config)
                report = load_weights(model, found, **options)
    except ValueError as error:
        raise checkpoint.error(str(error)) from None
    return model, report


def check_complete(checkpoint: Checkpoint, report: KeyReport, head: bool) -> None:
    """Raises SourceError for tensors left over or missing, except those of another head."""
    for status, what in (("unused", "does not use"), ("new", "lacks")):
        rows = [row for row in report.rows if row.status == status and (head or not row.name.startswith(HEADS))]
        if rows:
            some = first_of([f"{row.name} {format_shapes(row)}" for row in rows], MAX_ROWS, "; ")
            raise checkpoint.error(f"the model {what} {len(rows)} tensors: {some}; strict=False imports the rest")


def at_stated_size(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with its positions resampled to the image size of its preprocessing, for models whose positions
    transformers resamples, with a warning that names both sizes; any other checkpoint unchanged.

    The preprocessor_config.json of DINOv2 may state another size of images (224) than config.json (518). transformers
    resamples the positions in each forward pass; here they are resampled once, in the same way.
    """
    config, prepared = checkpoint.source_config, checkpoint.stated_preprocessing
    kind, name = config.get("model_type"), next((each for each in checkpoint.state if each.endswith(TABLE)), None)
    known = kind in ANTIALIAS and "image_size" in config and "patch_size" in config and name is not None
    if not known or not isinstance(prepared, Preprocessing) or prepared.size == as_size(config["image_size"]):
        return checkpoint
    patch = as_size(config["patch_size"])
    grid = tuple(pixels // side for pixels, side in zip(prepared.size, patch, strict=True))
    table = checkpoint.state[name]
    edge = math.isqrt(table.shape[1] - 1)
    if table.ndim != 3 or edge * edge != table.shape[1] - 1 or not all(grid) or prepared.size != tuple(
            count * side for count, side in zip(grid, patch, strict=True)):
        return checkpoint
    sizes = ["x".join(map(str, size)) for size in (as_size(config["image_size"]), prepared.size)]
    text = (f"positions are resampled from {edge}x{edge} to {grid[0]}x{grid[1]} patches, as transformers does, because "
            f"its config.json states images of {sizes[0]} pixels and its preprocessor_config.json {sizes[1]}")
    warnings.warn(f"{checkpoint.name}: {text}", stacklevel=4)
    state = {**checkpoint.state, name: resample_as_transformers(table, edge, grid, ANTIALIAS[kind])}
    return replace(checkpoint, state=state, source_config={**config, "image_size": list(prepared.size)},
                   notes=[*checkpoint.notes, text])


def resample_as_transformers(table: Tensor, edge: int, grid: tuple[int, int], antialias: bool) -> Tensor:
    """A table (1,1+edge*edge,D) for class token and patches -> (1,1+rows*columns,D), bicubic in float32."""
    image = table[:, 1:].float().unflatten(1, (edge, edge)).permute(0, 3, 1, 2)  # (1,D,edge,edge)
    image = F.interpolate(image, size=grid, mode="bicubic", align_corners=False, antialias=antialias)
    return torch.cat([table[:, :1], image.permute(0, 2, 3, 1).flatten(1, 2).to(table.dtype)], dim=1)
