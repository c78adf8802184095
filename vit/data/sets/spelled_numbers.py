"""Numbers spelled out in English, and a generated translation data set of them, which needs no download."""

import numpy as np

from vit.counters import permutation
from vit.data.errors import DataError
from vit.data.pairs.source import PairSource, PairSplit
from vit.data.sample_names import PackedStrings

_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_GROUPS = ("", "thousand", "million", "billion")
LIMIT = 10 ** (3 * len(_GROUPS))
MAX_LIMIT = 10_000_000  # generation takes memory for all numbers below the limit


def spell_out(number: int) -> str:
    """1234 → "one thousand two hundred thirty-four".

    Raises:
        ValueError: the number is outside 0..LIMIT - 1.
    """
    if not 0 <= number < LIMIT:
        raise ValueError(f"{number} is outside 0..{LIMIT - 1}, the numbers that can be spelled out")
    if number == 0:
        return _SMALL[0]
    words = []
    for power in reversed(range(len(_GROUPS))):
        group = number // 1000**power % 1000
        if group:
            words += [_below_thousand(group), _GROUPS[power]]
    return " ".join(word for word in words if word)


def spelled_numbers(
    limit: int = 1_000_000, train: int = 20_000, val: int = 1_000, test: int = 2_000, split_seed: int = 0
) -> PairSource:
    """Numbers below `limit` in digits, and the same numbers spelled out; no number is in two splits.

    Numbers of 1, 2, 3, ... digits are equally frequent as far as there are enough of them, so that short numbers occur.

    Args:
        train, val, test: number of pairs of the split.

    Raises:
        ValueError: `limit` is out of range.
        DataError: `limit` is too small for the sizes of the splits.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise ValueError(f"limit={limit} must be in 1..{MAX_LIMIT}")
    counts = {"train": train, "val": val, "test": test}
    total = sum(counts.values())
    if min(counts.values()) < 0 or total > limit:
        raise DataError(f"train {train}, val {val} and test {test} add up to {total} numbers, but limit={limit} allows "
                        f"only {limit}; raise it or lower the sizes")
    chosen = _draw_numbers(limit, total, split_seed)
    ends = np.cumsum(list(counts.values()))
    parts = dict(zip(counts, np.split(chosen, ends[:-1]), strict=True))
    return PairSource("spelled_numbers", {key: _spelled_pairs(part) for key, part in parts.items() if len(part)})


def _below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    words = [_SMALL[hundreds], "hundred"] if hundreds else []
    if rest >= 20:
        tens, ones = divmod(rest, 10)
        words.append(_TENS[tens - 2] + (f"-{_SMALL[ones]}" if ones else ""))
    elif rest:
        words.append(_SMALL[rest])
    return " ".join(words)


def _draw_numbers(limit: int, total: int, seed: int) -> np.ndarray:
    """(total,) different numbers below `limit` in random order, with an equal share for each length in digits, or all
    numbers of this length if there are fewer.
    """
    chosen, first, left = [], 0, total
    digits = len(str(limit - 1))
    for length in range(1, digits + 1):
        end = min(10**length, limit)
        quota = min(end - first, left // (digits + 1 - length))
        chosen.append(first + permutation(seed, length, end - first).numpy()[:quota])
        first, left = end, left - quota
    if left:  # too few of the longest numbers: fill up with unused shorter ones
        others = np.setdiff1d(np.arange(limit), np.concatenate(chosen))
        chosen.append(others[permutation(seed, 0, len(others)).numpy()[:left]])
    return np.concatenate(chosen)[permutation(seed, digits + 1, total).numpy()]


def _spelled_pairs(numbers: np.ndarray) -> PairSplit:
    digits = PackedStrings([str(n) for n in numbers.tolist()])
    return PairSplit(PackedStrings([spell_out(n) for n in numbers.tolist()]), digits, digits)
