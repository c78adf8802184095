"""A temperature per label against a logistic regression, and decisions and folders around it."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import vit
from vit.bundle import BundleError, LabelCalibration, load_bundle, save_bundle, save_ensemble
from vit.bundle.label_calibration import calibrated_thresholds, raw_thresholds
from vit.bundle.record import CHECKSUM
from vit.cli import main
from vit.data import Preprocessing
from vit.evaluation.calibration.labels import fit_label_calibration

CLASSES = ["ant", "bee", "cow"]
RECORD = LabelCalibration(40, (0.5, 2.0, 1.0), (0.5, 0.4), (0.2, 0.1), ("cow",))


def overconfident(count=6000, seed=0):
    """Logits (N,3) that are 3, 1 and 0.5 times those from which the labels are drawn."""
    rng = np.random.default_rng(seed)
    true = rng.normal(-0.5, 2, (count, 3))
    labels = rng.random((count, 3)) < 1 / (1 + np.exp(-true))
    return torch.tensor(true * (3.0, 1.0, 0.5)), torch.from_numpy(labels)


def test_temperatures_are_those_of_a_logistic_regression_without_offset():
    logits, truth = overconfident()
    found = fit_label_calibration(CLASSES, logits, truth)
    for c, temperature in enumerate(found.temperatures):
        fitted = LogisticRegression(C=1e6, fit_intercept=False, tol=1e-8)
        theirs = fitted.fit(logits[:, [c]].numpy(), truth[:, c].numpy())
        assert temperature == pytest.approx(1 / theirs.coef_[0, 0], rel=2e-3)
    for each, expected in zip(found.loss, (np.ones(3), np.array(found.temperatures)), strict=True):
        p = torch.sigmoid(logits / torch.tensor(expected)).numpy()
        assert each == pytest.approx(np.mean([log_loss(truth[:, c].numpy(), p[:, c]) for c in range(3)]))
    assert found.ece[1] < 0.02 < found.ece[0] and found.absent == ()


def test_labels_on_no_or_all_images_stay_as_they_are(caplog):
    logits, truth = overconfident(50)
    truth[:, 1], truth[:, 2] = False, True
    with caplog.at_level("INFO", "vit"):
        found = fit_label_calibration(CLASSES, logits, truth)
    assert found.temperatures[1:] == (1.0, 1.0) and found.absent == ("bee", "cow") and found.temperatures[0] > 1
    assert "has the label 'bee', 'cow', or all have it" in caplog.text
    for count, listed in ((3, "'0', '1', '2', or"), (4, "'0', '1', '2' and 1 more, or"), (0, None)):
        caplog.clear()
        truth = torch.ones(8, 5, dtype=torch.bool)
        truth[0, count:] = False
        fit_label_calibration(list("01234"), logits[:8, [0] * 5], truth)
        assert f"has the label {listed}" in caplog.text if listed else "has the label" not in caplog.text


def test_one_image_with_a_label_or_without_it_determines_its_temperature():
    logits = torch.tensor([[3.0, 3.0], [-3.0, 3.0], [-3.0, 3.0], [-3.0, -3.0]])
    found = fit_label_calibration(["once", "not once"], logits, logits > 0)
    assert max(found.temperatures) < 1 and found.absent == ()


def test_thresholds_are_converted_with_the_temperatures_and_back():
    raw, p = [0.3, 0.8, 0.5], np.random.default_rng(0).uniform(0.01, 0.99, (200, 3))
    ours = calibrated_thresholds(raw, RECORD)
    logits = np.log(p / (1 - p)) / np.array(RECORD.temperatures)
    assert np.array_equal(1 / (1 + np.exp(-logits)) >= ours, p >= raw) and ours[0] != raw[0]
    assert raw_thresholds(ours, RECORD) == pytest.approx(raw)
    assert calibrated_thresholds([0.0, 1.0, 0.5], RECORD)[:2] == [0, 1]
    assert raw_thresholds((), RECORD) == [] and raw_thresholds(raw, None) == raw


def tiny(seed=0):
    torch.manual_seed(seed)
    model = vit.create_model("vit_tiny", image_size=16, patch_size=8, num_classes=3, depth=1, dim=12, num_heads=2)
    model.head.weight.data.mul_(40)
    return model


def pictures(count=12):
    rng = np.random.default_rng(1)
    return [Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)) for _ in range(count)]


@pytest.fixture
def folders(tmp_path):
    """The same model without calibration and with it, selecting the same labels."""
    raw = [0.4, 0.6, 0.5]
    plain = save_bundle(tmp_path / "plain", tiny(), CLASSES, Preprocessing((16, 16)), thresholds=raw)
    return plain, save_bundle(tmp_path / "calibrated", tiny(), CLASSES, Preprocessing((16, 16)),
                              thresholds=calibrated_thresholds(raw, RECORD), calibration=RECORD)


def test_predictions_are_calibrated_and_select_the_same_labels(folders, tmp_path, capsysbinary):
    plain, calibrated = map(vit.load, folders)
    assert calibrated.bundle.calibration == RECORD
    for one, other in zip(plain.predict(pictures(), top_k=3), calibrated.predict(pictures(), top_k=3), strict=True):
        p, q = (dict(zip(each.names, each.probabilities, strict=True)) for each in (one, other))
        for name, temperature in zip(CLASSES, RECORD.temperatures, strict=True):
            before, after = (np.log(each[name] / (1 - each[name])) for each in (p, q))
            assert after == pytest.approx(before / temperature, abs=1e-3)
        assert other.calibrated and not one.calibrated
    chosen = [[set(each.names) for each in predictor.predict(pictures())] for predictor in (plain, calibrated)]
    assert chosen[0] == chosen[1]
    pictures()[0].save(tmp_path / "a.png")
    assert main(["predict", str(folders[1]), str(tmp_path / "a.png")]) == 0
    printed = capsysbinary.readouterr()
    assert printed.out.decode().splitlines()[0] == "file,labels,probabilities,calibrated,error"
    assert b": temperatures 0.5 to 2 (one per label)" in printed.err
    assert main(["convert", str(folders[1]), str(tmp_path / "theirs"), "--to", "transformers"]) == 0
    assert vit.load(tmp_path / "theirs").thresholds.tolist() == pytest.approx([0.4, 0.6, 0.5])


def test_an_ensemble_calibrates_each_member(folders, tmp_path):
    both = [vit.load(folder).predict(pictures(3), top_k=3) for folder in folders]
    together = vit.load(save_ensemble(tmp_path / "both", folders)).predict(pictures(3), top_k=3)
    for rows in zip(*both, together, strict=True):
        one, other, mean = (dict(zip(each.names, each.probabilities, strict=True)) for each in rows)
        assert mean == pytest.approx({name: (one[name] + other[name]) / 2 for name in CLASSES}, abs=1e-5)


@pytest.mark.parametrize(("key", "value", "message"), [
    ("temperatures", [1.0, 2.0], "has 2 temperatures; it must have 3"),
    ("temperatures", [1.0, -2.0, 1.0], "temperature is -2.0; it must be above 0"),
    ("loss", None, "calibration.loss is missing"),
])
def test_a_damaged_calibration_is_named(folders, tmp_path, key, value, message):
    copy = shutil.copytree(folders[1], tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    del config["vit"][CHECKSUM]
    config["vit"]["calibration"][key] = value
    if value is None:
        del config["vit"]["calibration"][key]
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(BundleError, match=message):
        load_bundle(copy)


def test_the_command_calibrates_a_copy_and_the_report_shows_both(folders, tmp_path, capsys):
    rng, rows = np.random.default_rng(2), ["file,label,split"]
    for number, picture in enumerate(pictures(60)):
        picture.save(tmp_path / f"{number}.png")
        has = rng.random(3) < (0.5, 0.3, 0.6)
        rows.append(f"{number}.png,{'|'.join(np.array(CLASSES)[has])},{('train', 'val', 'test')[number % 3]}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    data = ["data=table", f"data.path={tmp_path / 'labels.csv'}", "data.label_separator='|'", "data.split=split"]
    copy = tmp_path / "copy"
    assert main(["calibrate", str(folders[0]), *data, "--output", str(copy)]) == 0
    assert "(one per label) from 20 val samples" in capsys.readouterr().out
    record = load_bundle(copy).calibration
    assert record.samples == 20 and record.loss[1] < record.loss[0]
    assert main(["evaluate", str(copy), *data, "--json", str(tmp_path / "n.json")]) == 0
    numbers = json.loads((tmp_path / "n.json").read_text())
    assert numbers["test/calibrated_loss"] != numbers["test/loss"] and 0 < numbers["test/calibrated_ece"] < 1
    assert "calibrated_on_these_samples" not in numbers and "too low" not in capsys.readouterr().err
    assert load_bundle(copy).calibrated_on == {"data": "labels", "split": "val"}
    assert main(["evaluate", str(copy), *data, "--split", "val", "--json", str(tmp_path / "v.json")]) == 0
    assert "was calibrated on these val samples of labels, so its calibrated loss" in capsys.readouterr().err
    assert json.loads((tmp_path / "v.json").read_text())["calibrated_on_these_samples"] is True
    assert main(["evaluate", str(copy), *data, "--split", "all", "--json", str(tmp_path / "a.json")]) == 0
    printed, whole = capsys.readouterr(), json.loads((tmp_path / "a.json").read_text())
    assert "labels, all (train, val, test)" in printed.out
    assert "was calibrated on 20 of these 60 samples, the val split of labels, so its calibrated loss" in printed.err
    assert whole["calibrated_on_these_samples"] is True and whole["calibration_samples"] == 20
    assert main(["evaluate", str(copy), *data, "task.decode.beam=3"]) == 2
    assert "task.decode.beam is for models that generate text, but" in capsys.readouterr().err
    other = tmp_path / "other"
    command = ["calibrate", str(folders[0]), *data, "--split", "test", "--temperature-only", "--output", str(other)]
    assert main(command) == 0
    assert "--temperature-only has no effect" in capsys.readouterr().err
    assert main(["predict", str(other), str(tmp_path / "0.png")]) == 0
    assert "calibrated on 20 test samples" in capsys.readouterr().err
    page = tmp_path / "page.html"
    on_val = ["--split", "val", "--seconds", "0", "--attention", "0"]
    assert main(["report", str(copy), *data, "--output", str(page), *on_val]) == 0
    note = "was calibrated on these val samples of labels, so its calibrated loss"
    assert note in capsys.readouterr().err
    assert note in json.loads(page.with_suffix(".json").read_text())["header"]["note"] and note in page.read_text()
    assert main(["report", str(copy), *data, "--output", str(page), "--seconds", "0"]) == 0
    assert note not in capsys.readouterr().err and note not in page.read_text()
    found = json.loads(page.with_suffix(".json").read_text())["calibration"]
    assert found["calibrated"]["mean"] == pytest.approx(numbers["test/calibrated_ece"])
    assert found["mean"] == pytest.approx(numbers["test/ece"]) and found["temperatures"] == list(record.temperatures)
    assert "without and with calibration" in page.read_text()
