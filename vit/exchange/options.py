"""Options of an import: what the caller states about the network, and how the model is to differ from it."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vit.bundle.files import SourceError
from vit.messages import ArgumentError
from vit.models.build import ACTIVATIONS

Size = int | Sequence[int]


class OptionError(SourceError, ArgumentError):
    """An option of an import or export, rather than its source, is invalid or cannot be used here."""


@dataclass(frozen=True)
class Hints:
    """What the caller states about a network because its tensors do not determine it.

    `image_size` is used only if the tensors have no positions.

    Raises:
        SourceError: a value that no network can have.
    """

    num_heads: int | None = None
    activation: str | None = None
    image_size: Size | None = None

    def __post_init__(self) -> None:
        check_count("num_heads", self.num_heads, 1)
        check_size("image_size", self.image_size)
        if self.activation is not None and self.activation not in ACTIVATIONS:
            raise OptionError(f"activation={self.activation} is unknown; it must be one of {', '.join(ACTIVATIONS)}")


@dataclass(frozen=True)
class Changes:
    """How the imported model is to differ from the model of the source; None leaves a value as it is.

    Positions and the patch projection are resampled; another number of classes means a newly initialized head.

    Raises:
        SourceError: a value that no network can have.
    """

    image_size: Size | None = None
    patch_size: Size | None = None
    in_chans: int | None = None
    num_classes: int | None = None

    def __post_init__(self) -> None:
        check_size("image_size", self.image_size)
        check_size("patch_size", self.patch_size)
        check_count("in_chans", self.in_chans, 1)
        check_count("num_classes", self.num_classes, 0)


def current_activation(activation: str | None, act: str | None) -> str | None:
    """The activation under its present or its former keyword of a public function."""
    if act is None:
        return activation
    warnings.warn("act= is deprecated; use activation=", DeprecationWarning, stacklevel=3)
    return act if activation is None else activation


def check_count(key: str, value: Any, least: int) -> None:
    """Raises SourceError for a value that is not a whole number of at least `least`; None is not checked."""
    if value is not None and not (is_whole(value) and value >= least):
        raise OptionError(f"{key}={value!r} must be a whole number of {least} or more")


def check_size(key: str, value: Any) -> None:
    """Raises SourceError for a value that is not a size in pixels; None is not checked."""
    edges = [value] if is_whole(value) else value
    if value is not None and not (isinstance(edges, list | tuple) and len(edges) in (1, 2)
                                  and all(is_whole(edge) and edge >= 1 for edge in edges)):
        raise OptionError(f"{key}={value!r} must be one whole number of pixels, or two: (height, width)")


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
