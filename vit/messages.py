"""Parts of messages for users: errors on one line, hints at the nearest valid names, durations."""

import difflib
import math
import re
import shlex
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from os import PathLike

BARE = re.compile(r"[A-Za-z_./~][\w./@-]*( [A-Za-z_][\w./@-]*)*", re.ASCII)  # a text that Hydra parses as itself
LEFT_TO_RIGHT = "\u200e"  # an invisible mark
JOINERS = "\u200c\u200d"  # invisible parts of Persian and Indian words and of emoji
NO_TEXTS = ("null", "true", "false", "inf", "nan", "yes", "no", "on", "off", "~")  # for Hydra or for YAML


class ArgumentError(ValueError):
    """An argument that is out of range, contradicts another one or does not apply to the model. The message begins with
    its name, for which a command prints that of its option.
    """

    exit_code = 2  # exit code of a command that ends with this error


def quoted(value: object, limit: int = 60, format: Callable[[object], str] = repr) -> str:
    """A value in Python's notation, such as a text in quotes, truncated after `limit` characters."""
    text = format(value)
    return text if len(text) <= limit else f"{text[:limit]}…"


def list_names(names: Iterable[object], limit: int = 20) -> str:
    """Names separated by commas, at most `limit` of them with the number of the others; none if there are none."""
    names = [quoted(name, format=str) for name in names]
    rest = len(names) - limit
    return ", ".join(names if rest <= 1 else [*names[:limit], f"... and {rest} more"]) or "none"


def first_of(items: Sequence[str], limit: int, separator: str = ", ") -> str:
    """The first `limit` items, with the number of the others: `a, b, c and 4 more`."""
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return separator.join(items[:limit]) + more


def number_of(count: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: `1 image`, `1,379 images`, `0 classes`.

    Args:
        noun: in the singular.
        plural: where it does not end with s, or es after s, x, tch and sh.
    """
    ending = "es" if noun.endswith(("s", "x", "tch", "sh")) else "s"
    return f"{count:,} {noun if count == 1 else plural or noun + ending}"


def agree(count: int, singular: str, plural: str) -> str:
    """The form of a word that fits a number: `is` for 1, `are` for others."""
    return singular if count == 1 else plural


def left_to_right(*parts: str) -> str:
    """The parts, one after the other from left to right, also around and within Arabic and Hebrew ones, which would
    otherwise change their order: of `a → b` it would seem that b was the first, and `, 32%` would precede a name.
    """
    turned = any(unicodedata.bidirectional(letter) in ("R", "AL") for part in parts for letter in part)
    return "".join(f"{LEFT_TO_RIGHT}{part}" for part in parts) if turned else "".join(parts)


def path_left_to_right(path: str) -> str:
    """A path, whose Arabic and Hebrew folders remain in their order."""
    return left_to_right(*re.split("(?=/)", path))


def is_visible(letter: str) -> bool:
    """Whether a letter is text rather than a control character: all that is printed, spaces of all kinds (U+3000 of
    Chinese texts, U+00A0 of French ones), joiners within words and emoji, and the mark of `left_to_right`.
    """
    return letter.isprintable() or unicodedata.category(letter) == "Zs" or letter in (*JOINERS, LEFT_TO_RIGHT)


def visible(text: str) -> str:
    """A text whose control characters, apart from tabs and line breaks, are escape sequences: a terminal would execute
    them, and names in files may come from anyone.
    """
    return "".join(c if c in "\t\n" or is_visible(c) else ascii(c)[1:-1] for c in text)


def shell_quoted(text: str) -> str:
    """A word of a command in quotes, if a shell needs them: in double quotes where it contains single ones."""
    return f'"{text}"' if "'" in text and not set(text) & set('"$`\\!') else shlex.quote(text)


def override_for_shell(key: str, value: object) -> str:
    """`key=value` for a message, as a shell and Hydra read it: `data.root=photos`, `'data.classes=[cat,dog]'`."""
    return shell_quoted(f"{key}={hydra_text(value)}")


def hydra_text(value: object) -> str:
    """A value in Hydra's grammar of overrides, with quotes around texts that would be something else without them."""
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{hydra_text(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(hydra_text, value))}]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if not isinstance(value, str | PathLike):
        return str(value)
    text = str(value)
    is_bare = BARE.fullmatch(text) and text.lower() not in NO_TEXTS
    return text if is_bare else in_hydra_quotes(text)


def in_hydra_quotes(text: str) -> str:
    """The text in quotes of Hydra's grammar, in which a backslash before a quote is special, without interpolations."""
    text = re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", text)
    return "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text) + "'"


def different_names(one: Iterable[str], other: Iterable[str]) -> str:
    """How a list of names differs from another: the names that it has in addition and those that it lacks; if there are
    none, the first position at which the order differs.
    """
    one, other = list(one), list(other)
    known, found = set(other), set(one)
    more, less = [name for name in one if name not in known], [name for name in other if name not in found]
    if not more and not less:
        i = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        return f"another order, from number {i + 1} on: {list_names(one[i:], 3)} instead of {list_names(other[i:], 3)}"
    return f"more: {list_names(more, 3)}; fewer: {list_names(less, 3)}"


def check_several(name: str, values: object) -> None:
    """Checks that an argument is a sequence of paths, names or texts, and not a single str, which would be read as a
    sequence of letters.

    Raises:
        TypeError: names the argument and the fix.
    """
    if isinstance(values, str | bytes | PathLike):
        raise TypeError(f"{name} is one {type(values).__name__}, but takes several; pass a list: "
                        f"{name}=[{quoted(values)}]")


def check_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Raises ValueError if the value of an argument is not one of its choices."""
    if value not in choices:
        shown = (str(each).lower() if isinstance(each, bool) else str(each) for each in choices)
        raise ValueError(f"{name}={value!r} is not one of {', '.join(shown)}")


def near_multiples(value: int, unit: int, most: float = math.inf) -> str:
    """`96, 112`: the nearest multiples of a unit, above 0 and at most `most`, for a message about a value that is none.
    """
    unit = max(unit, 1)
    near = dict.fromkeys((value // unit * unit, -(-value // unit) * unit))
    return ", ".join(str(each) for each in near if 0 < each <= most)


def on_one_line(error: BaseException | str, limit: int | None = None) -> str:
    """The whole text of an error on one line, cut to `limit` characters."""
    return " ".join(str(error).split())[:limit]


def first_line(error: BaseException | str, limit: int = 300) -> str:
    """The first line of an error's text, without the advice that torch and others add below it; the type of an error
    without a text.
    """
    return (str(error).strip().splitlines() or ["" if isinstance(error, str) else type(error).__name__])[0][:limit]


def one_line(error: BaseException, limit: int = 300) -> str:
    """An error's whole text on one line, with its type if the text is too short to explain it (a KeyError)."""
    text = on_one_line(error)
    return (text if len(text) > 20 else f"{type(error).__name__}: {text}")[:limit]


def with_cause(error: BaseException, limit: int = 300) -> str:
    """An error's text on one line, or its type if it has no text. The first line of the error that first caused it
    (`raise ... from`) follows in parentheses, unless the text contains it: libraries often report only that something
    failed.
    """
    text = (on_one_line(error) or type(error).__name__)[:limit]
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    reason = first_line(cause, limit)
    named = reason if len(reason) > 20 else f"{type(cause).__name__}: {reason}"
    return text if on_one_line(reason) in text else f"{text} ({named})"


def import_problem(error: ImportError, package: str) -> str:
    """Why an optional package cannot be used: it `is not installed`, or `cannot be imported` with the reason, such as a
    library that it lacks.
    """
    missing = error.name is not None and error.name.partition(".")[0] == package
    missing = missing and isinstance(error, ModuleNotFoundError)
    return "is not installed" if missing else f"cannot be imported ({with_cause(error)})"


def error_message(error: BaseException) -> str:
    """The one line that a command prints about an error; an unexpected one with the option for the traceback."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    text = on_one_line(error, 1000)
    if isinstance(error, ValueError | OSError | MemoryError | FloatingPointError) and text:
        return text
    return f"{type(error).__name__}: {text} (add --debug for the traceback)"


def nearest_names(name: object, choices: Iterable[object], n: int = 1, cutoff: float = 0.5) -> list[str]:
    """Up to `n` choices that are similar to `name`, the most similar first. If there are none, upper and lower case
    are not distinguished.

    Args:
        cutoff: minimum similarity of a choice, in [0, 1]; 1 selects only an equal one.
    """
    known = list(map(str, choices))
    lower = {each.lower(): each for each in reversed(known)}
    if str(name) not in known and (same := lower.get(str(name).lower())):
        return [same]
    near = difflib.get_close_matches(str(name), known, n=n, cutoff=cutoff)
    return near or [lower[each] for each in difflib.get_close_matches(str(name).lower(), lower, n=n, cutoff=cutoff)]


def did_you_mean(names: Iterable[str]) -> str:
    """`; did you mean X or Y?` to append to a message; empty for no names."""
    text = " or ".join(names)
    return f"; did you mean {text}?" if text else ""


def mega(value: float) -> str:
    """Millions: three digits below 1,000 million, whole ones above: `0.0123`, `3.5`, `17,582`"""
    return f"{value / 1e6:,.3g}" if value < 999.5e6 else f"{value / 1e6:,.0f}"


def duration(seconds: float) -> str:
    """`1.2 s`, `42 s`, `3 min 05 s`, `2 h 07 min`"""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
