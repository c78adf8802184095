"""The parts of a model with their output shapes, parameters and floating point operations."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vit.messages import ArgumentError
from vit.models.flops import FORMULAS, run_on_meta

LISTS = (nn.ModuleList, nn.Sequential)
SILENT = {"Identity", "Dropout", "DropPath", "PatchDropout"}  # layers without parameters that only matter in training
ROOT = "(model)"
OUTPUT = "(output layer)"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a model.

    Args:
        name: dotted name in the model, such as `encoder.blocks.0.attn`; `(model)` for the parameters that belong to no
            part, `(output layer)` for an output layer that shares its matrix with an embedding.
        kind: name of its class.
        level: 0 for the parts of the model, 1 for their parts, and so on.
        shape: of its output for a batch of one; None if it is not called, or returns no tensor.
        parameters: number of parameters, including those of its parts; a shared parameter counts for the first part
            only.
        flops: floating point operations for one input, including those of its parts; a multiply-add counts as two.
        leaf: whether it has no listed parts.
    """

    name: str
    kind: str
    level: int
    shape: tuple[int, ...] | None
    parameters: int
    flops: int
    leaf: bool

    @property
    def is_block(self) -> bool:
        """Whether it is one of a numbered list."""
        return self.name.rpartition(".")[2].isdigit()


@dataclass(frozen=True, slots=True)
class Explanation:
    """The parts of a model in the order of its definition, and the totals.

    Args:
        inputs: shape of each input of the traced pass, a batch of one.
    """

    name: str
    inputs: dict[str, tuple[int, ...]]
    parts: list[Part]
    parameters: int
    flops: int

    @property
    def leaves(self) -> list[Part]:
        """The parts that add up to the totals."""
        return [part for part in self.parts if part.leaf]


def explain(model: nn.Module, tokens: int = 32) -> Explanation:
    """Trace one input through a model on the meta device, which takes no memory and leaves the model as it is.

    Args:
        model: any model of `create_model`, with its `config`.
        tokens: length of texts, at most the `max_len` of the model; ignored by models of images alone.

    Raises:
        ValueError: `tokens` is below 1 or above `max_len`.
    """
    inputs = example_inputs(model, tokens)
    modules, owners = dict(listed(model)), {id(parameter): name for name, parameter in model.named_parameters()}
    trace = Trace(modules)
    with ExitStack() as hooks, FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
        trace.attach(counter, hooks)
        run_on_meta(model, *inputs.values())
    total = counter.get_total_flops()
    parts = [part(name, module, modules, trace, owners) for name, module in modules.items()]
    parts = [each for each in parts if each.parameters or each.flops or (each.shape and each.kind not in SILENT)]
    parts += remainder(model, parts, total)
    shapes = {name: tuple(tensor.shape) for name, tensor in inputs.items()}
    return Explanation(type(model).__name__, shapes, parts, sum(each.numel() for each in model.parameters()), total)


def example_inputs(model: nn.Module, tokens: int) -> dict[str, Tensor]:
    """The inputs of `forward` for a batch of one, on the meta device.

    Raises:
        ValueError: as `explain`.
    """
    config, dtype = model.config, next(model.parameters()).dtype
    longest = getattr(config, "max_len", None)
    if tokens < 1 or (longest is not None and tokens > longest):
        valid = "be at least 1" if longest is None else f"lie in 1..{longest}, the max_len of the model"
        raise ArgumentError(f"tokens is {tokens}, but must {valid}")
    ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
    inputs = {"source": ids}
    if hasattr(config, "in_chans"):
        image = torch.empty(1, config.in_chans, *config.image_size, dtype=dtype, device="meta")
        inputs = {"source" if config.kind == "encoder_decoder" else "images": image}
    return {**inputs, "target": ids} if config.kind == "encoder_decoder" else inputs


def listed(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The parts to list: children, the blocks of stacks, and the children of blocks."""
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        yield path, child
        if isinstance(child, LISTS) and any(True for _ in child.children()):
            for number, block in child.named_children():
                yield f"{path}.{number}", block
                yield from ((f"{path}.{number}.{inner}", part) for inner, part in block.named_children())
        elif any(isinstance(each, LISTS) and len(each) for each in child.children()) and not prefix:
            yield from listed(child, f"{path}.")


class Trace:
    """Output shapes and floating point operations of modules during a pass."""

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self.modules = modules
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.flops = dict.fromkeys(modules, 0)
        self._before: list[int] = []

    def attach(self, counter: FlopCounterMode, hooks: ExitStack) -> None:
        """Hook the modules until `hooks` is closed."""
        for name, module in self.modules.items():
            before = module.register_forward_pre_hook(lambda *_: self._before.append(counter.get_total_flops()))
            after = module.register_forward_hook(lambda _, __, output, name=name: self.record(name, output, counter))
            hooks.callback(before.remove)
            hooks.callback(after.remove)

    def record(self, name: str, output: object, counter: FlopCounterMode) -> None:
        self.flops[name] += counter.get_total_flops() - self._before.pop()
        output = output[0] if isinstance(output, tuple) and output else output
        if isinstance(output, Tensor):
            self.shapes.setdefault(name, tuple(output.shape))


def part(name: str, module: nn.Module, found: dict[str, nn.Module], trace: Trace, owners: dict[int, str]) -> Part:
    """A listed module as a part; lists, which are never called, have the sum of their blocks."""
    inside = [other for other in found if other.startswith(f"{name}.")]
    flops = trace.flops[name]
    if not flops and isinstance(module, nn.ModuleList):
        flops = sum(trace.flops[other] for other in inside if other.count(".") == name.count(".") + 1)
    own = {id(each): each.numel() for each in module.parameters() if owners[id(each)].startswith(f"{name}.")}
    kind, level, shape = type(module).__name__, name.count("."), trace.shapes.get(name)
    return Part(name, kind, level, shape, sum(own.values()), flops, not inside)


def remainder(model: nn.Module, parts: list[Part], flops: int) -> list[Part]:
    """What the leaves do not cover: parameters of the model or of a stack itself, and a tied output layer."""
    leaves = [part for part in parts if part.leaf]
    parameters = sum(each.numel() for each in model.parameters()) - sum(part.parameters for part in leaves)
    flops -= sum(part.flops for part in leaves)
    rows = [Part(ROOT, "parameters of its own", 0, None, parameters, 0, True)] if parameters else []
    return [*rows, Part(OUTPUT, "other operations", 0, None, 0, flops, True)] if flops else rows
