"""`import_weights`: somebody's weights as one of our models, with an account of every tensor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vit.bundle.files import SourceError
from vit.data.images.npz import are_images
from vit.exchange.kept import OTHER_NETWORK, as_it_is, timms_own
from vit.exchange.read import Anything, Source, read
from vit.models import TimmConfig, model_from_config
from vit.models.build import ACTIVATIONS
from vit.nn.init import SkipInit, init_weights
from vit.weights import (
    FORMATS,
    DetectedWeights,
    KeyReport,
    detect_format,
    infer_config,
    load_weights,
    published_num_heads,
)
from vit.weights.config_inference import ConfigMismatch, check_declared
from vit.weights.formats.timm import TIMM
from vit.weights.formats.torchvision import TORCHVISION
from vit.weights.key_report import MAX_ROWS, format_shapes

Size = int | Sequence[int]
HEADS = ("head.", "head_dist.")
IMAGES = ("vit", "mae")
COUNTERS = ("num_batches_tracked",)  # of a BatchNorm, whole numbers among the weights
PARTS = ("embed.", "encoder.", "decoder.", "pool.", "head")  # what our own names begin with


class ContradictionError(SourceError):
    """Weights that are not what the config beside them describes, such as a file that was cut."""


def import_weights(
    source: Anything,
    *,
    num_heads: int | None = None,
    act: str | None = None,
    image_size: Size | None = None,
    patch_size: Size | None = None,
    in_chans: int | None = None,
    num_classes: int | None = None,
    strict: bool = True,
) -> tuple[nn.Module, KeyReport]:
    """The model that a source's tensors belong to, with them in it, in eval mode, and the key report.

    Args:
        source: a file, a folder, a state dict, a model of timm, torchvision, transformers or ours, `timm:NAME`, or
            `hub:OWNER/NAME`.
        num_heads, act: what tensors cannot tell; wanted only where the source has no config that says it.
        image_size, patch_size, in_chans: another resolution, aspect, patch or number of channels than the source's;
            positions and the projection of the patches are resampled.
        num_classes: another number of classes: the head is new; 0 for features without a head.
        strict: every tensor of the source must be used and every one of the model filled, but for the head of another
            number of classes.

    Raises:
        SourceError: no weights, unknown ones, contradictory ones, or ones left over; one sentence with the fix.
    """
    return take(read(source), Wanted(num_heads, act, image_size, patch_size, in_chans, num_classes, strict))


@dataclass(frozen=True)
class Wanted:
    """What the caller of `import_weights` tells, and asks for."""

    num_heads: int | None = None
    act: str | None = None
    image_size: Size | None = None
    patch_size: Size | None = None
    in_chans: int | None = None
    num_classes: int | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        for key in ("num_heads", "in_chans", "num_classes"):
            value, least = getattr(self, key), 0 if key == "num_classes" else 1
            if value is not None and not (is_count(value) and value >= least):
                raise SourceError(f"{key}={value!r} must be a whole number of {least} or more")
        for key in ("image_size", "patch_size"):
            value = getattr(self, key)
            edges = [value] if is_count(value) else value
            if value is not None and not (isinstance(edges, list | tuple) and len(edges) in (1, 2)
                                          and all(is_count(edge) and edge >= 1 for edge in edges)):
                raise SourceError(f"{key}={value!r} must be one whole number of pixels, or two: (height, width)")


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def take(found: Source, wanted: Wanted = Wanted()) -> tuple[nn.Module, KeyReport]:
    """`import_weights` of something that was read already."""
    known = recognised(found)
    config, notes = architecture(found, known, wanted.num_heads, wanted.act, wanted.image_size)
    if config["kind"] != TimmConfig.kind:
        check_numbers(found, known)
    own_head = wanted.num_classes in (None, config.get("num_classes"))
    grid = source_grid(config)
    for key in ("image_size", "patch_size", "in_chans", "num_classes"):
        if (value := getattr(wanted, key)) is not None:
            config[key] = value
    model, report = build(found, known, config, grid, own_head)
    report = KeyReport(report.rows, [*found.notes, *known.notes(), *notes])
    if wanted.strict:
        check_complete(found, report, own_head)
    return model.eval(), report


def recognised(source: Source) -> DetectedWeights:
    """The format of a source.

    Raises:
        SourceError: it is none that is known.
    """
    if (found := detect_format(source.state)) is not None:
        kind = source.config.get("model_type")
        if kind is not None and found.format in (TIMM, TORCHVISION) and "architecture" not in source.config:
            raise SourceError(f"{source.name}: the config says that it describes a {kind} of transformers, but the "
                              f"tensors have {found.format.name}'s names; take the config away, or the other weights")
        return found
    own = (source.model or {}).get("kind") == TimmConfig.kind
    if own or ({"architecture", "module"} & set(source.config) and timms_own(source.config) is not None):
        return DetectedWeights(OTHER_NETWORK, source.state)
    some = ", ".join(list(source.state)[:3])
    if source.name.endswith(".npz") and are_images(source.state):
        raise SourceError(f"{source.name} holds the arrays of a data set ({some}), no weights; it is read as data by "
                          f"data=table data.path={source.name}")
    other = " (the names of a ResNet)" if "layer1.0.conv1.weight" in source.state else ""
    known = ", ".join(each.name for each in FORMATS)
    raise SourceError(f"{source.name} holds {len(source.state)} tensors such as {some}{other}, which are of no known "
                      f"Vision Transformer; accepted: {known}; a file of another network of timm must be called "
                      "NAME.safetensors or NAME.pth by its name there, or have a config.json with its architecture and "
                      "num_classes beside it")


def check_numbers(source: Source, known: DetectedWeights) -> None:
    """Raises SourceError where a network's tensors are of a kind that cannot be computed with."""
    for name, tensor in known.converted.items():
        if not name.startswith(PARTS) or name.endswith(COUNTERS):
            continue
        if not tensor.is_floating_point():
            raise SourceError(f"{source.name}: {name} is of {str(tensor.dtype).removeprefix('torch.')}, as quantised "
                              "weights are; take the weights in float32, float16 or bfloat16")
        if not torch.isfinite(tensor.sum(dtype=torch.float64)):
            raise SourceError(f"{source.name}: {name} holds numbers that are not finite; the training that saved it "
                              "had gone wrong")


def architecture(
    source: Source, known: DetectedWeights, num_heads: int | None = None, act: str | None = None,
    image_size: Size | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """The config of the network that the source was, and what a report must say about how it was found.

    A model of timm with a part that ours lack stays timm's own network, and the report says why.

    Raises:
        SourceError: something that nobody states, or statements that contradict each other.
    """
    if source.model is not None:
        return dict(source.model), []
    try:
        facts = known.format.config_values(known.state, source.config)
        notes = check_stated(source, facts, num_heads, act)
        facts |= {key: value for key, value in (("num_heads", num_heads), ("activation", act)) if value is not None}
        if image_size is not None and "embed.pos_embed" not in known.converted and "image_size" not in facts:
            facts["image_size"] = image_size
        config = infer_config(known.converted, facts)
        check_declared(config, known.format.declared_config(known.state, source.config))
    except SourceError:
        raise
    except ConfigMismatch as error:
        raise ContradictionError(f"{source.name}: {error}") from None
    except ValueError as error:
        if known.format in (TIMM, OTHER_NETWORK) and (kept := timms_own(source.config)) is not None:
            return kept.to_dict(), [f"kept as timm's own network, for {error}"]
        raise SourceError(f"{source.name}: {error}") from None
    if source.config:
        check_whole(source, known, config)
    notes += known.format.assumptions(known.state) if not source.config else []
    if "num_heads" not in facts and published_num_heads(config["dim"], config["depth"]) == config["num_heads"]:
        notes.append(f"num_heads {config['num_heads']} is that of the published models of dim {config['dim']} and "
                     f"depth {config['depth']}; give num_heads= for another")
    return config, notes


def check_whole(source: Source, known: DetectedWeights, config: Mapping[str, Any]) -> None:
    """Raises ContradictionError where a source that describes itself lacks a tensor of the network it describes."""
    with torch.device("meta"):
        needed = model_from_config(config).state_dict()
    if missing := [name for name in needed if name not in known.converted]:
        first, more = missing[0], f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise ContradictionError(f"{source.name}: the config beside the weights describes a network with {first} "
                                 f"{tuple(needed[first].shape)}, but no tensors are there for it{more}; the file is "
                                 "cut")


def check_stated(source: Source, facts: Mapping[str, Any], num_heads: int | None, act: str | None) -> list[str]:
    """Arguments must not contradict what is known; returns what is only usual."""
    heads = facts.get("num_heads")
    if num_heads is not None and source.config and heads not in (None, num_heads):
        raise SourceError(f"{source.name}: num_heads={num_heads} was given, but the source's config says {heads}")
    if act is not None and act not in ACTIVATIONS:
        raise SourceError(f"act={act} is unknown; it must be one of {', '.join(ACTIVATIONS)}")
    if act is not None and source.config and facts.get("activation") not in (None, act):
        raise SourceError(f"{source.name}: act={act} was given, but the source's config says {facts['activation']}")
    guessed = heads is not None and num_heads is None and not source.config
    return [f"num_heads {heads} is what this format usually has; give num_heads= for another"] if guessed else []


def source_grid(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """(rows, columns) in patches of an image model's config."""
    if config["kind"] not in IMAGES:
        return None
    sizes = [(size, size) if isinstance(size, int) else size for size in (config["image_size"], config["patch_size"])]
    return sizes[0][0] // sizes[1][0], sizes[0][1] // sizes[1][1]


def build(
    source: Source, known: DetectedWeights, config: dict[str, Any], grid: tuple[int, int] | None, head: bool
) -> tuple[nn.Module, KeyReport]:
    """The model and what became of every tensor; what no tensor came for has random values."""
    known = as_it_is(known) if config["kind"] == TimmConfig.kind else known
    try:
        with SkipInit():
            model = model_from_config(config)
        report = load_weights(model, known, head=head, source_grid=grid, assign=not source.shared)
        if new := set(report.named("new")):
            heads = {name: part for name, part in model.named_children()
                     if f"{name}." in HEADS and isinstance(part, nn.Linear) and f"{name}.weight" in new}
            if new == {f"{name}.{leaf}" for name, part in heads.items() for leaf in part.state_dict()}:
                init_weights(nn.ModuleDict(heads))
            else:  # twice the memory, so only where it must be
                model = model_from_config(config)
                report = load_weights(model, known, head=head, source_grid=grid, assign=not source.shared)
    except ValueError as error:
        raise SourceError(f"{source.name}: {error}") from None
    return model, report


def check_complete(source: Source, report: KeyReport, head: bool) -> None:
    """Raises SourceError where tensors were left over or missing that another head does not explain."""
    for status, what in (("unused", "has no place for"), ("new", "finds nothing for")):
        rows = [row for row in report.rows if row.status == status and (head or not row.name.startswith(HEADS))]
        if rows:
            some = "; ".join(f"{row.name} {format_shapes(row)}" for row in rows[:MAX_ROWS])
            more = f" and {len(rows) - MAX_ROWS} more" if len(rows) > MAX_ROWS else ""
            raise SourceError(f"{source.name}: the model {what} {len(rows)} tensors: {some}{more}; strict=False takes "
                              "the rest all the same")
