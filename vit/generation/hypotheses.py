"""Generated texts with their scores, and the best ones of a search."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """A generated text: `ids` without bos and eos but with the prefix; `ended` is False if it was cut at max_len."""

    ids: tuple[int, ...]
    score: float
    ended: bool = True


class NBest:
    """The best `count` hypotheses of one row; of several with equal scores the earlier ones come first."""

    def __init__(self, count: int) -> None:
        self.count, self.found = count, []

    def add(self, hypothesis: Hypothesis) -> None:
        """Insert a hypothesis if it is among the best."""
        self.found.append(hypothesis)
        self.found = sorted(self.found, key=lambda each: -each.score)[: self.count]

    def beats(self, score: float) -> bool:
        """Whether a text of this score can no longer enter the best ones."""
        return len(self.found) == self.count and self.found[-1].score >= score
