"""Optimizers by name, over parameter groups decided by parameter names."""

import inspect
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch

import torch
from torch import nn

from vit.messages import nearest_names
from vit.training.optimization.lars import MocoLars
from vit.training.optimization.layer_decay import BLOCK, layer_numbers
from vit.training.option_values import check_option
from vit.weights.training_checkpoint import clean_name

# Last parts of the names of scales, shifts, tokens and positions, which have no weight decay.
NO_DECAY = re.compile(
    r"(^|_)(bias|gamma|scale|temperature|tokens?|pos_embed|pos_embedding|rel_pos(_[hw])?|bias_table|latent|query|probe|freqs|bias_[ih]h_l\d+)$"
)
POSITION_TABLE = re.compile(r"(^|\.)(pos_embed|position_embeddings?)\.")  # position tables that are modules
# torch.optim classes that need sparse gradients, a closure or only matrices
UNSUPPORTED = {"Optimizer", "SparseAdam", "LBFGS", "Muon"}
# names in timm: of other libraries, and one that needs second derivatives, which a training step does not compute
UNSUPPORTED_OF_TIMM = ["apex*", "bnb*", "fused*", "adahessian"]
# optimizers with operations on whole parameters that FSDP2 lacks for shards: their first step fails or hangs
UNSUPPORTED_FOR_SHARDS = ["adafactor", "*adamuon", "*adamp", "*sgdp", "kron*", "*mars", "novograd*"]
# optimizers of timm with an update of their own for matrices
ORTHOGONALIZING = {"muon", "nmuon", "adamuon", "nadamuon"}
FUSED_FOR_SHARDS = (torch.optim.Adam, torch.optim.AdamW)  # whose fused kernels torch applies to the shards of FSDP2
PROJECTIONS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # not norms, whatever a subclass is called
LATER_CONVOLUTION = re.compile(r"(^|\.)embed\.proj\.(later\.\d|[1-9])")  # later convolutions of a stem


def parameter_groups(
    model: nn.Module,
    weight_decay: float,
    layer_decay: float | None = None,
    lr: float = 1e-3,
    orthogonalize: bool = False,
) -> list[dict]:
    """The trainable parameters in groups, one for each pair of `lr` and `weight_decay`.

    With `layer_decay` the rate of layer i of n is `lr * layer_decay ** (n - i)` (BEiT, arXiv 2106.08254). It is stored
    as the group's `lr`, the only rate that torch's schedulers read.

    Args:
        orthogonalize: for Muon, which is designed for hidden matrices only: all other parameters are in groups of their
            own, with `use_fallback=True`, which timm's Muon updates with AdamW.

    Raises:
        ValueError: `layer_decay` is not in (0, 1] or the model has no numbered blocks, or no parameter is trainable.
    """
    if layer_decay is not None and not 0 < layer_decay <= 1:
        raise ValueError(
            f"layer_decay is {layer_decay}, but must lie in (0, 1]; 1 or null means the same rate everywhere"
        )
    exempt = undecayed(model)
    layers = layer_numbers(model) if layer_decay not in (None, 1) else {}
    top = max(layers.values(), default=0)
    hidden = hidden_matrices(model) if orthogonalize else set()
    groups: dict[tuple[int, bool, bool], dict] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        name = clean_name(name)
        layer, decays = layers.get(name, top), weight_decay > 0 and name not in exempt
        fallback = {"use_fallback": True} if orthogonalize and name not in hidden else {}
        group = groups.setdefault(
            (layer, decays, bool(fallback)),
            {
                "params": [],
                "lr": lr * (layer_decay or 1.0) ** (top - layer),
                "weight_decay": weight_decay if decays else 0.0,
                **fallback,
            },
        )
        group["params"].append(parameter)
    if not groups:
        raise ValueError("the model has no trainable parameter: every one has requires_grad=False")
    return [groups[key] for key in sorted(groups)]


def hidden_matrices(model: nn.Module) -> set[str]:
    """Names of the matrices and kernels between the first layer and the last one, for which Muon is designed
    (https://kellerjordan.github.io/posts/muon/): those of numbered blocks and the later convolutions of a stem.

    Raises:
        ValueError: the model has no numbered blocks.
    """
    decayed = {clean_name(name) for name, _ in model.named_parameters()} - undecayed(model)
    if not any(BLOCK.search(name) for name in decayed):
        raise ValueError(f"muon orthogonalizes the updates of the matrices in numbered blocks (`blocks.N.`), and "
                         f"{type(model).__name__} has none; use another optimizer, such as adamw")
    return {name for name in decayed if BLOCK.search(name) or LATER_CONVOLUTION.search(name)}


def undecayed(model: nn.Module) -> set[str]:
    """Names of the parameters without weight decay: norms, biases, scales, tokens, positions, `no_weight_decay()`.

    Decay pulls a number to 0. That keeps a matrix from fitting the training data too closely; a norm would lose its
    scale, and biases, tokens and positions are few numbers that overfit little.

    BERT's code decays the table of positions, too, and that of MAE's pre-training class token and mask token.
    """
    names = {clean_name(name) for name in getattr(model, "no_weight_decay", set)()}
    for prefix, module in model.named_modules():
        is_norm = "norm" in type(module).__name__.lower() and not isinstance(module, PROJECTIONS)
        for leaf, parameter in module.named_parameters(recurse=False):
            name = clean_name(f"{prefix}.{leaf}" if prefix else leaf)
            if is_norm or parameter.ndim <= 1 or NO_DECAY.search(leaf) or POSITION_TABLE.search(name):
                names.add(name)
    return names


def build_optimizer(
    model: nn.Module,
    name: str = "adamw",
    lr: float = 1e-3,
    weight_decay: float = 0.05,
    layer_decay: float | None = None,
    options: dict | None = None,
) -> torch.optim.Optimizer:
    """The optimizer over `parameter_groups`: a class of torch.optim by its case-insensitive name, "moco_lars", else one
    of timm.

    With "muon", "nmuon" (Nesterov momentum), "adamuon" or "nadamuon" only the `hidden_matrices` have its update; all
    other parameters have that of AdamW (of NAdamW with Nesterov momentum), at `lr` times the option
    `fallback_lr_scale`. timm's defaults are not those of Muon's author, which are nesterov=True,
    ns_coefficients="original" and adjust_lr_fn="original".

    Args:
        options: keyword arguments of its constructor.

    Raises:
        ValueError: an unknown name or option, an option of another form, or what `parameter_groups` raises.
    """
    orthogonalize = name.lower().removeprefix("lookahead_") in ORTHOGONALIZING
    groups = parameter_groups(model, weight_decay, layer_decay, lr, orthogonalize)
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in (options or {}).items()}
    check_name(name)
    optimizer_class = optimizer_classes().get(name.lower())
    if optimizer_class is None:
        return timm_optimizer(groups, name, lr, options)
    accepted = inspect.signature(optimizer_class).parameters
    if options:
        check_options(name, options, accepted)
    fused: dict[str, bool] = {}
    others = options.get("foreach") or options.get("differentiable")  # implementations that exclude the fused one
    parameters = [parameter for group in groups for parameter in group["params"]]
    if "fused" in accepted and not others and fusable(parameters, optimizer_class):
        fused = {"fused": True}
    try:
        return optimizer_class(groups, lr=lr, **(fused | options))
    except (IndexError, RuntimeError, TypeError) as error:
        raise ValueError(f"optimizer {name!r} does not accept its options {options}: {error}") from None


def optimizer_classes() -> dict[str, type[torch.optim.Optimizer]]:
    """`MocoLars` and the supported classes of torch.optim by lower-case name."""
    return {"moco_lars": MocoLars} | {
        name.lower(): value
        for name, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and name not in UNSUPPORTED
    }


def check_name(name: str) -> None:
    """Check that there is an optimizer of this name.

    Raises:
        ValueError: there is none; the message has the nearest names.
    """
    if name.lower() in optimizer_classes():
        return
    from timm.optim import list_optimizers

    known = list_optimizers(exclude_filters=UNSUPPORTED_OF_TIMM)
    base = name.lower().removeprefix("lookahead_")
    if base not in known:
        near = nearest_names(base, sorted({*known, *optimizer_classes()}), n=3, cutoff=0.4)
        raise ValueError(f"unknown optimizer {name!r}; nearest: {', '.join(near) or 'adamw, sgd, lamb'}")


def check_shardable(name: str, options: Mapping[str, object] | None = None) -> None:
    """Check that FSDP2 can shard the parameters that an optimizer updates.

    Args:
        name: a name that `check_name` accepts.
        options: keyword arguments of its constructor.

    Raises:
        ValueError: it cannot, as for the cautious optimizers of timm.
    """
    base = name.lower().removeprefix("lookahead_")
    supported = not any(fnmatch(base, pattern) for pattern in UNSUPPORTED_FOR_SHARDS)
    if supported and base not in optimizer_classes():
        from timm.optim import get_optimizer_info

        cautious = {**(get_optimizer_info(base).defaults or {}), **(options or {})}.get("caution")
        supported, name = not cautious, f"{name} with caution=true" if "caution" in (options or {}) else name
    if not supported:
        raise ValueError(f"strategy=fsdp cannot shard the updates of {name}; use strategy=ddp, or another optimizer, "
                         "such as adamw, lamb or muon")


def timm_optimizer(groups: list[dict], name: str, lr: float, options: dict) -> torch.optim.Optimizer:
    """An optimizer of timm by name.

    Raises:
        ValueError: an unknown option.
    """
    from timm.optim import create_optimizer_v2, get_optimizer_info

    base = name.lower().removeprefix("lookahead_")
    info = get_optimizer_info(base)
    for option in ("betas", "eps", "momentum"):  # timm ignores them silently
        if options.get(option) is not None and not getattr(info, f"has_{option}"):
            raise ValueError(f"optimizer {name!r} has no option {option!r}; leave it out, or use another optimizer")
    if "weight_decay" in options:
        raise ValueError(f"weight_decay is not an option of optimizer {name!r}, because each parameter group has its "
                         "own; set weight_decay beside options")
    options = {key: value for key, value in options.items() if getattr(info, f"has_{key}", True)}
    accepted = inspect.signature(info.opt_class).parameters
    if options:
        check_options(name, options, accepted)
    if "deterministic" in accepted:  # kron; else each process draws random numbers of its own, and their weights differ
        options = {"deterministic": True, **options}
    if base in ORTHOGONALIZING:
        from vit.training.optimization.muon_precision import use_suited_precision

        use_suited_precision()
    try:
        return create_optimizer_v2(groups, opt=name.lower(), lr=lr, **options)
    except (AssertionError, IndexError, RuntimeError, TypeError) as error:
        raise ValueError(f"optimizer {name!r} does not accept its options {options}: {error}") from None


def check_options(name: str, options: dict, accepted: Mapping[str, inspect.Parameter]) -> None:
    """Check the options of an optimizer against the parameters of its constructor.

    Raises:
        ValueError: an option that its constructor does not have, or a value of another kind, such as text where it
            takes true or false.
    """
    names = [key for key in accepted if key not in ("params", "lr", "weight_decay")]
    for key in options:
        if key not in names:
            near = nearest_names(key, names, cutoff=0.4) or names
            raise ValueError(f"optimizer {name!r} has no option {key!r}; nearest: {', '.join(near)}")
        check_option(f"options.{key}", options[key], accepted[key], f"optimizer {name!r}")


def fusable(parameters: Sequence[torch.Tensor], optimizer_class: type[torch.optim.Optimizer]) -> bool:
    """Whether a fused kernel of the optimizer can update all of them: floating point, on a device that has such a
    kernel, and sharded only where torch can apply it to shards.
    """
    devices = {"cpu", "cuda", "xpu", "mps"}
    if optimizer_class not in FUSED_FOR_SHARDS and any(hasattr(each, "to_local") for each in parameters):
        return False
    return all(parameter.device.type in devices and parameter.is_floating_point() for parameter in parameters)


def scaled_lr(lr: float, batch_size: int, base: int = 256, rule: str = "linear") -> float:
    """The learning rate for `batch_size`, if `lr` is that for batches of `base`.

    Args:
        rule: "linear" for SGD (arXiv 1706.02677), which DeiT and MAE use with AdamW, too; "sqrt" for Adam.

    Raises:
        ValueError: another rule.
    """
    ratios = {"linear": batch_size / base, "sqrt": (batch_size / base) ** 0.5}
    if rule not in ratios:
        raise ValueError(f"lr scaling rule is {rule!r}, but must be one of {', '.join(ratios)}")
    return lr * ratios[rule]
