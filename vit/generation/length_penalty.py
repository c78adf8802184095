"""The length penalty: the score of a text is its log-probability divided by a power of its length (arXiv 1609.08144,
section 7, has a similar divisor). Without it each further token would lower the score.
"""


def penalized(total: float, length: int, penalty: float) -> float:
    """The score of `length` generated tokens whose log-probabilities sum to `total`."""
    return total / length**penalty


def highest_score(total: float, length: int, penalty: float, shortest: int, longest: int) -> float:
    """An upper bound on the final score of a text that has not ended after `length` tokens.

    Further tokens can only lower the sum; the divisor is largest at the maximum length, or with a negative penalty at
    the minimum length.

    Args:
        shortest, longest: minimum number of tokens before eos, and maximum number of tokens.
    """
    return penalized(total, longest if penalty >= 0 else min(max(length, shortest) + 1, longest), penalty)
