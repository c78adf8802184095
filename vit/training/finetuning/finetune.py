"""Fine-tuning: which parameters are trained, and from which epoch on."""

import math
import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import InitVar, dataclass

from torch import nn

from vit.messages import check_several, did_you_mean, nearest_names, number_of
from vit.training.finetuning.head_norm import HeadNorm, add_head_norm
from vit.training.finetuning.lora import add_lora
from vit.training.optimization.layer_decay import layer_numbers
from vit.weights.loading import is_head
from vit.weights.training_checkpoint import is_added

BATCH_NORMS = ("auto", "frozen", "train")
HEAD_INITS = ("auto", "fit", "random")
HEAD_NORMS = ("none", "batch")
KINDS = ("all", "attention", "head")
ATTENTION = re.compile(r"(^|\.)(attn|cross_attn|self_attn|attention)\.")
POSITIONS = re.compile(r"(^|\.)(pos_embed|rotary\.freqs)$")
SEQ2SEQ_HEAD = ("decoder.", "target_embed.")  # parameters that a seq2seq model trains in place of a head


@dataclass(frozen=True)
class Finetune:
    """Which parameters of a pretrained model are trained. The head always is.

    Args:
        name: name of the strategy, for logs and tables.
        trainable: "all", "attention" (attention weights and positions, arXiv 2203.09795) or "head".
        always_trainable: prefixes of parameter names that are trained in any case, as the head is.
        depth: number of trained blocks, counted from the head; None for all of them and the embedding.
        unfreeze_epochs: number of epochs over which these blocks are unfrozen, one by one from the head down (gradual
            unfreezing, arXiv 1801.06146); below 1 a fraction of all epochs; None to train all from the start.
        lora: arguments of `add_lora`; None for no LoRA.
        head_init: how a new head is initialized: "random", or "fit": logistic regression on the frozen features of the
            training images (LP-FT, arXiv 2202.10054); "auto" is "fit" where pretrained weights are loaded.
        head_norm: "batch" trains a new head, with random weights, on features that a `HeadNorm` normalizes, as in
            linear probing of self-supervised models; it is merged into the head of the saved model.
        batch_norm: "frozen" uses the pretrained running statistics, which small batches estimate badly; "train"
            updates them; "auto" is "frozen" where pretrained weights are loaded.
        trains, always, over: deprecated names of `trainable`, `always_trainable` and `unfreeze_epochs`.

    Raises:
        ValueError: an unknown value, or values that contradict each other.
    """

    name: str = "full"
    trainable: str = "all"
    always_trainable: tuple[str, ...] = ()
    depth: int | None = None
    unfreeze_epochs: float | None = None
    lora: Mapping[str, object] | None = None
    head_init: str = "auto"
    batch_norm: str = "auto"
    head_norm: str = "none"
    trains: InitVar[str | None] = None
    always: InitVar[tuple[str, ...] | None] = None
    over: InitVar[float | None] = None

    def __post_init__(self, trains: str | None, always: tuple[str, ...] | None, over: float | None) -> None:
        former = (("trains", "trainable", trains), ("always", "always_trainable", always),
                  ("over", "unfreeze_epochs", over))
        for old, name, value in former:
            if value is not None:
                warnings.warn(f"{old}= is deprecated; use {name}=", DeprecationWarning, stacklevel=3)
                object.__setattr__(self, name, value)
        check_several("always_trainable", self.always_trainable)
        object.__setattr__(self, "always_trainable", tuple(map(str, self.always_trainable)))
        if self.trainable not in KINDS:
            hint = did_you_mean(nearest_names(self.trainable, KINDS, cutoff=0.3))
            raise ValueError(f"trainable is {self.trainable}, but must be one of {', '.join(KINDS)}{hint}")
        if self.head_init not in HEAD_INITS:
            raise ValueError(f"head_init is {self.head_init}, but must be one of {', '.join(HEAD_INITS)}")
        if self.batch_norm not in BATCH_NORMS:
            raise ValueError(f"batch_norm is {self.batch_norm}, but must be one of {', '.join(BATCH_NORMS)}")
        if self.head_norm not in HEAD_NORMS:
            raise ValueError(f"head_norm is {self.head_norm}, but must be one of {', '.join(HEAD_NORMS)}")
        if self.head_norm == "batch" and self.trainable != "head":
            raise ValueError(f"head_norm is for a head on frozen features, but trainable is {self.trainable}; set "
                             "trainable=head with it")
        if self.head_norm == "batch" and self.head_init == "fit":
            raise ValueError("head_init=fit is for features without normalization; set head_init=random with "
                             "head_norm=batch")
        if self.lora is not None and self.trainable != "head":
            raise ValueError(f"lora is for frozen weights, but trainable is {self.trainable}; set trainable=head "
                             "with it")
        if self.depth is not None and self.depth < 1:
            raise ValueError(f"depth is {self.depth}, but must be 1 or more; with trainable=head no block trains")
        if self.unfreeze_epochs is not None and self.unfreeze_epochs < 0:
            raise ValueError(f"unfreeze_epochs is {self.unfreeze_epochs}, but must be 0 or more epochs, or a fraction "
                             "below 1")
        if self.by_depth and self.trainable == "head" and self.lora is None:
            raise ValueError("depth and unfreeze_epochs select trained blocks, but trainable=head trains none")

    @property
    def by_depth(self) -> bool:
        return self.depth is not None or bool(self.unfreeze_epochs)  # 0: all blocks are trained from the start

    @property
    def freezes(self) -> bool:
        """Whether some weights are frozen, in all epochs or in the first ones."""
        return self.trainable != "all" or self.by_depth

    def start(self, model: nn.Module, epochs: int) -> dict[str, int]:
        """Freeze all that is not trained, add LoRA and `HeadNorm`; returns what `begins` returns.

        Raises:
            ValueError: the model has no such blocks, matrices or head, or there are too few epochs.
        """
        if self.head_norm == "batch":
            layer = head_layer(model)
            if layer is None or any(name.startswith(SEQ2SEQ_HEAD) for name, _ in model.named_parameters()):
                raise ValueError("head_norm=batch is for classifiers with a single linear head with a bias, which this "
                                 f"{type(model).__name__} has not; use head_norm=none")
            add_head_norm(layer)
        if self.lora is not None:
            add_lora(model, **self.lora)
        begins = self.begins(model, epochs)
        if self.freezes:
            train_only(model, begins, self.batch_norm != "frozen")
        elif self.batch_norm == "frozen":
            set_modes(model, training=True, batch_norm=False)
        return begins

    def begins(self, model: nn.Module, epochs: int) -> dict[str, int]:
        """Name of every trained parameter -> the first epoch, from 0, in which it is trained.

        Raises:
            ValueError: the model has no head, attention or numbered blocks, no parameter has a prefix of
                `always_trainable`, or there are too few epochs.
        """
        layers = layer_numbers(model) if self.by_depth else {}
        top = max(layers.values(), default=0)
        first_epochs = self.first_epochs(top, epochs) if self.by_depth else [0]  # by distance from the head
        first = {}
        for name, _ in model.named_parameters():
            below = top - layers.get(name, top)
            if is_head(name, model) or name.startswith((*SEQ2SEQ_HEAD, *self.always_trainable)):
                first[name] = 0
            elif self.selected(name) and below < len(first_epochs):
                first[name] = first_epochs[below]
        self.check_found(model, first)
        return first

    def selected(self, name: str) -> bool:
        """Whether `trainable` selects the parameter, regardless of its block."""
        if self.trainable == "attention":
            return bool(ATTENTION.search(name) or POSITIONS.search(name))
        return self.trainable == "all" or is_added(name)

    def first_epochs(self, top: int, epochs: int) -> list[int]:
        """First trained epoch of each layer, from the head down; `top` is the number of layers below the head.

        Raises:
            ValueError: there are fewer blocks than `depth`, or fewer epochs than `unfreeze_epochs` needs.
        """
        if self.depth is not None and self.depth > top - 1:
            raise ValueError(f"depth is {self.depth}, but the model has {number_of(top - 1, 'block')}")
        joining = self.depth or top
        unfreeze = self.unfreeze_epochs or 0
        length = unfreeze * epochs if unfreeze < 1 else unfreeze
        if math.ceil(length) > epochs - 1:
            raise ValueError(
                f"unfreeze_epochs is {unfreeze}: the last of {joining} layers would be unfrozen in epoch "
                f"{math.ceil(length) + 1} of {epochs}; lower unfreeze_epochs, or train for more epochs"
            )
        return [0, *(math.ceil(round(length * k / joining, 6)) for k in range(1, joining + 1))]

    def check_found(self, model: nn.Module, found: Collection[str]) -> None:
        """Check that something is trained, and all that `always_trainable` names.

        Raises:
            ValueError: the model has no head or no attention, or no parameter has a prefix.
        """
        names = [name for name, _ in model.named_parameters()]
        for prefix in self.always_trainable:
            if not any(name.startswith(prefix) for name in names):
                near = nearest_names(prefix, dict.fromkeys(name.rpartition(".")[0] or name for name in names))
                raise ValueError(f"always_trainable has {prefix!r}, but no parameter has a name that begins with it"
                                 f"{did_you_mean(near)}")
        if not found:
            raise ValueError(f"{type(model).__name__} has no head to train")
        if self.trainable == "attention" and not any(ATTENTION.search(name) for name in found):
            raise ValueError(f"trainable is attention, but {type(model).__name__} has no attention layers")


def head_layer(model: nn.Module) -> nn.Linear | None:
    """The head if it is a single linear layer with a bias; None for any other head."""
    heads = [(name, module) for name, module in model.named_modules() if is_head(f"{name}.weight", model)]
    single = len(heads) == 1 and isinstance(heads[0][1], nn.Linear) and heads[0][1].bias is not None
    return heads[0][1] if single else None


def train_only(model: nn.Module, names: Collection[str], batch_norm: bool = True) -> None:
    """Train only the named parameters. Frozen modules are in evaluation mode: no dropout, fixed statistics.

    With `batch_norm=False` every batch norm uses its running statistics, except a `HeadNorm`, which is not pretrained.
    """
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)
    set_modes(model, training=True, batch_norm=batch_norm)


def set_modes(module: nn.Module, training: bool, batch_norm: bool = True) -> None:
    """Training mode for modules with a trained parameter; modules without parameters follow their parent."""
    states = [parameter.requires_grad for parameter in module.parameters()]
    module.training = any(states) if states else training
    is_pretrained = isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, HeadNorm)
    if is_pretrained and not batch_norm:
        module.training = False
    for child in module.children():
        set_modes(child, module.training, batch_norm)
