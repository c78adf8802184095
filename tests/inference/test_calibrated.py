"""Calibrated predictors: probabilities, sets and abstention in Python, and other libraries on the same folder."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import vit
from tests.bundle.conftest import CLASSES, PREPROCESSING, tiny
from tests.inference.tiny_models import BYTES, SIZES
from vit.bundle import Calibration, Quantiles, SelectiveRisk, UnknownScore, load_bundle, save_bundle
from vit.data import TextSplit
from vit.data.formats.lines import BadText
from vit.data.splits.split import array_split
from vit.evaluation import evaluate
from vit.evaluation.calibration.fitting import Outputs, fit_calibration
from vit.evaluation.sample_scores import sets_at_level
from vit.evaluation.text_classification import evaluate_texts
from vit.inference import unknown
from vit.inference.abstention import fewest_samples, probability_threshold, smallest_rate
from vit.inference.calibrated import Calibrator, captured_features, image_contents
from vit.inference.conformal import content_draws, label_scores, prediction_sets
from vit.inference.unknown import class_directions, unknown_scores
from vit.models.text import TextClassifier, TextClassifierConfig

WIDTH = 192  # of vit_tiny


def pictures(count=12, seed=0):
    return list(np.random.default_rng(seed).integers(0, 255, (count, 32, 48, 3), np.uint8))


def calibration(width=WIDTH, classes=CLASSES, count=300, choice="full"):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(count, len(classes), generator=generator)
    labels = torch.multinomial((3 * logits).softmax(-1), 1, generator=generator)[:, 0]
    found = Outputs(logits, labels, torch.arange(count) / count, torch.randn(count, width, generator=generator))
    return fit_calibration(classes, found, found, choice)


@pytest.fixture
def folder(tmp_path):
    return save_bundle(tmp_path / "model", tiny(), CLASSES, PREPROCESSING, calibration=calibration())


def test_the_bundle_has_the_calibration_as_plain_values(folder, tmp_path):
    assert load_bundle(folder).calibration == calibration()
    record = json.loads((folder / "config.json").read_text())["vit"]["calibration"]
    assert record["temperature"] == calibration().temperature and len(record["unknown"]["means"]) == 3
    bare = save_bundle(tmp_path / "bare", tiny(), CLASSES, PREPROCESSING)
    assert load_bundle(bare).calibration is None
    assert "calibration" not in json.loads((bare / "config.json").read_text())["vit"]


def test_timm_and_transformers_open_a_calibrated_folder_with_the_same_logits(folder, tmp_path):
    import timm
    from transformers import AutoModelForImageClassification

    bare = save_bundle(tmp_path / "bare", tiny(), CLASSES, PREPROCESSING)
    images = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(1))
    for open_folder in (lambda path: timm.create_model(f"local-dir:{path}", pretrained=True).eval(),
                        lambda path: AutoModelForImageClassification.from_pretrained(path).eval()):
        ours, plain = (open_folder(path)(images) for path in (folder, bare))
        ours, plain = (getattr(each, "logits", each) for each in (ours, plain))
        assert torch.equal(ours, plain)
        torch.testing.assert_close(ours, tiny()(images), rtol=1e-5, atol=1e-5)


def test_probabilities_are_the_softmax_of_logits_over_the_temperature(folder, tmp_path):
    predictor = vit.load(folder)
    images = torch.stack([torch.from_numpy(each).permute(2, 0, 1) for each in pictures()])
    with torch.inference_mode():
        logits = predictor.model(predictor.preprocessing.normalize(images))
    expected = (logits / calibration().temperature).softmax(-1).sort(descending=True).values
    found = predictor.predict(pictures(), top_k=3)
    np.testing.assert_allclose([each.probabilities for each in found], expected.numpy(), atol=1e-6)
    assert all(each.calibrated and each.set is None and each.unsure == "" for each in found)
    bare = vit.load(save_bundle(tmp_path / "bare", tiny(), CLASSES, PREPROCESSING)).predict(pictures())
    assert [each.label for each in bare] == [each.label for each in found]
    assert not bare[0].calibrated and bare[0].unknown is None


def test_sets_grow_with_the_level_and_do_not_depend_on_the_batch(folder):
    predictor, before = vit.load(folder), None
    for level in (0.5, 0.9, 0.99):
        sets = [each.set for each in predictor.predict(pictures(), set=level)]
        assert before is None or all(set(small) <= set(large) for small, large in zip(before, sets, strict=True))
        before = sets
    backwards = predictor.predict(pictures()[::-1], set=0.99, batch_size=5)
    assert [each.set for each in backwards[::-1]] == sets


def test_the_sets_of_an_evaluation_are_those_of_predictions_in_any_order(folder):
    photos, labels = pictures(60), np.arange(60) % 3
    bundle, order = load_bundle(folder), np.random.default_rng(1).permutation(60)
    sets = [each.set for each in vit.load(folder).predict(photos, set=0.9)]
    covered = np.mean([CLASSES[label] in each for label, each in zip(labels, sets, strict=True)])
    for rows in (np.arange(60), order):
        split = array_split(np.stack(photos)[rows], labels[rows], "image")
        found = evaluate(bundle.model, PREPROCESSING, split, CLASSES, batch_size=7, calibration=bundle.calibration)
        assert found.metrics["set_size"] == np.mean([len(each) for each in sets])
        assert found.metrics["set_coverage"] == pytest.approx(covered)


def test_sets_unknown_scores_and_abstention_of_predictions_are_those_of_the_definitions(folder):
    predictor, record = vit.load(folder), calibration()
    images = torch.stack([predictor.preprocessing.image(each) for each in pictures(30)])
    with torch.inference_mode(), captured_features(predictor.model) as captured:
        logits = 3 * predictor.model(predictor.preprocessing.normalize(images))  # some certain, some not
    level, rate, probabilities = 0.8, 0.2, (logits / record.temperature).softmax(-1)
    scores = unknown_scores(logits, captured[0], record.unknown)
    known = record.unknown.quantiles.values
    strange = [(1 + sum(value >= score for value in known)) / 301 for score in scores.tolist()]
    draws = content_draws(image.numpy().tobytes() for image in images)
    labels = [[CLASSES[i] for i, value in zip(classes, each, strict=True) if value <= record.sets["aps"].at(level)]
              for each, classes in zip(*label_scores(probabilities, draws, "aps"), strict=True)]
    threshold = probability_threshold(record.selective_risks, rate)
    improbable = [highest < threshold for highest in probabilities.amax(-1).tolist()]
    found = Calibrator(load_bundle(folder), level, rate).outputs(logits, captured, lambda: image_contents(images))
    assert not captured and [each.unknown for each in found] == scores.tolist()
    assert [each.p_value for each in found] == pytest.approx(strange)
    assert [list(each.set) for each in found] == labels
    both = {(False, False): "", (True, False): "low probability", (False, True): "unlike the validation data",
            (True, True): "low probability and unlike the validation data"}
    assert [each.unsure for each in found] == [both[one, p <= rate] for one, p in zip(improbable, strange, strict=True)]
    assert len({each.unsure for each in found}) == 4 and len({len(each) for each in labels}) > 1
    for each in predictor.predict(pictures(30), abstain=rate):
        assert each.label == ("unsure" if each.unsure else each.names[0])


def test_the_bounds_of_abstention():
    """Of four samples one is as strange as this input, p = 2/5; its probability is that of the threshold itself."""
    record = Calibration(4, 1.0, (0.5, 0.5), (0.1, 0.1), {}, UnknownScore("energy", Quantiles(4, (-9., -9., -9., 0.))),
                         (SelectiveRisk(0.5, 900, 0),))
    bundle = SimpleNamespace(classes=["no", "yes"], calibration=record, thresholds=(), path="model")
    logits = torch.full((1, 2), -math.log(2), dtype=torch.float64)
    for rate, reason in ((0.4, "unlike the validation data"), (0.39, "")):
        (found,) = Calibrator(bundle, None, rate).outputs(logits, [], lambda: iter([b""]))
        assert (found.unknown, found.p_value, found.unsure) == (pytest.approx(0), pytest.approx(0.4), reason)


def test_a_set_has_labels_of_equal_probability_in_the_order_of_the_classes():
    classes = [f"{number}" for number in range(40)]
    record = calibration(width=4, classes=classes)
    bundle = SimpleNamespace(classes=classes, calibration=record, thresholds=(), path="model")
    calibrator = Calibrator(bundle, set_level=0.5)
    (found,) = calibrator.outputs(torch.zeros(1, 40), [torch.ones(1, 4)], lambda: iter([b"an image"]))
    assert 0 < len(found.set) < 40 and list(found.set) == classes[: len(found.set)]


def test_a_class_of_the_name_unsure_cannot_be_told_from_abstention():
    record = calibration(classes=["sure", "unsure"])
    bundle = SimpleNamespace(classes=["sure", "unsure"], calibration=record, thresholds=(), path="model")
    with pytest.raises(ValueError, match="abstain= predicts 'unsure', which is the name of a class of model; use set="):
        Calibrator(bundle, abstain=0.4)
    assert Calibrator(bundle, set_level=0.9).limit == record.sets["aps"].at(0.9)


@pytest.mark.parametrize(("options", "message"), [
    ({"set": 1.0}, "set=1 must be between 0 and 1"),
    ({"abstain": 0.0}, "abstain=0 must be between"),
    ({"set": 0.999}, "set=0.999: a level of 0.999 needs 999 validation samples or more.*calibrated on 300"),
    ({"abstain": 0.001}, "abstain=0.001: .* can be guaranteed with 5296 or more validation samples"),
])
def test_calibrated_outputs_that_the_validation_samples_do_not_allow_are_refused(folder, options, message):
    with pytest.raises(ValueError, match=message):
        vit.load(folder).predict(pictures(1), **options)


def test_models_without_a_calibration_refuse_calibrated_outputs(tmp_path):
    bare = save_bundle(tmp_path / "bare", tiny(), CLASSES, PREPROCESSING)
    with pytest.raises(ValueError, match="needs a calibrated model, but .* is not calibrated; .*vit calibrate MODEL"):
        vit.load(bare).predict(pictures(1), set=0.9)
    cooled = save_bundle(tmp_path / "cooled", tiny(), CLASSES, PREPROCESSING,
                         calibration=calibration(choice="temperature"))
    assert vit.load(cooled).predict(pictures(1))[0].calibrated
    with pytest.raises(ValueError, match="needs a calibrated model, but .* has only a temperature"):
        vit.load(cooled).predict(pictures(1), abstain=0.2)
    labels = save_bundle(tmp_path / "labels", tiny(), CLASSES, PREPROCESSING, thresholds=[0.5] * 3)
    with pytest.raises(ValueError, match="several labels per image"):
        vit.load(labels).predict(pictures(1), set=0.9)


def test_texts_have_the_same_calibrated_outputs(tmp_path):
    torch.manual_seed(0)
    model = TextClassifier(TextClassifierConfig(**SIZES, num_classes=2))
    folder = save_bundle(tmp_path / "texts", model, ["no", "yes"], extra={"columns": 1},
                         tokenizers={"source": BYTES}, calibration=calibration(12, ["no", "yes"]))
    found = vit.load(folder).predict(["a", "bc", "d"], set=0.9, abstain=0.4)
    assert [each.source for each in found] == ["a", "bc", "d"]
    assert all(each.calibrated and each.set is not None and 0 < each.p_value <= 1 for each in found)
    assert vit.load(folder).predict(["bc"], set=0.9)[0].set == found[1].set
    *empty, one = vit.load(folder).stream(["", " ", "bc"], set=0.9, batch_size=1)  # two batches without a text
    assert one.set == found[1].set and all(isinstance(each, BadText) for each in empty)
    texts = [f"{number:04}" for number in range(60)]
    sets = [each.set for each in vit.load(folder).predict(texts, set=0.9)]
    for order in (texts, texts[::-1]):
        split = TextSplit(np.zeros(60, np.int64), order, (order,))
        assert evaluate_texts(vit.load(folder), split, 7).metrics["set_size"] == np.mean([len(each) for each in sets])


@pytest.mark.parametrize("name", ["vit_tiny", "timm:test_vit", "timm:test_resnet"])
def test_captured_features_are_the_input_of_the_head(name):
    torch.manual_seed(0)
    model = vit.create_model(name, num_classes=3, image_size=(32, 48), **({"patch_size": 8} if ":" not in name else {}))
    images = torch.randn(2, 3, 32, 48)
    with torch.inference_mode():
        plain = model.eval()(images)
        with captured_features(model) as captured:
            logits = model(images)
        head = model.get_classifier() if hasattr(model, "get_classifier") else model.head
        assert torch.equal(plain, logits) and len(captured) == 1
        torch.testing.assert_close(head(captured[0]), logits)


def test_class_means_become_tensors_once_per_model():
    record = calibration().unknown
    features = torch.randn(4, WIDTH, dtype=torch.float64)
    centre, means = torch.tensor(record.centre, dtype=torch.float64), torch.tensor(record.means, dtype=torch.float64)
    expected = 1 - torch.cosine_similarity((features - centre)[:, None], means, dim=-1).amax(1)
    torch.testing.assert_close(unknown_scores(torch.zeros(4, 3), features, record), expected)
    assert class_directions(record) is class_directions(record)
    key = id(record)
    del record
    assert key not in unknown._directions


def test_scores_of_labels_by_hand_and_a_set_has_those_up_to_its_limit():
    probabilities, draws = torch.tensor([[0.25, 0.5, 0.25]]), torch.tensor([0.5])
    scores, classes = label_scores(probabilities, draws, "aps")
    assert scores.tolist() == [[0.25, 0.625, 0.875]] and classes.tolist() == [[1, 0, 2]]
    penalized = label_scores(probabilities, draws, "raps")[0]
    assert penalized.tolist() == [pytest.approx([0.25, 0.725, 1.075])]
    sizes = [int(prediction_sets(probabilities, draws, limit, "aps")[0]) for limit in (0.2, 0.25, 0.6, 0.625, 1.0)]
    assert sizes == [0, 1, 1, 2, 3]
    assert prediction_sets(probabilities, draws, 0.6, "aps")[1].tolist() == [[1, 0, 2]]


def test_the_classes_of_a_batch_are_sorted_once(monkeypatch):
    """With 12,000 classes the two sorts for the sizes of the sets and for their coverage were 4/5 of an evaluation."""
    record, probabilities = calibration(), torch.rand(7, 3).softmax(-1)
    sorts, whole = [], torch.Tensor.sort
    monkeypatch.setattr(torch.Tensor, "sort", lambda *each, **more: sorts.append("sort") or whole(*each, **more))
    monkeypatch.setattr(torch.Tensor, "argsort", lambda *each, **more: sorts.append("argsort"))
    sizes, covered = sets_at_level(probabilities, torch.arange(7) % 3, lambda: iter([b"x"] * 7), record)
    assert sorts == ["sort"] and (sizes >= 0).all() and covered.dtype == torch.bool


@pytest.mark.parametrize("samples", [10, 50, 59, 1000])
def test_the_smallest_error_rate_is_rounded_up_to_two_digits(samples):
    exact, found = 1 - 0.05 ** (1 / samples), smallest_rate(samples, 0.05)
    assert exact <= found < 1.1 * exact and found == pytest.approx(float(f"{found:.1e}"), rel=1e-12)
    assert fewest_samples(found, 0.05) <= samples
