"""Fine-tuning: what of a model trains, and from which epoch on."""

import difflib
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import nn

from vit.training.lora import add_lora, is_added
from vit.training.optim import layer_numbers
from vit.weights.load import is_head

BATCH_NORMS = ("auto", "frozen", "train")
HEAD_INITS = ("auto", "fit", "random")
KINDS = ("all", "attention", "head")
ATTENTION = re.compile(r"(^|\.)(attn|cross_attn|self_attn|attention)\.")
POSITIONS = re.compile(r"(^|\.)(pos_embed|rotary\.freqs)$")
WRITER = ("decoder.", "target_embed.")  # what a model that writes has for a head, beside its `head`


@dataclass(frozen=True)
class Finetune:
    """What trains of a model that starts from somebody's weights; the head always does.

    Args:
        name: what people call it.
        trains: "all", "attention" (its weights and the positions, arXiv 2203.09795) or "head".
        always: beginnings of names that train in any case, beside the head.
        depth: only so many blocks train, counted from the head; None for all of them and the embedding.
        over: epochs in which these blocks join, one by one from the head down (arXiv 1801.06146): below 1 a part of
            all epochs; None for no waiting.
        lora: arguments of `add_lora`; None for none.
        head_init: where a new head starts: "random", or "fit", logistic regression on the frozen features of the
            training images (arXiv 2202.10054); "auto" fits where there are weights to start from.
        batch_norm: "frozen": batch norms keep the statistics that they came with, which small batches estimate badly;
            "train": they follow the batches; "auto" freezes those that came with weights.
    """

    name: str = "full"
    trains: str = "all"
    always: tuple[str, ...] = ()
    depth: int | None = None
    over: float | None = None
    lora: Mapping[str, object] | None = None
    head_init: str = "auto"
    batch_norm: str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "always", tuple(self.always))
        if self.trains not in KINDS:
            near = difflib.get_close_matches(str(self.trains), KINDS, n=1, cutoff=0.3)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"trains is {self.trains}, but must be one of {', '.join(KINDS)}{hint}")
        if self.head_init not in HEAD_INITS:
            raise ValueError(f"head_init is {self.head_init}, but must be one of {', '.join(HEAD_INITS)}")
        if self.batch_norm not in BATCH_NORMS:
            raise ValueError(f"batch_norm is {self.batch_norm}, but must be one of {', '.join(BATCH_NORMS)}")
        if self.lora is not None and self.trains != "head":
            raise ValueError(f"lora teaches weights that rest, but trains is {self.trains}; take trains=head with it")
        if self.depth is not None and self.depth < 1:
            raise ValueError(f"depth is {self.depth}, but must be 1 or more; with trains=head no block trains")
        if self.over is not None and self.over < 0:
            raise ValueError(f"over is {self.over}, but must be 0 or more epochs, or a part of them")
        if self.by_depth and self.trains == "head" and self.lora is None:
            raise ValueError("depth and over are about blocks that train, but with trains=head none does")

    @property
    def by_depth(self) -> bool:
        return self.depth is not None or self.over is not None

    @property
    def freezes(self) -> bool:
        """Whether some weights rest, if only for a while."""
        return self.trains != "all" or self.by_depth

    def start(self, model: nn.Module, epochs: int) -> dict[str, int]:
        """Freeze what never trains and add what is learnt beside it; returns what `begins` does.

        Raises:
            ValueError: the model has no such blocks or matrices, or the epochs are too few.
        """
        if self.lora is not None:
            add_lora(model, **self.lora)
        begins = self.begins(model, epochs)
        if self.freezes:
            train_only(model, begins, self.batch_norm != "frozen")
        elif self.batch_norm == "frozen":
            set_modes(model, training=True, batch_norm=False)
        return begins

    def begins(self, model: nn.Module, epochs: int) -> dict[str, int]:
        """Every parameter that trains -> the epoch, from 0, in which it begins to."""
        layers = layer_numbers(model) if self.by_depth else {}
        top = max(layers.values(), default=0)
        waits = self.waits(top, epochs) if self.by_depth else [0]  # by layers below the head
        found = {}
        for name, _ in model.named_parameters():
            below = top - layers.get(name, top)
            if is_head(name, model) or name.startswith((*WRITER, *self.always)):
                found[name] = 0
            elif self.chosen(name) and below < len(waits):
                found[name] = waits[below]
        self.check_found(model, found)
        return found

    def chosen(self, name: str) -> bool:
        if self.trains == "attention":
            return bool(ATTENTION.search(name) or POSITIONS.search(name))
        return self.trains == "all" or is_added(name)

    def waits(self, top: int, epochs: int) -> list[int]:
        """The epoch in which each layer begins, the one above the blocks first, of a model with `top` layers below."""
        if self.depth is not None and self.depth > top - 1:
            raise ValueError(f"depth is {self.depth}, but the model has {top - 1} blocks")
        joining = self.depth or top
        over = self.over or 0
        length = over * epochs if over < 1 else over
        if math.ceil(length) > epochs - 1:
            raise ValueError(
                f"over is {over}: the last of {joining} layers would begin to train in epoch "
                f"{math.ceil(length) + 1} of {epochs}; take fewer, or more epochs"
            )
        return [0, *(math.ceil(round(length * k / joining, 6)) for k in range(1, joining + 1))]

    def check_found(self, model: nn.Module, found: Collection[str]) -> None:
        if not found:
            raise ValueError(f"{type(model).__name__} has no head that could train alone")
        if self.trains == "attention" and not any(ATTENTION.search(name) for name in found):
            raise ValueError(f"trains is attention, but {type(model).__name__} has none")


def head_layer(model: nn.Module) -> nn.Linear | None:
    """The one linear layer that answers; None where there is another head, or more than one."""
    found = [(name, module) for name, module in model.named_modules() if is_head(f"{name}.weight", model)]
    single = len(found) == 1 and isinstance(found[0][1], nn.Linear) and found[0][1].bias is not None
    return found[0][1] if single else None


def train_only(model: nn.Module, names: Collection[str], batch_norm: bool = True) -> None:
    """Gradients for the named parameters alone. What rests behaves as in use: without dropout, with fixed statistics.

    Without `batch_norm` all batch norms have fixed statistics.
    """
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)
    set_modes(model, training=True, batch_norm=batch_norm)


def set_modes(module: nn.Module, training: bool, batch_norm: bool = True) -> None:
    """Modules train where one of their parameters does; those without any do as the one around them."""
    states = [parameter.requires_grad for parameter in module.parameters()]
    module.training = any(states) if states else training
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and not batch_norm:
        module.training = False
    for child in module.children():
        set_modes(child, module.training, batch_norm)
