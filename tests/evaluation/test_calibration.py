"""Calibration of classifiers: against torchmetrics, scikit-learn and brute force, and properties of what is fitted."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from vit.bundle import Quantiles, UnknownScore
from vit.bundle.calibration import METHODS, STORED, calibration_from_dict, required_samples, stored_ranks
from vit.data import DataError
from vit.evaluation.calibration import temperature
from vit.evaluation.calibration.fitting import Outputs, fit_calibration
from vit.evaluation.calibration.reliability import calibration_error, certainty, reliability, risks
from vit.evaluation.calibration.temperature import fit_temperature
from vit.inference.abstention import fewest_samples, may_exceed, probability_threshold, selective_risks
from vit.inference.conformal import content_draws, label_scores, prediction_sets, true_scores
from vit.inference.unknown import unknown_scores

CLASSES = ["a", "b", "c", "d", "e"]


def simulated(count, sharpness=1.0, seed=0, classes=5):
    """Logits whose softmax at temperature `sharpness` is the true distribution of the labels."""
    generator = torch.Generator().manual_seed(seed)
    true = 2 * torch.randn(count, classes, generator=generator)
    labels = torch.multinomial(true.softmax(-1), 1, generator=generator)[:, 0]
    return true * sharpness, labels


def outputs(count, sharpness=1.0, seed=0, width=8):
    logits, labels = simulated(count, sharpness, seed)
    features = torch.randn(count, width, generator=torch.Generator().manual_seed(seed)) + 3 * F.one_hot(labels, width)
    return Outputs(logits, labels, draws_of(count), features)


def draws_of(count):
    return content_draws(str(i).encode() for i in range(count))


def test_the_expected_calibration_error_is_that_of_torchmetrics():
    from torchmetrics.classification import MulticlassCalibrationError

    for seed, sharpness in enumerate((0.3, 1.0, 4.0)):
        logits, labels = simulated(700, sharpness, seed)
        theirs = MulticlassCalibrationError(num_classes=5, n_bins=15, norm="l1")(logits.softmax(-1), labels)
        assert calibration_error(*certainty(logits.softmax(-1), labels)) == pytest.approx(float(theirs), abs=1e-6)


@pytest.mark.parametrize("sharpness", [0.25, 1.0, 3.0])
def test_the_temperature_is_found_again_and_agrees_with_scikit_learn(sharpness):
    from sklearn.linear_model import LogisticRegression

    logits, labels = simulated(4000, sharpness)
    temperature = fit_temperature(logits, labels)
    assert temperature == pytest.approx(sharpness, rel=0.06)
    # one weight for all classes: logistic regression of "is this the class" on differences of logits of two classes
    pair, truth = logits[labels < 2][:, :2], labels[labels < 2]
    two = fit_temperature(pair, truth)
    difference = (pair[:, 1] - pair[:, 0]).numpy()[:, None]
    model = LogisticRegression(fit_intercept=False, C=np.inf).fit(difference, truth.numpy())
    assert two == pytest.approx(1 / model.coef_[0, 0], rel=0.01)


@pytest.mark.parametrize("seed", range(8))
def test_the_log_loss_is_never_above_that_without_a_temperature(seed):
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.randint(1, 30, (), generator=generator))
    logits = torch.randn(count, 3, generator=generator) * 10 ** float(torch.rand((), generator=generator) * 3 - 1)
    labels = torch.randint(0, 3, (count,), generator=generator)
    temperature = fit_temperature(logits, labels)
    assert math.isfinite(temperature) and temperature > 0
    assert F.cross_entropy(logits.double() / temperature, labels) <= F.cross_entropy(logits.double(), labels)
    assert torch.equal((logits / temperature).argmax(-1), logits.argmax(-1))


def test_few_samples_without_an_error_do_not_make_the_model_certain():
    logits = 3 * torch.eye(3).repeat(4, 1)
    assert 0.2 < fit_temperature(logits, logits.argmax(-1)) < 1


def test_the_prior_of_the_temperature_weighs_as_much_as_one_sample():
    """The minimum on a grid, for few samples; at most a factor of exp(5); and 1 where nothing is better."""
    logits, labels = simulated(12, sharpness=2.0)
    grid = torch.linspace(-1, 1, 20001, dtype=torch.float64)
    loss = torch.stack([F.cross_entropy(logits.double() / t, labels) for t in grid.exp()]) + grid**2 / (2 * 12)
    assert fit_temperature(logits, labels) == pytest.approx(float(grid[loss.argmin()].exp()), rel=2e-4)
    certain = torch.eye(3).repeat(2000, 1)
    assert fit_temperature(1e-4 * certain, certain.argmax(-1)) == pytest.approx(math.exp(-5), rel=1e-3)
    assert fit_temperature(torch.zeros(5, 3), torch.tensor([0, 1, 2, 0, 0])) == 1.0


def brute_force_set(probabilities, draw, limit, penalty, free):
    """APS by the definition of its paper: include labels by descending probability."""
    chosen, before = set(), 0.0
    for rank, label in enumerate(sorted(range(len(probabilities)), key=lambda i: -probabilities[i]), start=1):
        if before + draw * probabilities[label] + penalty * max(0, rank - free) <= limit:
            chosen.add(label)
        before += probabilities[label]
    return chosen


@pytest.mark.parametrize(("method", "penalty", "free"), [("aps", 0.0, 0), ("raps", 0.1, 1)])
def test_sets_are_those_of_the_definition(method, penalty, free):
    logits, labels = simulated(200)
    probabilities, draws = logits.softmax(-1).double(), draws_of(200)
    for limit in (0.2, 0.7, 0.95):
        sizes, _ = prediction_sets(probabilities, draws, limit, method)
        for row, draw, size in zip(probabilities.tolist(), draws.tolist(), sizes.tolist(), strict=True):
            chosen = brute_force_set(row, draw, limit, penalty, free)
            assert set(sorted(range(5), key=lambda i: -row[i])[:size]) == chosen
    scores = label_scores(probabilities, draws, method)[0]
    assert (scores.diff(dim=1) >= -1e-12).all()
    assert torch.equal(true_scores(probabilities, draws, labels, [method])[0] <= 0.7, torch.tensor(
        [label in brute_force_set(row, draw, 0.7, penalty, free) for row, draw, label in
         zip(probabilities.tolist(), draws.tolist(), labels.tolist(), strict=True)]))


@pytest.mark.parametrize("method", ["aps", "raps"])
@pytest.mark.parametrize("level", [0.8, 0.9])
def test_coverage_over_resplits_is_the_level(method, level):
    """Of a badly calibrated model too: the level does not depend on the model."""
    logits, labels = simulated(1000, sharpness=3.0)
    scores = true_scores(logits.softmax(-1), draws_of(1000), labels, [method])[0].numpy()
    covered = []
    for seed in range(200):
        order = np.random.default_rng(seed).permutation(1000)
        covered.append((scores[order[200:]] <= Quantiles.of(scores[order[:200]]).at(level)).mean())
    assert level - 0.005 < np.mean(covered) < level + 1 / 200 + 0.01


def test_the_scores_of_all_methods_take_one_sort():
    logits, labels = simulated(50)
    probabilities, draws = logits.softmax(-1), draws_of(50)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        found = true_scores(probabilities, draws, labels, METHODS)
    assert sum(each.count for each in profile.key_averages() if each.key == "aten::sort") == 1
    for method, scores in zip(METHODS, found, strict=True):
        each, classes = label_scores(probabilities, draws, method)
        assert torch.equal(scores, each[classes == labels[:, None]])


def test_draws_are_a_function_of_the_content():
    contents = [bytes([i, i + 1]) for i in range(200)]
    draws = content_draws(contents)
    assert torch.equal(draws.flip(0), content_draws(contents[::-1]))
    assert 0.4 < draws.mean() < 0.6 and len(draws.unique()) == 200
    pinned = content_draws([b""]).item()  # the same in every version, as the sets of saved models are
    assert pinned == 0.14852392673492432 and content_draws([]).shape == (0,)


def test_labels_of_equal_probability_are_in_the_order_of_the_classes():
    probabilities = torch.full((2, 40), 1 / 40)
    for method in ("aps", "raps"):
        assert label_scores(probabilities, torch.rand(2), method)[1].tolist() == [list(range(40))] * 2


@pytest.mark.parametrize("count", [1, 9, 999, 1000, 1001, 4321])
def test_quantiles_are_order_statistics_and_stored_ones_err_upwards(count):
    scores = np.random.default_rng(count).uniform(size=count)
    quantiles, ordered = Quantiles.of(scores), np.sort(scores)
    assert len(quantiles.values) == min(count, STORED) and stored_ranks(count)[-1] == count
    for level in (0.1, 0.5, 0.9):
        rank = math.ceil((count + 1) * level)
        if rank <= count:
            found = quantiles.at(level)
            assert found >= ordered[rank - 1]
            assert found <= ordered[min(rank - 1 + -(-count // STORED), count - 1)] + 1e-5
    new = np.array([-1.0, 0.5, 2.0])
    exact = (1 + (scores >= new[:, None]).sum(1)) / (count + 1)
    assert (quantiles.p_values(new) >= exact - 1e-12).all()
    np.testing.assert_allclose(quantiles.p_values(new), exact, atol=0.002)


@pytest.mark.parametrize(("level", "needed"), [(0.9, 9), (0.95, 19), (0.99, 99), (0.5, 1)])
def test_too_few_samples_for_a_level_are_named_with_the_number_needed(level, needed):
    assert required_samples(level) == needed == min(n for n in range(1, 200) if math.ceil((n + 1) * level - 1e-9) <= n)
    assert Quantiles.of(np.arange(needed)).at(level) == needed - 1
    if needed > 1:
        with pytest.raises(ValueError, match=f"needs {needed} validation samples or more.*calibrated on {needed - 1}"):
            Quantiles.of(np.arange(needed - 1)).at(level)


@pytest.mark.parametrize("digits", range(1, 7))
def test_the_number_needed_for_levels_near_one_is_exact(digits):
    level = 1 - Fraction(1, 10**digits)
    assert required_samples(float(level)) == level / (1 - level)


@pytest.mark.parametrize("level", [0, 1, 1.5])
def test_a_level_is_between_0_and_1(level):
    with pytest.raises(ValueError, match="is not between 0 and 1"):
        Quantiles.of(np.arange(9)).at(level)


def test_the_bound_on_the_error_rate_is_that_of_clopper_and_pearson():
    from scipy.stats import binomtest

    for samples, wrong in ((60, 0), (100, 3), (18, 18)):
        high = binomtest(wrong, samples, alternative="less").proportion_ci(0.95).high
        assert may_exceed(high - 1e-6, samples, wrong, 0.05)
        assert high == 1 or not may_exceed(high + 1e-6, samples, wrong, 0.05)


def test_the_stated_error_rate_holds_in_simulations():
    failures = 0
    for seed in range(60):
        logits, labels = simulated(600, sharpness=2.0, seed=seed)
        risks = selective_risks(*certainty(logits.softmax(-1), labels))
        threshold = probability_threshold(risks, 0.25)
        fresh, truth = simulated(3000, sharpness=2.0, seed=1000 + seed)
        highest, right = certainty(fresh.softmax(-1), truth)
        failures += (~right[highest >= threshold]).mean() > 0.25
    assert failures <= 6  # 3 are expected at 95 % confidence, were the bound tight


def test_an_error_rate_that_cannot_be_shown_is_refused_with_the_reason():
    certain = selective_risks(np.linspace(0.9, 1, 100), np.ones(100, bool))
    with pytest.raises(ValueError, match="with 528 or more validation samples, but the model was calibrated on 100"):
        probability_threshold(certain, 0.01)
    assert fewest_samples(0.01, 0.005) == 528
    with pytest.raises(ValueError, match="no probability gives an error rate of 0.01 on the 528 validation samples"):
        probability_threshold(selective_risks(np.linspace(0.9, 1, 528), np.zeros(528, bool)), 0.01)
    wrong = selective_risks(np.linspace(0.9, 1, 1000), np.zeros(1000, bool))
    with pytest.raises(ValueError, match="of the 100 most certain predictions 100 are wrong"):
        probability_threshold(wrong, 0.2)


def test_unknown_scores_rank_out_of_distribution_inputs_above_known_ones():
    train, known = outputs(500, seed=1), outputs(200, seed=2)
    record = fit_calibration(CLASSES, known, train).unknown
    assert record.name == "cosine" and len(record.means) == 5
    strange = unknown_scores(known.logits, -known.features, record)
    assert strange.median() > unknown_scores(known.logits, known.features, record).median()
    assert (record.quantiles.p_values(strange.numpy()) <= 0.05).mean() > 0.2
    energy = unknown_scores(known.logits, None, UnknownScore("energy", record.quantiles))
    torch.testing.assert_close(energy, -torch.logsumexp(known.logits.double(), -1))
    with pytest.raises(ValueError, match="score is 'knn', and this version has cosine, energy; update vit"):
        unknown_scores(known.logits, None, UnknownScore("knn", record.quantiles))
    for features, found in ((None, "no features"), (known.features[:, :3], "features of 3 numbers")):
        with pytest.raises(ValueError, match=f"needs features of 8 numbers, and the model has {found}; run vit calib"):
            unknown_scores(known.logits, features, record)


def test_a_calibration_is_plain_values_and_loads_again():
    import json

    found = fit_calibration(CLASSES, outputs(300), outputs(400, seed=3))
    stored = json.loads(json.dumps(found.to_dict()))
    assert calibration_from_dict(stored, CLASSES) == found and len(stored["selective_risks"]) > 1
    older = {("answered" if key == "selective_risks" else key): value for key, value in stored.items()}
    assert calibration_from_dict(older, CLASSES) == found
    again = fit_calibration(CLASSES, outputs(300), outputs(400, seed=3))
    assert again == found
    assert found.loss[1] <= found.loss[0]


@pytest.mark.parametrize(("key", "value", "message"), [
    ("temperature", 0.0, "above 0"),
    ("temperature", None, "not a finite number"),
    ("samples", 0, "above 0"),
    ("loss", [1.0], "two numbers"),
    ("sets", {"aps": {"count": 3, "values": [0.1, 0.2]}}, "2 values for 3 samples"),
    ("sets", {"aps": {"count": 2, "values": [0.3, 0.2]}}, "ascending"),
    ("unknown", {"name": "cosine", "quantiles": {"count": 1, "values": [0.1]}, "centre": [0.0], "means": [[1.0]]},
     "each of the 5 classes"),
])
def test_a_damaged_record_is_refused(key, value, message):
    values = fit_calibration(CLASSES, outputs(30)).to_dict() | {key: value}
    with pytest.raises(ValueError, match=message):
        calibration_from_dict(values, CLASSES)


def test_every_part_of_a_calibration_is_computed_by_its_definition():
    """Also of classes with one training sample and with none."""
    from torchmetrics.classification import MulticlassCalibrationError

    val, train = outputs(300, sharpness=3.0), outputs(200, sharpness=3.0, seed=1)
    kept = torch.cat([(train.labels < 3).nonzero()[:, 0], (train.labels == 3).nonzero()[:1, 0]])
    train = Outputs(train.logits[kept], train.labels[kept], train.draws[kept], 5 + train.features[kept])
    found = fit_calibration(CLASSES, val, train)
    calibrated = (val.logits / found.temperature).softmax(-1)
    for number, each in enumerate((val.logits.softmax(-1), calibrated)):
        error = MulticlassCalibrationError(num_classes=5, n_bins=15, norm="l1")(each, val.labels)
        assert found.loss[number] == pytest.approx(F.nll_loss(each.log(), val.labels).item(), rel=1e-5)
        assert found.ece[number] == pytest.approx(error.item(), abs=1e-6)
    for name, each in found.sets.items():
        assert each == Quantiles.of(true_scores(calibrated, val.draws, val.labels, [name])[0].numpy())
    highest, predicted = calibrated.max(-1)
    for risk in found.selective_risks:
        above = highest.double() >= risk.probability
        assert (risk.samples, risk.wrong) == (above.sum(), (above & (predicted != val.labels)).sum())
    centre, (*means, absent) = train.features.double().mean(0), found.unknown.means
    torch.testing.assert_close(torch.tensor(found.unknown.centre).double(), centre, rtol=1e-5, atol=0)
    for label, mean in enumerate(means):
        expected = train.features[train.labels == label].double().mean(0) - centre
        torch.testing.assert_close(torch.tensor(mean).double(), expected, rtol=1e-5, atol=1e-9)
    assert set(absent) == {0.0}
    assert found.unknown.quantiles == Quantiles.of(unknown_scores(val.logits, val.features, found.unknown).numpy())


def test_choices_and_absent_classes(caplog):
    few = Outputs(*(each[:6] for each in (simulated(50)[0], torch.zeros(50, dtype=torch.int64), draws_of(50))))
    assert fit_calibration(CLASSES, few, choice="none") is None
    caplog.set_level("WARNING", "vit")
    found = fit_calibration(CLASSES, few, choice="temperature")
    assert found.sets == {} and found.unknown is None and found.absent == ("b", "c", "d", "e")
    assert "too few for prediction sets at 90 %, which need 9" in caplog.text
    assert "has the classes 'b', 'c', 'd' and 1 more: the calibration does not cover them" in caplog.text
    caplog.clear()
    two = Outputs(few.logits, torch.arange(6) % 2, few.draws)
    fit_calibration(CLASSES, two, choice="temperature")
    assert "has the classes 'c', 'd', 'e': the calibration does not cover them" in caplog.text
    caplog.clear()
    fit_calibration(CLASSES, Outputs(few.logits, torch.tensor([0, 1, 2, 3, 3, 3]), few.draws), choice="temperature")
    assert "has the class 'e': the calibration does not cover it" in caplog.text
    caplog.clear()
    fit_calibration(CLASSES[:2], Outputs(torch.eye(2).repeat(9, 1), torch.arange(18) % 2, draws_of(18)))
    assert not caplog.text
    with pytest.raises(DataError, match="0 samples"):
        fit_calibration(CLASSES, Outputs(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64), torch.zeros(0)))


def test_the_risk_of_equal_probabilities_does_not_depend_on_the_order_of_the_samples():
    probabilities = np.array([0.9, 1.0, 1.0, 1.0, 1.0, 0.5])
    right = np.array([True, False, True, True, True, False])
    expected = [0.25, 0.25, 0.25, 0.25, 0.2, 2 / 6]
    for order in (np.arange(6), np.arange(6)[::-1], np.array([3, 5, 1, 0, 2, 4])):
        assert risks(probabilities[order], right[order]) == pytest.approx(expected)
    distinct = np.random.default_rng(0).permutation(50) / 50
    right = np.random.default_rng(1).random(50) < distinct
    chosen = [np.argsort(-distinct)[:count] for count in range(1, 51)]
    assert risks(distinct, right) == pytest.approx([1 - right[each].mean() for each in chosen])


@pytest.mark.filterwarnings("error")
def test_a_diverged_model_has_no_calibration_error():
    probabilities = np.array([np.nan, 0.25, 1.0])
    assert np.isnan(calibration_error(probabilities, np.array([True, False, True])))
    assert [count for count, _, _ in reliability(probabilities, np.array([True, False, True]))] == [1, 1, 1]


def test_a_probability_between_two_bins_belongs_to_the_lower_one():
    probabilities = np.array([0.0, 0.25, 0.125, 0.5, 0.75, 1.0])
    found = reliability(probabilities, np.array([0, 1, 1, 0, 1, 1], bool), bins=4)
    assert found == [(3, 0.125, pytest.approx(2 / 3)), (1, 0.5, 0.0), (1, 0.75, 1.0), (1, 1.0, 1.0)]


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest result of an operation."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        each = result if isinstance(result, tuple | list) else [result]
        self.elements = max([self.elements, *(value.numel() for value in each if isinstance(value, torch.Tensor))])
        return result


def test_a_calibration_copies_a_part_of_the_logits_at_a_time(monkeypatch):
    val, train = outputs(900, 2.0), outputs(900, 2.0, seed=1)
    train = Outputs(train.logits[:, :0], train.labels, train.draws, train.features)
    whole = fit_calibration(CLASSES, val, train)
    monkeypatch.setattr(temperature, "PART", 900)  # 180 samples; the labels of all are 900 numbers, too
    with LargestTensor() as largest:
        in_parts = fit_calibration(CLASSES, Outputs(val.logits, val.labels, val.draws))
    assert 0 < largest.elements <= 900 < val.logits.numel()
    assert in_parts.sets == whole.sets and in_parts.selective_risks == whole.selective_risks
    assert in_parts.loss == pytest.approx(whole.loss, abs=1e-12) and in_parts.ece == pytest.approx(whole.ece, abs=1e-12)
    assert in_parts.temperature == whole.temperature
    again = fit_calibration(CLASSES, val, train)
    assert again.unknown.quantiles.values == pytest.approx(whole.unknown.quantiles.values, abs=1e-6)
    assert again.unknown.means == whole.unknown.means
