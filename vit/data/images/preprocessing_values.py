"""What all kinds of preprocessing share: conversion to and from the values that a bundle stores, and ImageNet's mean
and standard deviation.
"""

from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields, replace
from typing import Any, Self

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of RGB pixels in [0,1]


class StoredPreprocessing:
    """Base class of the frozen dataclasses of preprocessing, which a bundle stores as plain values."""

    def to_dict(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The preprocessing that `to_dict` saved.

        Raises:
            ValueError: a key is unknown or missing, or a value is invalid.
        """
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(values) - set(known)):
            raise ValueError(f"unknown preprocessing key {unknown[0]!r}; known: {', '.join(known)}")
        if missing := [each.name for each in fields(cls)
                       if each.default is each.default_factory is MISSING and each.name not in values]:
            raise ValueError(f"preprocessing has no {missing[0]}")
        return cls(**values)

    def replace(self, **changes: Any) -> Self:
        """A copy with other values for the named fields."""
        return replace(self, **changes)


def as_size(size: int | Sequence[int], name: str = "size") -> tuple[int, ...]:
    """`32` or `[32, 48]` -> (height, width)

    Args:
        name: the field, for the message.

    Raises:
        ValueError: `size` is not a number or a list of numbers.
    """
    return (size, size) if isinstance(size, int) else as_numbers(name, size, int)


def as_numbers(name: str, values: Sequence[float], number: type) -> tuple[float, ...]:
    """The values, each converted by `number`, which is `int` or `float`.

    Args:
        name: the field, for the message.

    Raises:
        ValueError: `values` is not a list of numbers.
    """
    try:
        return tuple(number(value) for value in values)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name}={values!r} must be a list of numbers") from None
