"""Training step and inference of an image classifier on a fixed batch in memory."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vit.benchmarking.hardware import matrix_rates
from vit.benchmarking.memory import memory_of
from vit.benchmarking.peers import MissingPeer, Peer, build_peer, count_parameters, difference
from vit.benchmarking.results import MODES, OURS, Case, Settings
from vit.benchmarking.timing import Program, in_turns, seconds_of
from vit.inference import autocast
from vit.low_precision import DTYPES
from vit.models import VisionTransformer, VisionTransformerConfig, flops
from vit.models.flops import count_flops
from vit.models.inference_copy import inference_copy
from vit.nn.transformer import set_autocast_residual
from vit.training import build_optimizer, clip_gradients
from vit.training.precision import BF16_RESIDUAL

FORWARDS = {"step": 3, "inference": 1}  # model FLOPs in forward passes; the backward pass counts twice
MAX_DIFFERENCE = 1e-3  # largest difference of float32 logits, relative to the largest logit
MIN_SECONDS = 0.1  # shortest measured time; a shorter call is repeated
Build = Callable[[], VisionTransformer]


def bench_model(
    kind: str, build: Build, settings: Settings, cases: list[Case], progress: Callable[[str], None] = print
) -> None:
    """Training steps (`kind="step"`: forward, backward, gradient clipping, fused AdamW) or forward passes
    (`"inference"`) in each mode and precision with each batch size.

    Args:
        build: a new model with the same weights in each call.
        cases: is extended by a case per combination, whose times grow while it is measured.
        progress: is called with a line before each case.

    Raises:
        ValueError: a peer with copied weights computes something else.
    """
    rates = matrix_rates(settings.precisions, settings.device, settings.read_clock)
    for mode in settings.modes:
        for precision in settings.precisions:
            for batch in settings.batches:
                setting = {"model": describe(build().config), "mode": mode, "precision": precision, "batch": batch}
                case = Case(kind, setting, "images", batch, matrix_rate=rates[precision])
                progress(case.key)
                cases.append(case)
                measure(case, build, settings)


def describe(config: VisionTransformerConfig) -> str:
    """`9 blocks of 192, 3 heads, patches of 4x4, images of 32x32`"""
    patch, image = ("x".join(map(str, size)) for size in (config.patch_size, config.image_size))
    return f"{config.depth} blocks of {config.dim}, {config.num_heads} heads, patches of {patch}, images of {image}"


def measure(case: Case, build: Build, settings: Settings) -> None:
    """Fill in the case: networks, equality of their outputs, first call, memory, then the rounds."""
    model = build()
    case.flops = float(FORWARDS[case.benchmark] * flops(model) * case.amount)
    networks = {OURS: model, **peers_of(model, settings, case)}
    torch.compiler.reset()  # without it the code of an earlier model counts towards the limit of recompilations
    batch = fixed_batch(model.config, case.amount, settings.device)
    programs = {name: program(name, network, batch, case) for name, network in networks.items()}
    for name, run in programs.items():
        case.facts[name]["first_call_seconds"] = seconds_of(run)
    for name, run in programs.items():
        case.facts[name]["call_memory"] = memory_of(run)
        steady = min(seconds_of(run) for _ in range(2))
        if case.setting["mode"] != "eager":
            case.facts[name]["compile_seconds"] = max(0.0, case.facts[name]["first_call_seconds"] - steady)
        if name == OURS:
            repeats = max(1, math.ceil(MIN_SECONDS / steady))
    case.amount, case.flops = case.amount * repeats, case.flops * repeats
    repeated = {name: partial(repeat, run, repeats) for name, run in programs.items()}
    in_turns(repeated, settings.rounds, settings.read_clock, warmup=0, times=case.times)


def peers_of(model: VisionTransformer, settings: Settings, case: Case) -> dict[str, nn.Module]:
    """The networks of the peers that can express the model; the case records the others with their reason.

    Raises:
        ValueError: a peer with copied weights computes something else, or another number of operations.
    """
    shape = (1, model.config.in_chans, *model.config.image_size)
    case.facts[OURS] = {"parameters": count_parameters(model), "flops_per_image": count_flops(model, shape)}
    networks = {}
    for name in settings.against:
        try:
            peer = build_peer(name, model)
        except MissingPeer as error:
            case.missing[name] = str(error)
            continue
        case.facts[name] = check_peer(name, model, peer)
        if case.setting["precision"] == BF16_RESIDUAL:
            case.facts[name]["remark"] = "; ".join(filter(None, [peer.remark, "computes in bf16-mixed"]))
        networks[name] = peer.network
    return networks


def check_peer(name: str, model: VisionTransformer, peer: Peer) -> dict[str, float | int | str | None]:
    """Parameters, operations and difference of the outputs of a peer.

    Raises:
        ValueError: it computes something else.
    """
    shape = (1, model.config.in_chans, *model.config.image_size)
    facts = {"parameters": count_parameters(peer.network), "flops_per_image": count_flops(peer.network, shape)}
    own = count_flops(model, shape)
    if facts["flops_per_image"] != own:
        raise ValueError(f"{name} computes {facts['flops_per_image']:,} operations per image instead of {own:,}")
    if peer.has_same_weights:
        images = torch.randn(2, *shape[1:], generator=torch.Generator().manual_seed(0))
        facts["difference"] = difference(model.eval(), peer.network.eval(), images)
        if facts["difference"] > MAX_DIFFERENCE:
            raise ValueError(f"{name} computes something else: with equal weights its logits differ by "
                             f"{facts['difference']:.2g} of the largest")
    return {**facts, "remark": peer.remark}


def fixed_batch(config: VisionTransformerConfig, size: int, device: str) -> tuple[Tensor, Tensor]:
    """images (B,C,H,W) of noise, labels (B,)"""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(size, config.in_chans, *config.image_size, generator=generator)
    labels = torch.randint(0, config.num_classes, (size,), generator=generator)
    return images.to(device), labels.to(device)


def program(name: str, network: nn.Module, batch: tuple[Tensor, Tensor], case: Case) -> Program:
    """A training step or a forward pass of the network on the batch, images (B,C,H,W) and labels (B,).

    Peers compute in bf16-mixed instead of `bf16-residual`, which they do not have. This project's model computes a
    forward pass as in `vit predict`, with packed weights.
    """
    images, labels = batch
    precision = str(case.setting["precision"])
    if precision == BF16_RESIDUAL:
        precision = "bf16-mixed"
        if name == OURS:
            set_autocast_residual(network)
    network.to(images.device).train(case.benchmark == "step")
    if mode := MODES[case.setting["mode"]]:
        network.compile(dynamic=False, mode=mode)
    if case.benchmark == "inference":
        if name == OURS and not mode:
            network = inference_copy(network, DTYPES.get(precision))  # as `vit predict` computes
        return partial(infer, network, images, precision)
    clip = clip_gradients if name == OURS else nn.utils.clip_grad_norm_
    return partial(train_step, network, build_optimizer(network, lr=1e-4), clip, images, labels, precision)


@torch.inference_mode()
def infer(network: nn.Module, images: Tensor, precision: str) -> Tensor:
    """(B,C,H,W) -> (B,classes)"""
    with autocast(images.device, precision):
        return network(images)


def train_step(
    network: nn.Module, optimizer: torch.optim.Optimizer, clip: Callable[..., object], images: Tensor, labels: Tensor,
    precision: str,
) -> None:
    """Forward, backward, clipping to norm 1 and update; the loss is computed in float32 by all libraries."""
    with autocast(images.device, precision):
        logits = network(images)
    F.cross_entropy(logits.float(), labels).backward()
    clip(network.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def repeat(run: Program, times: int) -> None:
    for _ in range(times):
        run()
