"""The length penalty: the score of a text is its log-probability divided by a power of its length, or by the length
penalty of GNMT (arXiv 1609.08144, eq. 14). Without a divisor each further token would lower the score.
"""

FORMS = ("power", "gnmt")


def length_divisor(length: int, penalty: float, form: str = "power") -> float:
    """length^penalty, or with "gnmt" ((5 + length) / 6)^penalty, which depends less on the length of short texts."""
    return ((5 + length) / 6 if form == "gnmt" else length) ** penalty


def penalized(total: float, length: int, penalty: float, form: str = "power") -> float:
    """The score of `length` generated tokens whose log-probabilities sum to `total`."""
    return total / length_divisor(length, penalty, form)


def highest_score(
    total: float, length: int, penalty: float, shortest: int, longest: int, form: str = "power"
) -> float:
    """An upper bound on the final score of a text that has not ended after `length` tokens.

    Further tokens can only lower the sum; the divisor is largest at the maximum length, or with a negative penalty at
    the minimum length.

    Args:
        shortest, longest: minimum number of tokens before eos, and maximum number of tokens.
    """
    return penalized(total, longest if penalty >= 0 else min(max(length, shortest) + 1, longest), penalty, form)
