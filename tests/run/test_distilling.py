"""Distillation, from overrides to predictions."""

import csv
import json
import os
import shutil
import signal
from dataclasses import replace

import pytest
import timm
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

import vit
from tests.data.decoding.test_bit_depth import write_twelve_bits
from tests.inference.tiny_models import save_classifier
from tests.run.conftest import run, write_photos
from tests.run.test_resume import StopAfter
from tests.slow_values import quick_and_slow
from vit.bundle import load_bundle, save_bundle, save_ensemble
from vit.bundle.files import SourceError
from vit.data import Preprocessing
from vit.run.config.composing import ConfigError
from vit.run.parts.distillation import fingerprint, load_teacher, match_classes
from vit.tasks import Classification
from vit.tasks.distillation import Teacher

QUICK = ["precision=32-true", "logger=csv", "report=false", "recipe.batch_size=64"]
STUDENT = [*QUICK, "model.dim=16", "model.num_heads=1", "model.depth=1", "recipe.epochs=2"]
TOKEN = ["model=tiny", "data.patch_size=4", "distill=token", *STUDENT]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """Of digits, larger than its students and of another size of image."""
    overrides = ["model.depth=1", "data.image_size=12", "recipe.epochs=4", *QUICK]
    return vit.train([*overrides, f"run_dir={tmp_path_factory.mktemp('runs') / 'teacher'}"]).path


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return vit.train([*STUDENT, f"run_dir={tmp_path_factory.mktemp('runs') / 'alone'}"])


def rows(folder, name):
    """Of every epoch that has one: a start that is validated has no training loss."""
    return [float(row[name]) for row in csv.DictReader(open(folder / "metrics.csv")) if row[name]]


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_a_student_is_saved_without_its_teacher(teacher, alone, kind, tmp_path):
    overrides = [f"distill={kind}", f"distill.teacher={teacher}", f"run_dir={tmp_path / kind}"]
    student = vit.train([*STUDENT, *overrides])
    log = (student.path / "log.txt").read_text()
    assert f"teacher: {teacher}" in log and f"distill={kind}" in log
    assert rows(student.path, "train/loss") != rows(alone.path, "train/loss")
    one, other = (load_file(each.path / "model" / "model.safetensors") for each in (student, alone))
    assert {name: t.shape for name, t in one.items()} == {name: t.shape for name, t in other.items()}
    sizes = [(each.path / "checkpoints" / "last.ckpt").stat().st_size for each in (student, alone)]
    assert sizes[0] < sizes[1] + 5000
    checkpoint = torch.load(student.path / "checkpoints" / "last.ckpt", weights_only=True)
    assert all(name.startswith("model.") for name in checkpoint["state_dict"])
    assert checkpoint["config"]["distill"]["teacher"] == str(teacher)


def test_the_targets_are_the_outputs_of_the_teacher(teacher, tmp_path):
    """With alpha 1 labels have no weight: a student with the weights of its teacher has no gradient."""
    overrides = ["data.image_size=12", "recipe.augment=null", "recipe.optimizer.lr=0.0", "recipe.ema=null"]
    overrides += ["recipe.epochs=1", "distill=soft", "distill.alpha=1.0", f"distill.teacher={teacher}", *QUICK]
    same = vit.train([*overrides, f"init_from={teacher}", f"run_dir={tmp_path / 'same'}"])
    assert abs(rows(same.path, "train/loss")[0]) < 1e-5
    other = vit.train([*overrides, "model=micro", "model.depth=1", f"run_dir={tmp_path / 'other'}"])
    assert rows(other.path, "train/loss")[0] > 0.1


@pytest.mark.parametrize("target", quick_and_slow(["hard", "soft"], "hard"))
def test_a_token_learns_from_the_teacher(teacher, target, tmp_path):
    overrides = [f"distill.teacher={teacher}", f"distill.target={target}", f"run_dir={tmp_path / 'run'}"]
    student = vit.train([*TOKEN, *overrides])
    model = load_bundle(student.path).model
    assert model.config.dist_token and model.embed.dist_token.abs().max() > 1e-4  # it began at 1e-6
    assert model.head_dist.weight.shape == (10, 16) and not torch.equal(model.head_dist.weight, model.head.weight)
    config = json.loads((student.path / "model" / "config.json").read_text())
    assert config["architecture"] == "deit_base_distilled_patch16_224"
    theirs = timm.create_model(f"local-dir:{student.path / 'model'}", pretrained=True).eval()
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(theirs(images), model(images), rtol=0, atol=1e-5)
    predictions = vit.load(student.path).predict(student.path / "samples")
    assert len(predictions) == 8 and all(prediction.label in "0123456789" for prediction in predictions)
    overrides = ["data=digits", *QUICK, "recipe.epochs=1", f"init_from={student.path}", f"run_dir={tmp_path / 'more'}"]
    more = vit.train(overrides)
    assert load_bundle(more.path).model.config.dist_token and "0 new" in (more.path / "log.txt").read_text()


@pytest.mark.slow
def test_timm_s_distilled_student_and_a_timm_folder_as_teacher(tmp_path):
    """The teacher is a CNN that only timm has, and has the classes in another order, and one more."""
    torch.manual_seed(0)
    master, folder = timm.create_model("test_resnet", num_classes=11), tmp_path / "cnn"
    folder.mkdir()
    save_file(master.state_dict(), folder / "model.safetensors")
    names = [*"9876543210", "other"]
    cfg = {**master.pretrained_cfg, "input_size": [3, 32, 32], "num_classes": 11}
    cfg = {key: value for key, value in cfg.items() if value is not None and "hf_hub" not in key and key != "url"}
    config = {"architecture": "test_resnet", "num_classes": 11, "label_names": names, "pretrained_cfg": cfg}
    (folder / "config.json").write_text(json.dumps(config))
    overrides = ["data.image_size=16", "model=timm", "model.name=deit_tiny_distilled_patch16_224", "distill=token"]
    overrides += [f"distill.teacher={folder}", *QUICK, "debug=true"]
    student = vit.train([*overrides, f"run_dir={tmp_path / 'run'}"])
    assert "11 classes, distill=token" in (student.path / "log.txt").read_text()
    assert load_bundle(student.path).model.config.name == "deit_tiny_distilled_patch16_224"


def test_a_teacher_from_transformers(tmp_path):
    """Its names of classes, its mean and deviation and its logits, from the folder that it is saved in."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    labels = {number: f"class {name}" for number, name in enumerate("abc")}
    theirs = ViTForImageClassification(ViTConfig(**sizes, image_size=16, patch_size=8, id2label=labels)).eval()
    theirs.save_pretrained(tmp_path)
    ViTImageProcessor(size={"height": 16, "width": 16}, image_mean=[0.1, 0.2, 0.3]).save_pretrained(tmp_path)
    student = load_teacher(str(tmp_path))
    assert list(student.classes) == list(labels.values())
    assert student.preprocessing.size == (16, 16) and student.preprocessing.mean == (0.1, 0.2, 0.3)
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(student.model(images), theirs(images).logits, rtol=0, atol=1e-5)
    assert match_classes(student, ["class c", "class a"], "it") == [2, 0]
    with pytest.raises(ConfigError, match="does not state its class names"):
        match_classes(replace(student, classes=[]), ["class a"], "it")
    repeated = replace(student, classes=["crane", "cat", "crane"])
    assert match_classes(repeated, ["cat"], "it") == [1]
    with pytest.raises(ConfigError, match="has 2 outputs with the class name 'crane', 0, 2; give them different names"):
        match_classes(repeated, ["cat", "crane"], "it")


def test_an_ensemble_is_a_teacher_and_no_source_of_weights(teacher, tmp_path, monkeypatch):
    """Its members normalize pixels themselves, and the student's images are normalized already."""
    other = vit.train(["model.depth=1", "data.image_size=12", "recipe.epochs=1", *QUICK, f"run_dir={tmp_path / 'b'}"])
    ensemble = save_ensemble(tmp_path / "ensemble", [teacher, other.path])
    predictor = vit.load(ensemble)
    pixels = torch.randint(256, (2, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    student = predictor.preprocessing.replace(mean=(0.3,) * 3, std=(0.2,) * 3)
    with monkeypatch.context() as patch:
        patch.setattr("vit.exchange.hub.fetch", lambda name: ensemble)
        from_hub = load_teacher("hub:me/both")
    loaded = load_teacher(str(ensemble))
    assert all(torch.equal(each, from_hub.model.state_dict()[name]) for name, each in loaded.model.state_dict().items())
    found = Teacher(loaded.model, loaded.preprocessing, student, range(10))(student.normalize(pixels)).softmax(-1)
    expected = predictor.predict(list(pixels), top_k=10)
    for row, prediction in zip(found.tolist(), expected, strict=True):
        assert row == pytest.approx([dict(zip(prediction.names, prediction.probabilities, strict=True))[str(i)]
                                     for i in range(10)], abs=1e-5)
    distilled = vit.train([*STUDENT, "recipe.epochs=1", "distill=soft", f"distill.teacher={ensemble}",
                           f"run_dir={tmp_path / 'student'}"])
    assert "distill=soft" in (distilled.path / "log.txt").read_text()
    with pytest.raises(ConfigError, match="an ensemble has the weights of several models"):
        vit.train([*STUDENT, f"init_from={ensemble}", f"run_dir={tmp_path / 'start'}"])


def test_a_resumed_student_ends_with_the_same_bits(teacher, tmp_path, monkeypatch):
    overrides = [*TOKEN, f"distill.teacher={os.path.relpath(teacher)}", "model.dropout=0.1"]
    whole = vit.train([*overrides, f"run_dir={tmp_path / 'whole'}"])
    step, seen = Classification.training_step, []

    def counted(task, batch, batch_idx):
        seen.append(batch_idx)
        if len(seen) == 25:
            os.kill(os.getpid(), signal.SIGINT)
        return step(task, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(Classification, "training_step", counted)
        with pytest.raises(SystemExit):
            vit.train([*overrides, f"run_dir={tmp_path / 'run'}"])
    monkeypatch.chdir(tmp_path)
    resumed = vit.train(["resume=run"])
    one, other = (load_file(each / "model" / "model.safetensors") for each in (whole.path, tmp_path / "run"))
    assert resumed.metrics["steps"] == whole.metrics["steps"] and all(torch.equal(one[n], other[n]) for n in one)


def test_a_resumed_student_has_the_teacher_that_it_began_with(teacher, tmp_path, monkeypatch):
    """Another model may have been saved at the same path since."""
    other, folder = shutil.copytree(teacher / "model", tmp_path / "teacher"), tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        StopAfter(patch, 5)
        vit.train([*STUDENT, "distill=soft", f"distill.teacher={other}", f"run_dir={folder}"])
    recorded = yaml.safe_load((folder / "config.yaml").read_text())["teacher_sha256"]
    bundle = load_bundle(other)
    with torch.no_grad():
        bundle.model.head.bias += 1e-3
    save_bundle(other, bundle.model, bundle.classes, bundle.preprocessing)
    with pytest.raises(ConfigError, match=rf"teacher is not the teacher .*recorded {recorded[:16]}….*add allow_change"):
        vit.train([f"resume={folder}"])
    vit.train([f"resume={folder}", "allow_change=distill.teacher"])
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["teacher_sha256"] != recorded
    path = shutil.move(other, tmp_path / "elsewhere")  # the fingerprint is that of its content
    assert fingerprint(load_teacher(str(path)).sha256, bundle.preprocessing, range(10)) == config["teacher_sha256"]


def test_a_teacher_reads_deep_images_with_the_range_of_the_data(tmp_path):
    root = write_twelve_bits(tmp_path / "photos")  # 1500..2800
    model = vit.create_model("vit_tiny", image_size=16, patch_size=8, num_classes=2, depth=1)
    classes = sorted(each.name for each in root.iterdir())
    overrides = ["data=folder", f"data.root={root}", "data.image_size=16", "data.patch_size=8", "model=micro",
                 *QUICK[:-1], "recipe.epochs=1", "recipe.batch_size=4", "distill=soft"]
    for name, span in (("other", (0, 4095)), ("same", (1500, 2800)), ("unknown", "full")):
        bundle = save_bundle(tmp_path / name, model, classes, Preprocessing((16, 16), range=span))
        these = [*overrides, f"distill.teacher={bundle}", f"run_dir={tmp_path / 'runs' / name}"]
        if name == "other":
            message = (r"other has range=\[0,4095\] for images of more than 8 bits, but the data has \[1500,2800\]; "
                       r"set 'data.preprocessing.range=\[0.0,4095.0\]'")
            with pytest.raises(ConfigError, match=message):
                vit.train(these)
            vit.train([*these, "data.preprocessing.range=[0,4095]"])
        else:
            vit.train(these)
    photos = write_photos(tmp_path / "photos8", dict.fromkeys(classes, 12))  # to which the range does not apply
    vit.train([*overrides, f"data.root={photos}", f"distill.teacher={tmp_path / 'other'}", "debug=true",
               f"run_dir={tmp_path / 'runs' / 'eight'}"])


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(teacher, tmp_path):
    overrides = [*TOKEN, f"distill.teacher={teacher}", "recipe.batch_size=100", "recipe.augment=null"]
    alone = vit.train([*overrides, f"run_dir={tmp_path / 'alone'}"])
    two = ["trainer.devices=2", "trainer.accelerator=cpu", "strategy=ddp", "run_dir=two"]
    code, _, err = run([*overrides, *two], tmp_path)
    assert code == 0, err
    for name in ("train/loss", "val/loss"):
        assert rows(tmp_path / "two", name) == pytest.approx(rows(alone.path, name), rel=1e-5)


def test_a_teacher_classifies_images_with_one_label_each(tmp_path):
    with pytest.raises(SourceError, match="it is not an image classifier, but of kind text_classifier"):
        load_teacher(str(save_classifier(tmp_path / "texts")))
    model = vit.create_model("vit_tiny", image_size=8, patch_size=4, num_classes=2, depth=1)
    several = save_bundle(tmp_path / "several", model, ["a", "b"], Preprocessing((8, 8)), thresholds=[0.5, 0.5])
    with pytest.raises(SourceError, match="it predicts several labels per image, and distillation is for one"):
        load_teacher(str(several))


def test_invalid_combinations_are_errors(teacher, tmp_path):
    student = f"distill.teacher={teacher}"
    photos = write_photos(tmp_path / "photos", {"cat": 12, "dog": 12})
    overrides = ["data=folder", f"data.root={photos}", "data.image_size=16", "data.patch_size=8", "model=micro"]
    overrides += ["recipe.batch_size=8", "data.audit_seconds=1"]
    refused = {
        (*overrides, "distill=soft", student): r"has no class 'cat' \(2 of 2 classes of the data are missing\)",
        ("distill=soft",): "distill=soft needs a teacher: distill.teacher=RUN",
        ("distill=soft", "compare={a: ['distill.teacher=x'], b: ['seed=1']}"): "distill=soft needs a teacher",
        ("distill=soft", "distill.teacher=nowhere"): "distill.teacher=nowhere: no such file or folder",
        ("distill=soft", "distill.teacher=timm:resnet99"): r"timm:resnet99: timm [\d.]+ has no such model",
        ("distill=soft", student, "distill.tau=0"): "distill.tau=0 must be above 0",
        ("distill=token", student): "dist_token=true needs model.class_token=true, model.pool=class",
        ("distill=token", student, "model=tiny", "data.patch_size=4", "model.dist_token=false"): "needs a student",
        ("distill=token", student, "model=timm", "model.name=test_resnet", "data.image_size=32"):
            "needs a student with",
        ("data=corpus", "distill=soft", student): "distill=soft is for task=classification; masked_text has no teacher",
        ("distill=soft", student, "data.preprocessing.mode=L"): "reads RGB, but the data is read as L",
    }
    for number, (line, message) in enumerate(refused.items()):
        with pytest.raises(ConfigError, match=message):
            vit.train([*line, f"run_dir={tmp_path / str(number)}"])
