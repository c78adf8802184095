"""Numbers spelled out in English, and a generated translation data set made of them, which needs no download."""

import numpy as np

from vit.counters import permutation
from vit.data.errors import DataError
from vit.data.pairs.source import PairSource, PairSplit
from vit.data.sample_names import Names

_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_GROUPS = ("", "thousand", "million", "billion")
LIMIT = 10 ** (3 * len(_GROUPS))
MOST = 10_000_000  # of the generated set, which holds all numbers in memory for a moment


def in_words(number: int) -> str:
    """1234 → "one thousand two hundred thirty-four"."""
    if not 0 <= number < LIMIT:
        raise ValueError(f"{number} is outside 0..{LIMIT - 1}, the numbers there are words for")
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
    """Numbers below `limit` in digits → spelled out; no number is in two splits.

    All digit counts are equally frequent as far as there are enough such numbers, so that short ones occur.
    """
    if not 1 <= limit <= MOST:
        raise ValueError(f"limit={limit} must be 1..{MOST}")
    counts = {"train": train, "val": val, "test": test}
    total = sum(counts.values())
    if min(counts.values()) < 0 or total > limit:
        raise DataError(f"train {train}, val {val} and test {test} make {total} numbers, but {limit} are below limit")
    chosen = _drawn(limit, total, split_seed)
    ends = np.cumsum(list(counts.values()))
    parts = dict(zip(counts, np.split(chosen, ends[:-1]), strict=True))
    return PairSource("spelled_numbers", {key: _spelled(part) for key, part in parts.items() if len(part)})


def _below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    words = [_SMALL[hundreds], "hundred"] if hundreds else []
    if rest >= 20:
        tens, ones = divmod(rest, 10)
        words.append(_TENS[tens - 2] + (f"-{_SMALL[ones]}" if ones else ""))
    elif rest:
        words.append(_SMALL[rest])
    return " ".join(words)


def _drawn(limit: int, total: int, seed: int) -> np.ndarray:
    """`total` different numbers below limit in random order; each count of digits gets an even share, or all it has."""
    chosen, first, left = [], 0, total
    digits = len(str(limit - 1))
    for length in range(1, digits + 1):
        end = min(10**length, limit)
        quota = min(end - first, left // (digits + 1 - length))
        chosen.append(first + permutation(seed, length, end - first).numpy()[:quota])
        first, left = end, left - quota
    if left:  # the longest numbers were too few for what was left over: the rest of all others
        others = np.setdiff1d(np.arange(limit), np.concatenate(chosen))
        chosen.append(others[permutation(seed, 0, len(others)).numpy()[:left]])
    return np.concatenate(chosen)[permutation(seed, digits + 1, total).numpy()]


def _spelled(numbers: np.ndarray) -> PairSplit:
    digits = Names([str(n) for n in numbers.tolist()])
    return PairSplit(Names([in_words(n) for n in numbers.tolist()]), digits, digits)
