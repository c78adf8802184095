"""Options of classes of torch and timm, checked against the signatures of these classes before they are built.

The classes treat any string as true, and fail on a string in place of a number only at the first step.
"""

import inspect
import re
from numbers import Integral, Real
from typing import Any

from torch import Tensor

NULLABLE = re.compile(r"(typing\.)?Optional\[|.*\| None$")
TUPLE = re.compile(r"\btuple\[", re.IGNORECASE)
LITERAL = re.compile(r"true|false|[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)  # what a string only looks like
UNCHECKED = re.compile(r"\b(str|list|List|Callable|dtype)\b")  # several kinds of values, which the class checks


def check_option(key: str, value: Any, parameter: inspect.Parameter, owner: str) -> None:
    """Check an option if the default or the annotation of its parameter is a bool, a number or numbers.

    Args:
        key: name of the option in the message.
        owner: what has the option, in the message: `optimizer 'lion'`.

    Raises:
        ValueError: the value is of another kind.
    """
    if expected := expected_kind(value, parameter):
        shown = list(value) if isinstance(value, tuple) else value
        hint = f"; {value!r} is a string" if isinstance(value, str) and LITERAL.fullmatch(value) else ""
        raise ValueError(f"{key}={shown} of {owner} must be {expected}{hint}")


def expected_kind(value: Any, parameter: inspect.Parameter) -> str:
    """The kind that the parameter needs, such as `true or false`, for a value of another kind; empty if it fits."""
    default, stated = parameter.default, stated_type(parameter)
    nullable = default is None or NULLABLE.match(stated)
    if UNCHECKED.search(stated) or value is None and nullable:
        return ""
    or_null = ", or null" if nullable else ""
    if isinstance(default, tuple) or TUPLE.search(stated):
        parts = default if isinstance(default, tuple) else (0.0,) * stated.count("float")
        fits = isinstance(value, tuple | list) and len(value) == len(parts) and all(
            is_number(each) or each is None and part is None for each, part in zip(value, parts, strict=True))
        return "" if fits else f"a list of {len(parts)} numbers{or_null}"
    if "bool" in stated:
        return "" if value is None or value in (True, False) else f"true or false{or_null}"
    if "float" in stated:
        return "" if is_number(value) else f"a number{or_null}"
    if "int" in stated:
        return "" if is_number(value, Integral) else f"a whole number{or_null}"
    return ""


def stated_type(parameter: inspect.Parameter) -> str:
    """The annotation of a parameter, otherwise the type of its default: `bool`, `tuple[float, float]`,
    `Optional[float]`.

    The default of a parameter without annotation, such as `momentum=0`, may be a whole number; any number is accepted.
    """
    if parameter.annotation is inspect.Parameter.empty:
        return {bool: "bool", int: "float", float: "float"}.get(type(parameter.default), "")
    found = parameter.annotation
    return found.__name__ if isinstance(found, type) else str(found)


def is_number(value: Any, kind: type = Real) -> bool:
    """Whether a value is a number, or a tensor of one element."""
    return isinstance(value, kind) and not isinstance(value, bool) or isinstance(value, Tensor) and value.numel() == 1
