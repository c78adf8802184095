"""Several labels per image: a run, its metrics computed independently, and its model in other libraries."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet
import pytest
import torch
import yaml
from PIL import Image
from sklearn.metrics import average_precision_score, f1_score

import vit
from tests.run.conftest import QUICK, run
from tests.run.test_resume import assert_same, stopped_and_resumed
from vit.bundle import load_bundle, save_bundle
from vit.bundle.label_calibration import calibrated_thresholds
from vit.cli import main as vit_main
from vit.data import DataError, Preprocessing
from vit.evaluation import best_thresholds, classification, evaluate_multi_label
from vit.evaluation.calibration.labels import fit_label_calibration
from vit.evaluation.calibration.outputs import label_outputs
from vit.evaluation.classification import RunOptions
from vit.exchange.read import assigns_several_labels
from vit.inference import forward
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.jobs import build_job
from vit.run.jobs.multi_label import MIN_IMAGES, MultiLabelJob
from vit.run.parts.data_source import build_source
from vit.run.parts.devices import find_devices
from vit.run.records.splits import read_record

NAMES = ("red", "green", "blue")
SMALL = ["data.image_size=16", "data.patch_size=8", "model=micro", "recipe.batch_size=8", "data.audit_seconds=1",
         "recipe.crop=null", "recipe.augment.hflip=null", "recipe.augment.policy=null"]


def write_shapes(root, count=90, chances=(0.5, 0.3, 0.25)):
    """PNGs with a bright square per label, each at its position and in its colour, and labels.csv beside them."""
    rng = np.random.default_rng(0)
    (root / "shapes").mkdir(parents=True)
    rows = []
    for i in range(count):
        has = rng.random(3) < chances
        pixels = rng.integers(0, 60, (16, 16, 3))
        for c, (y, x) in enumerate([(0, 0), (0, 8), (8, 0)]):
            pixels[y : y + 8, x : x + 8, c] += 170 * has[c]
        Image.fromarray(pixels.astype(np.uint8)).save(root / "shapes" / f"{i:03}.png")
        rows.append([f"shapes/{i:03}.png", "|".join(np.array(NAMES)[has])])
    with open(root / "labels.csv", "w", newline="") as file:
        csv.writer(file).writerows([["file", "label"], *rows])
    return root / "labels.csv"


def overrides(path, *more):
    return [*QUICK, *SMALL, "data=table", f"data.path={path}", "data.label_separator='|'", *more]


@pytest.fixture(scope="module", autouse=True)
def blank_pictures():
    """Figures are drawn."""


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return write_shapes(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def shapes_run(shapes, tmp_path_factory):
    """A run by the command line."""
    folder = tmp_path_factory.mktemp("run")
    chosen = overrides(shapes, "recipe.epochs=8", "data.fractions=[0.6,0.2,0.2]", "data.balance=sampler", "run_dir=run")
    code, out, err = run(chosen, folder)
    assert code == 0, err
    assert "labels: " in out and "binary cross entropy per class, monitored: val/map" in out and "test mAP" in out
    return folder / "run"


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def hot(cells):
    return np.array([[name in cell.split("|") for name in sorted(NAMES)] for cell in cells])


def test_the_run_learnt_and_left_its_files(shapes_run):
    metrics = json.loads((shapes_run / "metrics.json").read_text())
    assert metrics["test/map"] > 0.8 and metrics["val/map"] > 0.8
    assert {"test/map", "test/f1", "test/f1_micro", "test/exact_match", "test/loss"} <= metrics.keys()
    config = yaml.safe_load((shapes_run / "config.yaml").read_text())
    assert config["classes"] == sorted(NAMES) and config["recipe"]["loss"]["name"] == "bce"
    assert config["callbacks"]["monitor"] == "val/map"
    for name in ("labels.png", "curves.png", "mistakes.png"):
        assert min(Image.open(shapes_run / name).size) > 100
    listed = [line.split("\t")[:2] for line in (shapes_run / "splits/train.tsv").read_text().splitlines()]
    assert {label for _, label in listed} >= {"", "red", "green", "green|red"}
    counts = json.loads((shapes_run / "audit.json").read_text())["counts"]["train"]
    assert counts == {name: sum(name in label.split("|") for _, label in listed) for name in sorted(NAMES)}
    rows = read(shapes_run / "metrics.csv")
    assert metrics["val/map"] == max(float(row["val/map"]) for row in rows)


def test_a_checkpoint_assigns_several_labels_too(shapes_run):
    """It was loaded as a classifier of one label per image. Its thresholds are not chosen yet."""
    with pytest.warns(UserWarning, match="not calibrated, and 0.5 is the threshold of each label"):
        predictor = vit.load(shapes_run / "checkpoints" / "best.ckpt")
    bundle = load_bundle(shapes_run)
    assert predictor.thresholds.tolist() == [0.5] * 3 and predictor.classes == bundle.classes
    photo = next((shapes_run / "samples").iterdir())
    x = bundle.preprocessing.normalize(bundle.preprocessing.image(photo)[None])
    with torch.no_grad():
        expected = dict(zip(bundle.classes, bundle.model(x).sigmoid()[0].tolist(), strict=True))
    found = predictor.predict([photo], top_k=3)[0]
    assert dict(zip(found.names, found.probabilities, strict=True)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("cells", ["lists", "columns"])
def test_a_checkpoint_with_another_monitor_assigns_several_labels(shapes, tmp_path, cells):
    """Cells that are lists, and columns of 0 and 1, need no `data.label_separator`."""
    rows = [(row["file"], row["label"].split("|") if row["label"] else []) for row in read(shapes)]
    table = shapes.parent / f"{cells}.jsonl"
    table.write_text("".join(json.dumps({"file": file, "label": names} if cells == "lists" else {
        "file": file, **{name: int(name in names) for name in NAMES}}) + "\n" for file, names in rows))
    columns = [] if cells == "lists" else ["data.label=[red,green,blue]"]
    folder = vit.train([*QUICK, *SMALL, "data=table", f"data.path={table}", *columns, "callbacks.monitor=val/loss",
                        f"run_dir={tmp_path / 'run'}"]).path
    for checkpoint in ("best.ckpt", "last.ckpt"):
        assert vit.load(folder / "checkpoints" / checkpoint).thresholds.tolist() == [0.5] * 3
    content = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert content["config"].pop("multi_label") is True  # which earlier versions did not record
    assert assigns_several_labels(content["config"]) is (cells == "columns")


def test_the_numbers_follow_from_the_predictions(shapes_run):
    metrics, rows = json.loads((shapes_run / "metrics.json").read_text()), read(shapes_run / "predictions.csv")
    truth, predicted = hot([row["true"] for row in rows]), hot([row["labels"] for row in rows])
    p = np.array([[float(row[f"p({name})"]) for name in sorted(NAMES)] for row in rows])
    thresholds = json.loads((shapes_run / "model/config.json").read_text())["vit"]["thresholds"]
    assert np.array_equal(p >= thresholds, predicted) and 9 <= len(rows) <= 27
    assert metrics["test/map"] == pytest.approx(average_precision_score(truth, p), abs=1e-9)
    assert metrics["test/f1"] == pytest.approx(f1_score(truth, predicted, average="macro"), abs=1e-9)
    assert metrics["test/exact_match"] == np.mean([int(row["right"]) for row in rows])
    listed = dict(line.split("\t")[:2] for line in (shapes_run / "splits/test.tsv").read_text().splitlines())
    assert [listed[row["file"]] for row in rows] == [row["true"] for row in rows]


def test_thresholds_are_the_best_of_validation(shapes_run, shapes, tmp_path):
    """No other threshold of a label has a higher F1 on the validation images, by the predictor."""
    listed = [line.split("\t")[:2] for line in (shapes_run / "splits/val.tsv").read_text().splitlines()]
    predictor = vit.load(shapes_run)
    found = predictor.predict([shapes.parent / name for name, _ in listed], top_k=3)
    p = np.array([[dict(zip(a.names, a.probabilities, strict=True))[n] for n in predictor.classes] for a in found])
    truth = hot([label for _, label in listed])
    metrics = json.loads((shapes_run / "metrics.json").read_text())
    assert metrics["val/map"] == pytest.approx(average_precision_score(truth, p), abs=1e-6)  # torchmetrics', of the run
    for c, threshold in enumerate(predictor.bundle.thresholds):
        every = [f1_score(truth[:, c], p[:, c] >= t, zero_division=0) for t in [0, *p[:, c], 1]]
        assert f1_score(truth[:, c], p[:, c] >= threshold) == max(every)


def test_labels_on_too_few_validation_images_are_named(caplog, monkeypatch):
    monkeypatch.setattr("vit.run.jobs.multi_label.log.propagate", True)
    counts = (0, 1, MIN_IMAGES - 1, MIN_IMAGES, 9)
    truth = torch.tensor([[row < count for count in counts] for row in range(10)])
    outputs = SimpleNamespace(truth=truth, probabilities=truth * 0.5 + 0.2)
    found = MultiLabelJob.thresholds(SimpleNamespace(source=SimpleNamespace(classes=list("abcde"))), outputs)
    assert found[0] == 0.5 and all(0.2 < threshold <= 0.7 for threshold in found[1:])
    messages = dict.fromkeys(record.getMessage() for record in caplog.records)
    assert [*messages] == ["no validation image has 'a': threshold one half",
                           "fewer than 5 validation images have 'b', 'c': a threshold from so few is unreliable"]


def test_evaluate_gives_the_numbers_again_to_the_last_digit(shapes_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert vit_main(["evaluate", str(shapes_run), "--json", "again.json", "--output", "found"]) == 0
    again, metrics = json.loads(Path("again.json").read_text()), json.loads((shapes_run / "metrics.json").read_text())
    for name in ("map", "f1", "f1_micro", "exact_match", "loss"):
        assert again[f"test/{name}"] == metrics[f"test/{name}"]
    assert Path("found/predictions.csv").read_bytes() == (shapes_run / "predictions.csv").read_bytes()
    assert [score["name"] for score in again["classes"]] == sorted(NAMES)
    assert all(score["threshold"] > 0 for score in again["classes"])
    assert "threshold" in capsys.readouterr().out


def test_predict_names_what_is_above_its_threshold(shapes_run, shapes, tmp_path, capsysbinary):
    predictor, photos = vit.load(shapes_run), sorted((shapes.parent / "shapes").iterdir())
    every = {a.source: dict(zip(a.names, a.probabilities, strict=True)) for a in predictor.predict(photos, top_k=3)}
    expected = {
        source: {n: q for n, q in found.items() if q >= predictor.bundle.thresholds[predictor.classes.index(n)]}
        for source, found in every.items()
    }
    assert {len(found) for found in expected.values()} >= {0, 1, 2}
    model = str(shapes_run)
    for kind in ("json", "parquet"):
        file = str(tmp_path / f"predictions.{kind}")
        assert vit_main(["predict", model, str(shapes.parent / "shapes"), "--format", kind, "-o", file]) == 0
        rows = json.loads(Path(file).read_text()) if kind == "json" else pyarrow.parquet.read_table(file).to_pylist()
        assert {r["file"]: dict(zip(r["labels"], r["probabilities"], strict=True)) for r in rows} == expected
        assert all(r["probabilities"] == sorted(r["probabilities"], reverse=True) for r in rows)
    capsysbinary.readouterr()
    assert vit_main(["predict", model, str(shapes.parent / "shapes")]) == 0
    rows = list(csv.DictReader(capsysbinary.readouterr().out.decode().splitlines()))
    assert [r["labels"] for r in rows] == ["|".join(expected[r["file"]]) for r in rows]
    assert vit_main(["predict", model, str(photos[0]), "--top-k", "2"]) == 0
    (row,) = csv.DictReader(capsysbinary.readouterr().out.decode().splitlines())
    assert float(row["probability"]) >= float(row["probability_2"]) and row["label"] != row["label_2"]


def test_transformers_and_timm_give_the_same_probabilities_without_calibration(shapes_run, shapes):
    import timm
    from transformers import pipeline

    picture = Image.open(shapes.parent / "shapes" / "000.png").convert("RGB")
    predictor = vit.load(shapes_run)
    ours, temperatures = predictor.predict(picture, top_k=3)[0], predictor.bundle.calibration.temperatures
    logits = {name: np.log(p / (1 - p)) * temperatures[predictor.classes.index(name)]
              for name, p in zip(ours.names, ours.probabilities, strict=True)}
    theirs = pipeline("image-classification", model=str(shapes_run / "model"))(picture)
    found = {prediction["label"]: prediction["score"] for prediction in theirs}
    assert found == pytest.approx({name: 1 / (1 + np.exp(-logit)) for name, logit in logits.items()}, abs=2e-3)
    model = timm.create_model(f"local-dir:{shapes_run / 'model'}", pretrained=True).eval()
    bundle = vit.load(shapes_run).bundle
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(images), bundle.model(images), rtol=1e-5, atol=1e-5)


def test_mixup_smoothing_and_balanced_loss(shapes, tmp_path):
    recipe = ["data.balance=loss", "recipe.epochs=1", "recipe.loss.name=bce", "recipe.loss.label_smoothing=0.05",
              f"run_dir={tmp_path / 'run'}"]
    done = vit.train(overrides(shapes, *recipe))
    assert yaml.safe_load((done.path / "config.yaml").read_text())["recipe"]["mixup"] is not None
    assert 0 < done.metrics["test/loss"] < 5


def test_a_threshold_of_mixed_targets_has_no_effect(shapes, tmp_path, caplog):
    for recipe, reported in ((["recipe=deit3", "recipe.epochs=1"], True), (["recipe.loss.target_threshold=0.5"], True),
                             ([], False)):
        config = resolve(compose(given := [*overrides(shapes, *recipe), "recipe.repeats=1"])) | {"overrides": given}
        caplog.clear()
        job = build_job(config, find_devices(config["trainer"]))
        assert ("has no effect on images with several labels" in caplog.text) is reported
        assert job.config["recipe"]["loss"].get("target_threshold") is None


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        (["recipe.loss.name=cross_entropy"], ConfigError, "recipe.loss.name=cross_entropy: .* need bce"),
        (["callbacks.monitor=val/accuracy"], ConfigError, "callbacks.monitor=val/accuracy: must be one of val/loss, "),
        (["data.label_separator=';'"], DataError, r"label_separator=';' does not occur in the 90 labels,.* mean '\|'"),
    ],
)
def test_errors_are_raised_before_training(shapes, tmp_path, changed, error, message):
    with pytest.raises(error, match=message):
        vit.train([*overrides(shapes, f"run_dir={tmp_path / 'run'}"), *changed])
    assert not (tmp_path / "run").exists()


def test_validation_without_labels_is_an_error_before_training(shapes, tmp_path):
    rows = [[str(shapes.parent / row["file"]), row["label"], "train"] for row in read(shapes)]
    for row in [row for row in rows if not row[1]][:3]:
        row[2] = "val"
    with open(tmp_path / "labels.csv", "w", newline="") as file:
        csv.writer(file).writerows([["file", "label", "split"], *rows])
    with pytest.raises(DataError, match="none of its 3 validation images has a label"):
        vit.train(overrides(tmp_path / "labels.csv", "data.split=split", f"run_dir={tmp_path / 'run'}"))


@pytest.mark.slow
def test_two_processes_have_the_results_of_one(shapes, tmp_path):
    """Validation sums up over processes, padding left out."""
    chosen = overrides(shapes, "recipe.epochs=2", "data.fractions=[0.7,0.21,0.09]", "recipe.mixup=null",
                       "recipe.ema=null",
                       "recipe.augment.erase=null")
    alone = vit.train([*chosen, f"run_dir={tmp_path / 'alone'}"])
    two = ["strategy=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "run_dir=two"]
    code, _, err = run([*chosen, *two], tmp_path)
    assert code == 0, err
    one, two = read(alone.path / "metrics.csv"), read(tmp_path / "two" / "metrics.csv")
    for name in ("val/map", "val/f1", "val/loss"):
        assert [float(row[name]) for row in two] == pytest.approx([float(row[name]) for row in one], abs=1e-4)
    assert json.loads((tmp_path / "two/metrics.json").read_text())["test/map"] == pytest.approx(
        alone.metrics["test/map"], abs=1e-4)


def test_a_stopped_run_is_resumed_and_ends_with_the_same_bits(shapes, tmp_path, monkeypatch):
    chosen = overrides(shapes, "recipe.epochs=2", "data.balance=sampler")
    whole = vit.train([*chosen, f"run_dir={tmp_path / 'whole'}"])
    assert_same(whole.path, stopped_and_resumed(chosen, tmp_path / "stopped", monkeypatch, 13).path)


@pytest.mark.parametrize("choice", ["full", "none"])
def test_the_model_runs_once_over_the_validation_images(shapes, tmp_path, monkeypatch, choice):
    """Thresholds and calibration are those of two passes."""
    seen = []

    def counted(model, preprocessing, images, precision):
        seen.append(len(images))
        return forward(model, preprocessing, images, precision)

    monkeypatch.setattr(classification, "forward", counted)
    trained = vit.train(overrides(shapes, f"calibrate={choice}", "trainer.accelerator=cpu", f"run_dir={tmp_path}/run"))
    val, test = (len((trained.path / f"splits/{key}.tsv").read_text().splitlines()) for key in ("val", "test"))
    assert sum(seen) == val + test
    config = yaml.safe_load((trained.path / "config.yaml").read_text())
    source, bundle = build_source(config["data"], read_record(trained.path)), load_bundle(trained.path)
    options = RunOptions(8, "32-true", "error", "cpu", None)
    again = evaluate_multi_label(bundle.model, bundle.preprocessing, source.splits["val"], bundle.classes, [0.5] * 3, 8,
                                 device="cpu")
    thresholds = best_thresholds(again.truth, again.probabilities)
    if choice == "full":
        found = label_outputs(bundle.model, bundle.preprocessing, source.splits["val"], bundle.classes, options)
        assert bundle.calibration == fit_label_calibration(bundle.classes, found.logits, found.truth)
        thresholds = calibrated_thresholds(thresholds, bundle.calibration)
    assert list(bundle.thresholds) == list(thresholds)


@pytest.mark.parametrize("way", ["auto", "fit"])
def test_the_new_head_of_several_labels_is_random(shapes, tmp_path, caplog, way):
    network = vit.create_model("vit_micro", image_size=16, patch_size=8, num_classes=2)
    save_bundle(tmp_path / "model", network, ["a", "b"], Preprocessing((16, 16)))
    chosen = overrides(shapes, f"init_from={tmp_path / 'model'}", f"finetune.head_init={way}")
    config = resolve(compose(chosen)) | {"overrides": chosen}
    if way == "fit":
        with pytest.raises(ConfigError, match="finetune.head_init=fit is for image classifiers with a single"):
            build_job(config, find_devices(config["trainer"]))
        return
    with caplog.at_level("INFO", "vit"):
        build_job(config, find_devices(config["trainer"]))
    assert "2 new" in caplog.text and "logistic regression" not in caplog.text
