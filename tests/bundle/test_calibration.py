"""The calibration of a bundle: quantiles by hand, and stored values that are invalid."""

import json
import math

import numpy as np
import pytest
import torch

from vit.bundle.calibration import (
    STORED,
    Calibration,
    Quantiles,
    SelectiveRisk,
    UnknownScore,
    calibrated_probabilities,
    calibration_from_dict,
    required_samples,
    stored_ranks,
)
from vit.bundle.label_calibration import (
    LabelCalibration,
    calibrated_thresholds,
    label_calibration_from_dict,
    label_probabilities,
    raw_thresholds,
)
from vit.bundle.record import preprocessing_from_dict
from vit.data import tokenizer_from_dict

CLASSES = ["cat", "dog"]
RECORD = Calibration(
    4, 2.0, (0.5, 0.25), (0.125, 0.0625), {"aps": Quantiles(2, (0.25, 0.75))},
    UnknownScore("energy", Quantiles(1, (0.5,)), (1.0, 2.0, 3.0), ((0.0, 1.0, 0.0), (1.0, 0.0, 0.0))),
    (SelectiveRisk(0.5, 3, 1),), ("dog",))
LABELS = LabelCalibration(4, (2.0, 0.5), (0.5, 0.25), (0.125, 0.0625), ("dog",))


@pytest.mark.parametrize("count", [1, 9, 99, STORED, STORED + 1, 2 * STORED, 2750])
def test_quantiles_are_order_statistics(count: int) -> None:
    scores = np.random.default_rng(count).permutation(count) / 4096 + 1e-7  # distinct, 1/4096 and more apart
    ordered, found = np.sort(scores), Quantiles.of(scores)
    assert found.count == count and len(found.values) == min(count, STORED) and found.values[-1] >= ordered[-1]
    for level in (0.05, 0.5, 0.9, 0.99):
        rank = next(rank for rank in range(1, count + 2) if rank >= (count + 1) * level - 1e-9)
        if rank > count:
            with pytest.raises(ValueError, match=f"needs {required_samples(level)} validation samples or more"):
                found.at(level)
        elif count <= STORED:
            assert found.at(level) == pytest.approx(ordered[rank - 1], abs=1e-6)
        else:  # the next one that is stored
            next_rank = min(count, rank + math.ceil(count / STORED))
            assert ordered[rank - 1] <= found.at(level) <= ordered[next_rank - 1] + 1e-6
    if count <= STORED:
        new = np.array([-1.0, ordered[0], ordered[count // 2], 2.0]) + 1e-5
        expected = [(1 + (scores >= value).sum()) / (count + 1) for value in new]
        assert found.p_values(new).tolist() == pytest.approx(expected)


def test_a_level_needs_enough_samples() -> None:
    assert [required_samples(level) for level in (0.5, 0.9, 0.95, 0.9999)] == [1, 9, 19, 9999]
    for level in (0.0, 1.0, -1.0):
        with pytest.raises(ValueError, match="is not between 0 and 1"):
            Quantiles(2, (0.25, 0.75)).at(level)
    with pytest.raises(ValueError, match="calibrated on 2: choose 0.6666 or less"):
        Quantiles(2, (0.25, 0.75)).at(0.7)
    assert Quantiles(2, (0.25, 0.75)).at(0.6666) == 0.75
    assert stored_ranks(0).tolist() == [] and stored_ranks(3).tolist() == [1, 2, 3]
    assert stored_ranks(2 * STORED).tolist() == list(range(2, 2 * STORED + 1, 2))


def test_a_record_survives_json() -> None:
    assert calibration_from_dict(json.loads(json.dumps(RECORD.to_dict())), CLASSES) == RECORD
    assert label_calibration_from_dict(json.loads(json.dumps(LABELS.to_dict())), CLASSES) == LABELS
    assert calibration_from_dict(None, CLASSES) is label_calibration_from_dict(None, CLASSES) is None
    older = {**RECORD.to_dict(), "answered": RECORD.to_dict()["selective_risks"]}
    older.pop("selective_risks")
    assert calibration_from_dict({**RECORD.to_dict(), "samples": 1}, CLASSES).samples == 1
    assert calibration_from_dict(older, CLASSES) == RECORD


@pytest.mark.parametrize(("changes", "message"), [
    ({"samples": 0}, "samples is 0"),
    ({"temperature": 0}, "temperature is 0.0; it must be above 0"),
    ({"temperature": math.inf}, "temperature has inf, which is not a finite number"),
    ({"temperature": True}, "temperature has True"),
    ({"loss": [0.5]}, "must have two numbers each"),
    ({"ece": [0.5, 0.25, 0.125]}, "must have two numbers each"),
    ({"sets": {"aps": {"count": 2, "values": [0.75, 0.25]}}}, "sets.aps has 2 values for 2 samples; they must be 2"),
    ({"sets": {"aps": {"count": 3, "values": [0.25, 0.75]}}}, "sets.aps has 2 values for 3 samples"),
    ({"sets": {"aps": {"count": 0, "values": []}}}, "sets.aps has 0 values for 0 samples"),
    ({"unknown": {**RECORD.to_dict()["unknown"], "means": [[0.0, 1.0, 0.0]]}}, "a row of 3 numbers for each of the 2"),
    ({"unknown": {**RECORD.to_dict()["unknown"], "centre": [0.0]}}, "a row of 1 numbers for each of the 2"),
    ({"unknown": {**RECORD.to_dict()["unknown"], "means": [[0.0, 1.0, 0.0], [1.0]]}}, "a row of 3 numbers for each"),
])
def test_invalid_values_are_errors(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        calibration_from_dict({**RECORD.to_dict(), **changes}, CLASSES)


@pytest.mark.parametrize(("changes", "message"), [
    ({"samples": None}, "calibration.samples has None, which is not a finite number"),
    ({"loss": 0.5}, "calibration.loss is 0.5; it must be a list"),
    ({"absent": 3}, "calibration.absent is 3; it must be a list"),
])
def test_values_of_other_types_are_errors_with_one_label_and_with_several(changes: dict, message: str) -> None:
    for read, record in ((calibration_from_dict, RECORD), (label_calibration_from_dict, LABELS)):
        with pytest.raises(ValueError, match=message):
            read({**record.to_dict(), **changes}, CLASSES)
        with pytest.raises(ValueError, match="^calibration is 3; it must be a mapping"):
            read(3, CLASSES)


@pytest.mark.parametrize(("changes", "message"), [
    ({"sets": []}, r"calibration.sets is \[\]; it must be a mapping"),
    ({"sets": {"aps": {"count": 1}}}, "calibration.sets.aps.values is missing"),
    ({"sets": {"aps": {"count": "1", "values": [0.5]}}}, "calibration.sets.aps.count has '1'"),
    ({"unknown": {"name": "energy"}}, "calibration.unknown.centre is missing"),
    ({"unknown": {**RECORD.to_dict()["unknown"], "means": 2}}, "calibration.unknown.means is 2; it must be a list"),
    ({"selective_risks": [{"probability": 0.5}]}, "calibration.selective_risks.samples is missing"),
    ({"selective_risks": {}}, r"calibration.selective_risks is \{\}; it must be a list"),
])
def test_parts_of_other_types_are_errors(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        calibration_from_dict({**RECORD.to_dict(), **changes}, CLASSES)


def test_temperatures_that_are_no_list_are_errors() -> None:
    with pytest.raises(ValueError, match="calibration.temperatures is 2.0; it must be a list"):
        label_calibration_from_dict({**LABELS.to_dict(), "temperatures": 2.0}, CLASSES)


@pytest.mark.parametrize("key", ["samples", "temperature", "loss", "ece", "sets", "unknown", "selective_risks"])
def test_a_missing_value_is_named(key: str) -> None:
    values = RECORD.to_dict()
    values.pop(key)
    with pytest.raises(ValueError, match=f"calibration.{key} is missing"):
        calibration_from_dict(values, CLASSES)


def test_temperatures_divide_logits_and_move_thresholds_with_them() -> None:
    logits = torch.tensor([[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25]])
    assert torch.equal(calibrated_probabilities(logits, RECORD), (logits / 2).softmax(-1))
    assert torch.equal(calibrated_probabilities(logits, None), logits.softmax(-1))
    expected = (logits / torch.tensor([2.0, 0.5])).sigmoid()
    assert torch.equal(label_probabilities(logits, LABELS), expected)
    assert torch.equal(label_probabilities(logits, None), logits.sigmoid())
    moved = calibrated_thresholds([0.6, 0.3], LABELS)
    assert torch.equal(expected > torch.tensor(moved), logits.sigmoid() > torch.tensor([0.6, 0.3]))
    assert moved[0] == pytest.approx(1 / (1 + (0.4 / 0.6) ** 0.5)) and moved[1] == pytest.approx(1 / (1 + (7 / 3) ** 2))
    assert raw_thresholds(moved, LABELS) == pytest.approx([0.6, 0.3], abs=1e-12)
    third = LabelCalibration(4, (0.3,), (0.5, 0.25), (0.125, 0.0625))
    assert calibrated_thresholds([0.6], third) == pytest.approx([1 / (1 + (2 / 3) ** (1 / 0.3))], abs=1e-12)
    assert raw_thresholds([0.6], third) == pytest.approx([1 / (1 + (2 / 3) ** 0.3)], abs=1e-12)
    assert calibrated_thresholds((), third) == raw_thresholds((), third) == []
    assert calibrated_thresholds([0.6], None) == raw_thresholds([0.6], None) == [0.6]
    assert LABELS.temperature_text == "temperatures 0.5 to 2 (one per label)"
    with pytest.raises(ValueError, match="has 2 temperatures; it must have 3"):
        label_calibration_from_dict(LABELS.to_dict(), ["a", "b", "c"])


@pytest.mark.parametrize("values", [3, [], "text", {"samples": None}, {"loss": 1}, {"ece": None}, {"samples": [1]},
                                    {"temperatures": 2.0}, {"temperature": []}, {"sets": []}, {"unknown": 3},
                                    {"selective_risks": [{}]}, {"absent": 1}, {"samples": math.inf}])
def test_values_of_other_types_are_value_errors(values: object) -> None:
    for record, read in ((RECORD, calibration_from_dict), (LABELS, label_calibration_from_dict)):
        known = record.to_dict()
        if isinstance(values, dict) and not values.keys() <= known.keys():
            continue
        with pytest.raises(ValueError, match="calibration"):
            read({**known, **values} if isinstance(values, dict) else values, CLASSES)


@pytest.mark.parametrize("values", [3, [], "text", {}, {"max_width": 8}])
def test_preprocessing_of_other_types_is_a_value_error(values: object) -> None:
    with pytest.raises(ValueError, match="preprocessing"):
        preprocessing_from_dict(values)
    with pytest.raises(ValueError, match="tokenizer kind None is not one of"):
        tokenizer_from_dict(values)
