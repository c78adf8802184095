"""The calibration in a bundle: measurements on validation samples that calibrated probabilities, prediction sets and
unknown scores need.
"""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from vit.messages import number_of

STORED = 1000  # maximum number of order statistics that are stored
DIGITS = 1e6  # stored scores are rounded up to multiples of 1/DIGITS
METHODS = ("aps", "raps")
MAX_FEATURES = 1 << 20  # numbers of class means in config.json
NEEDED = {"samples", "temperature", "loss", "ece", "sets", "unknown", "selective_risks"}


@dataclass(frozen=True)
class Quantiles:
    """Upper quantiles of the scores of `count` exchangeable samples, for split conformal prediction.

    With up to `STORED` samples all scores are stored. With more samples a fixed subset of the order statistics is
    stored, and quantiles are rounded up to the next stored one, so that the coverage remains valid.
    """

    count: int
    values: tuple[float, ...]

    @classmethod
    def of(cls, scores: np.ndarray) -> "Quantiles":
        """The quantiles of scores (N,), rounded up."""
        ordered = np.sort(np.asarray(scores, np.float64))
        chosen = ordered[stored_ranks(len(ordered)) - 1]
        return cls(len(ordered), tuple((np.ceil(chosen * DIGITS) / DIGITS).tolist()))

    def at(self, level: float) -> float:
        """The score that a new sample does not exceed with probability `level` or more, averaged over all draws of the
        stored and the new samples: the order statistic of rank ceil((n + 1) level).

        Raises:
            ValueError: there are too few samples for this level, or it is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise ValueError(f"a level of {level:g} is not between 0 and 1")
        rank = required_rank(self.count, level)
        if rank > self.count:
            most = math.floor(1e4 * self.count / (self.count + 1)) / 1e4
            raise ValueError(f"a level of {level:g} needs {required_samples(level)} validation samples or more, and "
                             f"the model was calibrated on {self.count}: choose {most:g} or less")
        return self.values[int(np.searchsorted(stored_ranks(self.count), rank))]

    def p_values(self, scores: np.ndarray) -> np.ndarray:
        """scores (B,) -> conformal p-values (B,) in (0,1], (1 + number of samples with a score >= it) / (n + 1)"""
        ranks = np.concatenate([[0], stored_ranks(self.count)])  # `below` is a lower bound if not all scores are stored
        below = ranks[np.searchsorted(np.array(self.values), scores, side="left")]
        return (1 + self.count - below) / (self.count + 1)


def stored_ranks(count: int) -> np.ndarray:
    """The ranks, from 1, of the order statistics of `count` scores that are stored; the highest is among them."""
    stored = min(count, STORED)
    return -(-np.arange(1, stored + 1) * count // stored) if stored else np.zeros(0, np.int64)


def required_rank(count: int, level: float) -> int:
    return math.ceil((count + 1) * level - 1e-9)  # 0.9 * 10 is 9


def required_samples(level: float) -> int:
    """The smallest n with ceil((n + 1) level) <= n."""
    return math.ceil(level / (1 - level) * (1 - 1e-9))  # 0.9999 / (1 - 0.9999) is above 9999


@dataclass(frozen=True)
class SelectiveRisk:
    """How many validation samples had this probability or a higher one, and how many of them were predicted wrongly
    (selective classification, arXiv 1705.08500).
    """

    probability: float
    samples: int
    wrong: int


@dataclass(frozen=True)
class UnknownScore:
    """A score that is high for samples unlike those of training, and its quantiles on validation samples.

    Args:
        name: key of `vit.inference.unknown.SCORES`.
        centre: mean feature (D,); empty for a score without features.
        means: mean feature of each class, relative to the centre (classes,D).
    """

    name: str
    quantiles: Quantiles
    centre: tuple[float, ...] = ()
    means: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Calibration:
    """Measurements on validation samples that calibrate a classifier.

    Args:
        samples: number of validation samples.
        temperature: the divisor of the logits.
        loss, ece: log loss and expected calibration error on these samples, without and with the temperature.
        sets: quantiles of the scores of `METHODS`; empty if only the temperature was fitted.
        unknown: None if only the temperature was fitted.
        selective_risks: the errors above several probabilities.
        absent: classes without a validation sample.
    """

    samples: int
    temperature: float
    loss: tuple[float, float]
    ece: tuple[float, float]
    sets: Mapping[str, Quantiles] = field(default_factory=dict)
    unknown: UnknownScore | None = None
    selective_risks: tuple[SelectiveRisk, ...] = ()
    absent: tuple[str, ...] = ()

    @property
    def temperature_text(self) -> str:
        return f"temperature {self.temperature:.4g}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def calibration_from_dict(values: Mapping[str, Any] | None, classes: Sequence[str]) -> Calibration | None:
    """The inverse of `Calibration.to_dict`.

    Raises:
        ValueError: a value is missing, of another type or out of range.
    """
    if values is None:
        return None
    values = mapping(values)
    if "answered" in values:  # the key of older versions
        values = {"selective_risks": values["answered"], **values}
    samples, loss, ece = read_errors(values, NEEDED)
    temperature = read_temperature(values["temperature"])
    risks = tuple(read_risk(each) for each in sequence(values["selective_risks"], "selective_risks"))
    sets = {name: read_quantiles(each, f"sets.{name}") for name, each in mapping(values["sets"], "sets").items()}
    unknown = None if values["unknown"] is None else read_unknown(values["unknown"], classes)
    return Calibration(samples, temperature, loss, ece, sets, unknown, risks, read_absent(values))


def calibrated_probabilities(logits: Tensor, record: Calibration | None) -> Tensor:
    """logits (B,classes) -> softmax(logits / temperature) (B,classes); without a record the softmax alone"""
    return (logits if record is None else logits / record.temperature).softmax(-1)


def read_errors(values: Mapping[str, Any], needed: Set[str]) -> tuple[int, tuple[float, float], tuple[float, float]]:
    """The number of samples, and their log loss and expected calibration error without and with the temperature.

    Raises:
        ValueError: a key of `needed` is missing, a value has another type, there is no sample, or log loss or
            calibration error are not two numbers.
    """
    values = mapping(values, needed=needed)
    if (samples := int(number(values["samples"], "samples"))) < 1:
        raise ValueError(f"calibration.samples is {samples}; it must be above 0")
    loss, ece = (numbers(values[key], key) for key in ("loss", "ece"))
    if len(loss) != 2 or len(ece) != 2:
        raise ValueError("calibration.loss and calibration.ece must have two numbers each")
    return samples, loss, ece


def read_temperature(value: Any) -> float:
    """A temperature, the divisor of the logits.

    Raises:
        ValueError: it is not above 0.
    """
    if (temperature := number(value, "temperature")) <= 0:
        raise ValueError(f"calibration.temperature is {temperature}; it must be above 0")
    return temperature


def read_quantiles(values: Mapping[str, Any], key: str) -> Quantiles:
    """The inverse of `asdict` for `Quantiles`.

    Raises:
        ValueError: the number of values does not correspond to `count`, or they are not in ascending order.
    """
    values = mapping(values, key, {"count", "values"})
    count, found = int(number(values["count"], f"{key}.count")), numbers(values["values"], key)
    if count < 1 or len(found) != min(count, STORED) or any(a > b for a, b in zip(found, found[1:], strict=False)):
        raise ValueError(f"calibration.{key} has {number_of(len(found), 'value')} for {number_of(count, 'sample')}; "
                         f"they must be {min(max(count, 1), STORED)} in ascending order")
    return Quantiles(count, found)


def read_unknown(values: Mapping[str, Any], classes: Sequence[str]) -> UnknownScore:
    """The inverse of `asdict` for `UnknownScore`.

    Raises:
        ValueError: there is not one mean per class, or the means differ in width from the centre.
    """
    values = mapping(values, "unknown", {"name", "quantiles", "centre", "means"})
    centre = numbers(values["centre"], "unknown.centre")
    means = tuple(numbers(row, "unknown.means") for row in sequence(values["means"], "unknown.means"))
    if means and len(means) != len(classes) or any(len(row) != len(centre) for row in means):
        raise ValueError(f"calibration.unknown.means must have a row of {len(centre)} numbers for each of the "
                         f"{number_of(len(classes), 'class')}")
    return UnknownScore(str(values["name"]), read_quantiles(values["quantiles"], "unknown.quantiles"), centre, means)


def read_risk(values: Any) -> SelectiveRisk:
    """The inverse of `asdict` for `SelectiveRisk`.

    Raises:
        ValueError: a value is missing or not a number.
    """
    key = "selective_risks"
    values = mapping(values, key, {"probability", "samples", "wrong"})
    probability, samples, wrong = (number(values[name], key) for name in ("probability", "samples", "wrong"))
    return SelectiveRisk(probability, int(samples), int(wrong))


def read_absent(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes without a validation sample, none in older files.

    Raises:
        ValueError: they are not a list.
    """
    return tuple(map(str, sequence(values.get("absent", ()), "absent")))


def mapping(value: Any, key: str = "", needed: Set[str] = frozenset()) -> Mapping[str, Any]:
    """The value of `key` of a calibration, by default the calibration itself.

    Raises:
        ValueError: it is not a mapping with the keys `needed`.
    """
    name = f"calibration.{key}".removesuffix(".")
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is {value!r}; it must be a mapping")
    if missing := needed - set(value):
        raise ValueError(f"{name}.{sorted(missing)[0]} is missing")
    return value


def sequence(value: Any, key: str) -> Sequence[Any]:
    """The value of `key` of a calibration.

    Raises:
        ValueError: it is not a list.
    """
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"calibration.{key} is {value!r}; it must be a list")
    return value


def numbers(value: Any, key: str) -> tuple[float, ...]:
    """The finite numbers of a list; `key` is for the message.

    Raises:
        ValueError: the value is not a list of finite numbers.
    """
    return tuple(number(each, key) for each in sequence(value, key))


def number(value: Any, key: str) -> float:
    """The value as a float; `key` is for the message.

    Raises:
        ValueError: the value is not a finite number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"calibration.{key} has {value!r}, which is not a finite number")
    return float(value)
