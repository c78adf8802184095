"""Settings of generation."""

import math
import operator
import warnings
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, fields, replace
from numbers import Real
from typing import Any

from vit.generation.length_penalty import FORMS, penalized
from vit.messages import ArgumentError

WHOLE = ("beam", "max_len", "min_len", "n_best", "tta", "no_repeat_ngram", "top_k", "seed", "bos", "eos", "pad")
NUMBERS = ("length_penalty", "ctc", "temperature", "top_p")


@dataclass(frozen=True)
class Generation:
    """Settings for `generate`.

    The score of a text is the sum of the log-probabilities of its generated tokens, divided by their number to the
    power of `length_penalty`: 0 favours short texts, 1 is the mean, larger values favour long texts. eos counts.

    Args:
        length_penalty_form: "power" of the number of tokens n, or that of (5 + n) / 6, "gnmt", as in GNMT (arXiv
            1609.08144, eq. 14), tensor2tensor and "Attention Is All You Need", which has beam=4 and length_penalty=0.6.
        beam: number of beams; 1 for greedy search.
        max_len: maximum number of tokens to generate, eos included; also limited by the positions of the model.
        min_len: minimum number of tokens before eos.
        n_best: number of texts per row, best first: at most `beam` for beam search, any number for sampling.
        ctc: weight of the CTC score with which the texts of the search are rescored, together with the greedy text of
            the CTC output, for models of images that were trained with a CTC loss (arXiv 1609.06773).
        tta: test-time augmentation of text images: number of slightly sheared and scaled versions of an image, itself
            included, whose predictions are averaged as an ensemble; 1 for none.
        no_repeat_ngram: size of n-grams that may not occur twice; 0 for no limit.
        sample: sample tokens instead of searching for the most probable text.
        temperature: divides the logits in sampling.
        top_k: sample from this number of most probable tokens; 0 for all.
        top_p: sample from the most probable tokens with this total probability (arXiv 1904.09751).
        prefix: ids that every text starts with, after bos.
        seed: random numbers are a function of the seed, the number of the row and the step.
        views: former name of `tta`.

    Raises:
        ValueError: a value is out of range, or values do not fit together.
    """

    beam: int = 1
    max_len: int = 256
    min_len: int = 0
    length_penalty: float = 1.0
    length_penalty_form: str = "power"
    n_best: int = 1
    ctc: float = 0.0
    tta: int = 1
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
    views: InitVar[int | None] = None

    def __post_init__(self, views: int | None) -> None:
        if views is not None:
            warnings.warn(f"views={views!r} is the former name of tta={views!r}", stacklevel=3)
            object.__setattr__(self, "tta", views)
        for key in WHOLE:
            object.__setattr__(self, key, as_int(key, getattr(self, key)))
        for key in NUMBERS:
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
                raise ArgumentError(f"{key} is {value!r}, but must be a finite number")
        if self.length_penalty_form not in FORMS:
            raise ArgumentError(f"length_penalty_form is {self.length_penalty_form!r}, but must be one of "
                                f"{', '.join(FORMS)}")
        if isinstance(self.sample, str) or self.sample not in (False, True):
            raise ArgumentError(f"sample is {self.sample!r}, but must be true or false")
        self.check_prefix()
        for key in ("beam", "max_len", "n_best", "tta", "temperature", "top_p"):
            if (value := getattr(self, key)) <= 0:
                raise ArgumentError(f"{key} is {value}, but must be above 0")
        for key in ("min_len", "no_repeat_ngram", "top_k"):
            if (value := getattr(self, key)) < 0:
                raise ArgumentError(f"{key} is {value}, but must not be negative")
        if self.top_p > 1:
            raise ArgumentError(f"top_p is {self.top_p}, but must lie in (0, 1]")
        if not 0 <= self.ctc <= 1:
            raise ArgumentError(f"ctc is {self.ctc}, but must lie in [0, 1]")
        if self.ctc and self.sample:
            raise ArgumentError(f"ctc={self.ctc} selects the best text of a search, but sample=True draws tokens; use "
                                "ctc=0")
        if self.min_len > self.max_len:
            raise ArgumentError(f"min_len is {self.min_len}, more than max_len {self.max_len}; lower it or raise "
                                "max_len")
        if self.sample and self.beam > 1:
            raise ArgumentError(f"sample=True needs beam=1, not beam={self.beam}; n_best={self.beam} gives several")
        if not self.sample and self.n_best > self.beam:
            raise ArgumentError(f"n_best is {self.n_best}, but must be at most beam {self.beam}; raise beam")
        for key, default in (("temperature", 1.0), ("top_k", 0), ("top_p", 1.0)):
            if not self.sample and (value := getattr(self, key)) != default:
                raise ArgumentError(f"{key}={value} is for sampling; add sample=True, or leave {key}={value} out")

    def check_prefix(self) -> None:
        """Convert the prefix to ints.

        Raises:
            ValueError: it contains bos, eos or pad, or something that is not an id.
        """
        object.__setattr__(self, "prefix", tuple(as_int("prefix", token) for token in self.prefix))
        for name in ("bos", "eos", "pad"):
            if (token := getattr(self, name)) in self.prefix:
                raise ArgumentError(f"prefix {self.prefix} has {token}, which is {name}; pass the ids of the text only")

    def check_vocabulary(self, size: int) -> None:
        """Check the ids against a vocabulary of `size` ids.

        Raises:
            ValueError: an id is out of range.
        """
        for key, tokens in (("prefix", self.prefix), ("bos", [self.bos]), ("eos", [self.eos]), ("pad", [self.pad])):
            if wrong := [token for token in tokens if not 0 <= token < size]:
                raise ArgumentError(f"{key} has the id {wrong[0]}, but the model's ids are 0..{size - 1}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Generation":
        """The settings that a bundle has saved, also under the names of earlier versions.

        Raises:
            ValueError: a value is out of range, or a name is unknown.
        """
        values = {"tta" if key == "views" else key: value for key, value in values.items()}
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(values) - set(known)):
            raise ValueError(f"text generation has no setting {unknown[0]!r}; it has {', '.join(known)}")
        try:
            return cls(**values)
        except ArgumentError as error:  # the fault is in the bundle, not in an argument of the caller
            raise ValueError(str(error)) from None

    @property
    def greedy(self) -> "Generation":
        """The same settings with greedy search, one text and no test-time augmentation; `ctc` is unchanged."""
        simple = {"beam": 1, "n_best": 1, "tta": 1}
        return replace(self, **simple, sample=False, temperature=1.0, top_k=0, top_p=1.0)

    def score(self, total: float, length: int) -> float:
        """The score of `length` generated tokens whose log-probabilities sum to `total`."""
        return penalized(total, length, self.length_penalty, self.length_penalty_form)


def as_int(key: str, value: object) -> int:
    """An integer of any type as an int.

    Raises:
        ValueError: `value` is not an integer.
    """
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise ArgumentError(f"{key} is {value!r}, but must be a whole number")
