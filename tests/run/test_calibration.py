"""Calibration at the end of a run, on the command line, and in a resumed run."""

import csv
import io
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import vit
from tests.run.conftest import QUICK, SMALL, table, write_photos
from vit.bundle import load_bundle
from vit.cli import main
from vit.data import digits as digits_source
from vit.data.splits import split
from vit.evaluation.calibration import fitting, outputs
from vit.evaluation.calibration.fitting import Outputs
from vit.evaluation.classification import RunOptions
from vit.files.untrusted import read_bytes
from vit.run.config.composing import ConfigError
from vit.run.jobs.classification import ImageClassificationJob
from vit.run.parts.calibration import calibrate, calibrate_images

DIGITS = ["data=digits", *QUICK]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return vit.train([*DIGITS, f"run_dir={tmp_path_factory.mktemp('runs') / 'digits'}"])


def test_a_run_ends_with_a_calibrated_model(digits):
    found = load_bundle(digits.path).calibration
    assert found.samples == 180 and found.loss[1] < found.loss[0] and found.ece[1] < found.ece[0]
    assert found.unknown.name == "cosine" and set(found.sets) == {"aps", "raps"}
    metrics = digits.metrics
    assert metrics["test/calibrated_loss"] < metrics["test/loss"]
    assert 0.8 < metrics["test/set_coverage"] <= 1 and metrics["test/set_size"] > 0.5
    assert (digits.path / "reliability.png").is_file()
    assert "calibration on 180 validation samples" in (digits.path / "log.txt").read_text()


def test_the_calibration_does_not_depend_on_the_order_of_the_samples(digits):
    bundle, source = load_bundle(digits.path), digits_source()
    found = []
    for order in (1, -1):
        splits = {key: each.take(np.arange(len(each))[::order]) for key, each in source.splits.items()}
        options, source = RunOptions(64, "32-true", "error", "cpu", None), replace(source, splits=splits)
        stages = []
        found.append(calibrate_images(bundle.model, bundle.preprocessing, source, "full", options,
                                      progress=lambda *each, stages=stages: stages.append(each)))
        assert stages[2] == ("calibration", 180, 180) and stages[-1][0] == "class means" and len(stages) > 4
        assert stages[-1][1] == stages[-1][2]
    one, other = found
    assert one.temperature == pytest.approx(other.temperature, rel=1e-4)
    assert one.unknown.means == pytest.approx(np.array(other.unknown.means), abs=1e-4)
    for name in one.sets:
        assert one.sets[name].values == pytest.approx(other.sets[name].values, abs=1e-4)


def test_few_training_samples_of_many_are_the_same_ones_in_any_order(monkeypatch):
    monkeypatch.setattr(outputs, "SAMPLES", 50)
    split = digits_source().splits["train"]
    named = replace(split, names=[f"{i}.png" for i in range(len(split))])
    for classes, count in ((2, 50), (4, 80)):  # 20 of each class, but at least 50
        chosen = [outputs.sample_for_means(named.take(np.arange(len(split))[::order]), classes) for order in (1, -1)]
        assert list(chosen[0].names) == list(chosen[1].names)[::-1] and len(chosen[0]) == count


@pytest.mark.parametrize(("choice", "sizes"), [
    ("none", []), ("temperature", [(180, True)]), ("full", [(180, True), (50, False)])])
def test_a_part_of_the_training_samples_is_read_for_a_full_calibration_only(monkeypatch, choice, sizes):
    monkeypatch.setattr(outputs, "SAMPLES", 50)
    monkeypatch.setattr(outputs, "SAMPLES_PER_CLASS", 5)
    outputs_for, stages = RandomOutputs(width=4), []
    found = calibrate(digits_source(), choice, outputs_for, "val", lambda *each: stages.append(each))
    assert outputs_for.seen == sizes and (found is None) == (choice == "none")
    assert stages == [("calibration" if logits else "class means", count, count) for count, logits in sizes]


@pytest.mark.parametrize("width", [0, fitting.MAX_FEATURES // 10 + 1])
def test_no_training_samples_are_read_without_class_means(width):
    outputs_for = RandomOutputs(width)
    found = calibrate(digits_source(), "full", outputs_for, "val")
    assert outputs_for.seen == [(180, True)] and found.unknown.name == "energy"


def test_logits_of_a_limited_number_of_validation_samples_are_kept(monkeypatch):
    monkeypatch.setattr(outputs, "LOGITS", 1000)
    outputs_for = RandomOutputs(width=0)
    assert calibrate(digits_source(), "temperature", outputs_for, "val").samples == 100
    assert outputs_for.seen == [(100, True)]


class RandomOutputs:
    """Random logits of ten classes and features of samples; `seen` are the numbers of samples, and whether the logits
    were requested.
    """

    def __init__(self, width: int):
        self.width, self.seen = width, []

    def __call__(self, split, with_logits, progress):
        self.seen.append((len(split), with_logits))
        if progress:
            progress(len(split))
        count, numbers = len(split), torch.Generator().manual_seed(0)
        logits = torch.rand(count, 10 if with_logits else 0, generator=numbers)
        features = torch.rand(count, self.width, generator=numbers) if self.width else None
        return Outputs(logits, torch.as_tensor(split.labels), torch.rand(count, generator=numbers), features)


def test_the_command_prints_calibrated_outputs(digits, capfdbinary, tmp_path):
    samples = str(digits.path / "samples")
    assert main(["predict", str(digits.path), samples, "--set", "0.9", "--abstain", "0.3"]) == 0
    printed = capfdbinary.readouterr()
    rows = list(csv.DictReader(io.StringIO(printed.out.decode())))
    assert list(rows[0]) == ["file", "label", "probability", "calibrated", "unknown", "p_value", "set", "unsure",
                             "error"]
    assert b"calibrated on 180 validation samples" in printed.err
    predictions = vit.load(digits.path).predict(samples, set=0.9, abstain=0.3)
    assert [row["label"] for row in rows] == [prediction.label for prediction in predictions]
    assert [row["set"] for row in rows] == ["|".join(prediction.set) for prediction in predictions]
    file = tmp_path / "rows.json"
    assert main(["predict", str(digits.path), samples, "--set", "0.9", "-f", "json", "-o", str(file)]) == 0
    assert [row["set"] for row in json.loads(file.read_text())] == [list(prediction.set) for prediction in predictions]
    assert main(["predict", str(digits.path), samples, "--set", "0.999"]) == 2
    assert b"needs 999 validation samples" in capfdbinary.readouterr().err


def test_predictions_of_the_test_are_calibrated_and_evaluated_again(digits, tmp_path, capsys):
    assert main(["evaluate", str(digits.path), "--json", str(tmp_path / "again.json")]) == 0
    again, printed = json.loads((tmp_path / "again.json").read_text()), capsys.readouterr().out
    for name in ("ece", "calibrated_ece", "calibrated_loss", "set_coverage", "set_size"):
        assert again[f"test/{name}"] == digits.metrics[f"test/{name}"]
    assert "coverage of sets at 0.9" in printed
    losses = [float(row["loss"]) for row in table(digits.path / "predictions.csv")]
    assert sum(losses) / len(losses) == pytest.approx(digits.metrics["test/calibrated_loss"], abs=1e-5)


def test_a_resumed_run_has_the_same_bundle(digits, tmp_path):
    """Resumed from the checkpoint of the last step, as after a kill while the model was being saved."""
    stopped = shutil.copytree(digits.path, tmp_path / "stopped")
    (stopped / "metrics.json").unlink()
    shutil.rmtree(stopped / "model")
    again = vit.train([f"resume={stopped}"])
    for name in ("config.json", "model.safetensors"):
        assert (again.path / "model" / name).read_bytes() == (digits.path / "model" / name).read_bytes()


def test_none_leaves_the_calibration_out_and_the_command_adds_it_to_a_copy(digits, tmp_path, capsys):
    run = vit.train([*DIGITS, "calibrate=none", f"run_dir={tmp_path / 'run'}"])
    assert load_bundle(run.path).calibration is None and "test/calibrated_loss" not in run.metrics
    before = (run.path / "model" / "config.json").read_bytes()
    copy = tmp_path / "calibrated"
    assert main(["calibrate", str(run.path), "--output", str(copy)]) == 0
    assert "from 180 val samples of digits" in capsys.readouterr().out
    assert load_bundle(copy).calibration == load_bundle(digits.path).calibration
    assert (run.path / "model" / "config.json").read_bytes() == before
    assert main(["calibrate", str(run.path), "--output", str(copy)]) == 1
    assert "exists and is not overwritten" in capsys.readouterr().err
    assert main(["calibrate", str(run.path), "--output", str(tmp_path / "b"), "--split", "train"]) == 2
    assert "more confident about samples that it was trained on" in capsys.readouterr().err
    assert main(["calibrate", str(run.path), "--output", str(tmp_path / "b"), "--split", "all"]) == 2
    assert "class means" in (error := capsys.readouterr().err) and "choose one split: val, test" in error


def test_an_unknown_choice_is_refused_before_the_data_is_read():
    with pytest.raises(ConfigError, match="calibrate=temprature: must be one of full, temperature, none.*temperature"):
        vit.train(["data=digits", "calibrate=temprature"])


def test_data_with_other_classes_is_refused(digits, tmp_path, capsys):
    photos = write_photos(tmp_path / "photos", {"cat": 12, "dog": 12})
    output = tmp_path / "calibrated"
    assert main(["calibrate", str(digits.path), "data=folder", f"data.root={photos}", "--output", str(output)]) == 1
    assert "the model has no class 'cat'" in capsys.readouterr().err and not output.exists()


def test_few_photos_are_calibrated_with_a_warning(photos, tmp_path):
    run = vit.train(["data=folder", f"data.root={photos}", *QUICK, *SMALL, f"run_dir={tmp_path / 'run'}"])
    assert load_bundle(run.path).calibration.samples < 9
    assert "too few for prediction sets at 90 %, which need 9" in (run.path / "log.txt").read_text()
    assert "test/set_coverage" not in run.metrics


def test_models_of_other_kinds_are_refused(tmp_path, capsys):
    from tests.inference.tiny_models import save_translator

    translator = save_translator(tmp_path / "translator")
    assert main(["calibrate", str(translator), "data=digits", "--output", str(tmp_path / "copy")]) == 1
    assert "generates text; calibration is for classifiers" in capsys.readouterr().err
    assert main(["predict", str(translator), str(tmp_path / "x.txt"), "--set", "0.9"]) == 2
    assert "--set is for classifiers" in capsys.readouterr().err


@pytest.mark.parametrize("more", [pytest.param([], marks=pytest.mark.slow), ["recipe.crop=null"]])
def test_calibration_reads_no_image_again_that_is_cached(tmp_path, monkeypatch, more):
    """The same calibration with and without a cache, which holds the images of training and of validation."""
    photos = write_photos(tmp_path / "photos", {"red": 24, "green": 24, "blue": 24})
    reads, during = [], {}
    monkeypatch.setattr(split, "read_bytes", lambda path: reads.append(path) or read_bytes(path))
    whole = ImageClassificationJob.calibrate

    def calibrate(job, *arguments):
        before = len(reads)
        found = whole(job, *arguments)
        during[job.config["data"]["cache"]] = len(reads) - before
        return found

    monkeypatch.setattr(ImageClassificationJob, "calibrate", calibrate)
    found = {}
    for cache in ("auto", "none"):
        run = vit.train(["data=folder", f"data.root={photos}", *SMALL, *QUICK, f"data.cache={cache}", "calibrate=full",
                         "trainer.accelerator=cpu", *more, f"run_dir={tmp_path / cache}"])
        found[cache] = load_bundle(run.path).calibration.to_dict()
    sizes = [len((run.path / "splits" / f"{key}.tsv").read_text().splitlines()) for key in ("train", "val")]
    assert during == {"auto": 0, "none": sum(sizes)}
    assert found["auto"] == found["none"] and found["auto"]["unknown"]
