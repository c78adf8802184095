"""How a text is to be written, and what comes of it."""

import math
import operator
from dataclasses import dataclass, replace
from numbers import Real

WHOLE = ("beam", "max_len", "min_len", "n_best", "views", "no_repeat_ngram", "top_k", "seed", "bos", "eos", "pad")
NUMBERS = ("length_penalty", "ctc", "temperature", "top_p")


@dataclass(frozen=True)
class Generation:
    """Settings for `generate`.

    A score is the sum of the log-probabilities of the chosen tokens, over their number to the power of
    `length_penalty`: 0 prefers short texts, 1 is the mean, and more prefers long ones. Forced tokens do not count.

    Args:
        beam: lines that are followed at a time; 1 is greedy.
        max_len: most tokens to choose, the end among them; fewer where the model has fewer positions.
        min_len: fewest tokens to choose before the end.
        n_best: how many texts per row, best first: at most `beam` of a search, any number of samples.
        ctc: of a model that reads images and was trained to spell along their columns as well, the share that this has
            in the score, by which the texts of the beam and the one that the columns spell most plainly are put in
            order (arXiv 1609.06773).
        views: of images of writing: so many views of each, sheared and stretched by a little, are read as if by so many
            models; 1 for the image alone.
        no_repeat_ngram: no run of so many tokens comes twice; 0 allows all.
        sample: draw each token instead of looking for the likeliest text.
        temperature: below 1 draws likely tokens more often.
        top_k: draw among so many likeliest tokens; 0 for all.
        top_p: draw among the likeliest tokens that together are this likely (arXiv 1904.09751).
        prefix: ids that every text begins with, after bos.
        seed: all draws follow from it, from the row's number and from the step.
    """

    beam: int = 1
    max_len: int = 256
    min_len: int = 0
    length_penalty: float = 1.0
    n_best: int = 1
    ctc: float = 0.0
    views: int = 1
    no_repeat_ngram: int = 0
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    prefix: tuple[int, ...] = ()
    seed: int = 0
    bos: int = 1
    eos: int = 2
    pad: int = 0

    def __post_init__(self) -> None:
        for key in WHOLE:
            object.__setattr__(self, key, whole(key, getattr(self, key)))
        for key in NUMBERS:
            if not isinstance(value := getattr(self, key), Real) or not math.isfinite(value):
                raise ValueError(f"{key} is {value!r}, but must be a number, and a finite one")
        self.check_prefix()
        for key in ("beam", "max_len", "n_best", "views", "temperature", "top_p"):
            if (value := getattr(self, key)) <= 0:
                raise ValueError(f"{key} is {value}, but must be above 0")
        for key in ("min_len", "no_repeat_ngram", "top_k"):
            if (value := getattr(self, key)) < 0:
                raise ValueError(f"{key} is {value}, but must not be negative")
        if self.top_p > 1:
            raise ValueError(f"top_p is {self.top_p}, but must lie in (0, 1]")
        if not 0 <= self.ctc <= 1:
            raise ValueError(f"ctc is {self.ctc}, but must lie in [0, 1]")
        if self.ctc and self.beam == 1:
            raise ValueError(f"ctc={self.ctc} puts the texts of a beam in order, but beam is 1; take beam=5 or ctc=0")
        if self.min_len > self.max_len:
            raise ValueError(f"min_len is {self.min_len}, more than max_len {self.max_len}; lower it or raise max_len")
        if self.sample and self.beam > 1:
            raise ValueError(f"sample=true follows no beam, but beam is {self.beam}; take beam=1, and n_best for more")
        if not self.sample and self.n_best > self.beam:
            raise ValueError(f"n_best is {self.n_best}, but a beam of {self.beam} finds {self.beam}; raise beam")
        if not self.sample and (self.temperature, self.top_k, self.top_p) != (1.0, 0, 1.0):
            raise ValueError("temperature, top_k and top_p are for sampling; set sample=true as well")

    def check_prefix(self) -> None:
        """Ids as plain numbers; the special ones stand where generation puts them."""
        object.__setattr__(self, "prefix", tuple(whole("prefix", token) for token in self.prefix))
        for name in ("bos", "eos", "pad"):
            if (token := getattr(self, name)) in self.prefix:
                raise ValueError(f"prefix {self.prefix} has {token}, which is {name}; give the ids of a text alone")

    def check_vocabulary(self, size: int) -> None:
        """Raises ValueError where an id is none of the `size` that a model knows."""
        for key, tokens in (("prefix", self.prefix), ("bos", [self.bos]), ("eos", [self.eos]), ("pad", [self.pad])):
            if wrong := [token for token in tokens if not 0 <= token < size]:
                raise ValueError(f"{key} has the id {wrong[0]}, but the model's ids are 0..{size - 1}")

    @property
    def greedy(self) -> "Generation":
        """The quickest: the likeliest token each time, of one view, and no other opinion."""
        simple = {"beam": 1, "n_best": 1, "ctc": 0.0, "views": 1}
        return replace(self, **simple, sample=False, temperature=1.0, top_k=0, top_p=1.0)

    def score(self, total: float, length: int) -> float:
        """Of a text whose `length` chosen tokens have `total` as the sum of their log-probabilities."""
        return total / length**self.length_penalty

    def bound(self, total: float, length: int, longest: int) -> float:
        """The best score that a text can still reach which has not ended after `length` tokens.

        More tokens only lower the sum, so it stays where it is at best; what divides it is largest at the greatest
        length, or with a negative penalty at the smallest.
        """
        return self.score(total, longest if self.length_penalty >= 0 else min(max(length, self.min_len) + 1, longest))


def whole(key: str, value: object) -> int:
    """A whole number of any type as an int."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise ValueError(f"{key} is {value!r}, but must be a whole number")


@dataclass(frozen=True)
class Hypothesis:
    """A text: `ids` without bos and eos but with what was forced; `ended` is False where it was cut at max_len."""

    ids: tuple[int, ...]
    score: float
    ended: bool = True


class Best:
    """The best `count` hypotheses of one row; of equal ones the earlier stays in front."""

    def __init__(self, count: int) -> None:
        self.count, self.found = count, []

    def add(self, hypothesis: Hypothesis) -> None:
        self.found.append(hypothesis)
        self.found = sorted(self.found, key=lambda each: -each.score)[: self.count]

    def beats(self, score: float) -> bool:
        """Whether a text of this score could not come in any more."""
        return len(self.found) == self.count and self.found[-1].score >= score
