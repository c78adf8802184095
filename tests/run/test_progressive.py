"""`recipe.progressive`: small images and dropped patches at first, in whole runs."""

import pytest

import vit
from tests.run.conftest import run, table
from tests.run.test_resume import DIGITS, STEPS, assert_same, stopped_and_resumed
from vit.run import main
from vit.tasks import Classification
from vit.tasks.distillation import Teacher

OVERRIDES = [*DIGITS, "recipe.epochs=4", "data.patch_size=2", "model.dim=16", "model.num_heads=2",
             "recipe.progressive.image_size=[4,8]", "recipe.progressive.patch_drop=[0.5,0.0]",
             "recipe.progressive.until=0.75", "recipe.mixup={mixup: 0.3, cutmix: 1.0, prob: 0.8}"]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run, and (training, size of the images) of each batch that its model embedded."""
    seen, build = [], Classification.__init__

    def hooked(task, model, *arguments, **options):
        model.embed.register_forward_hook(
            lambda module, inputs, output: seen.append((module.training, tuple(inputs[0].shape[2:]))))
        build(task, model, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Classification, "__init__", hooked)
        return vit.train([*OVERRIDES, f"run_dir={tmp_path_factory.mktemp('whole')}"]).path, seen


@pytest.fixture(scope="module")
def whole(watched):
    return watched[0]


def test_each_epoch_has_the_next_stage_and_validation_full_size(watched):
    """Four stages of equal length: one stage per epoch."""
    done, seen = watched
    training = [size for trains, size in seen if trains]
    assert training == [(4, 4)] * STEPS + [(6, 6)] * 2 * STEPS + [(8, 8)] * STEPS
    assert {size for trains, size in seen if not trains} == {(8, 8)}
    rows = [row for row in table(done / "metrics.csv") if row["epoch"] != "0"]
    assert [float(row["image_size"]) for row in rows] == [4, 6, 6, 8]
    assert [float(row["patch_drop"]) for row in rows] == pytest.approx([1 / 2, 1 / 3, 1 / 6, 0])
    assert "progressive training: 4 stages, images of 4x4, 6x6, 8x8 pixels; patch_drop 0.5, 0.333, 0.167, 0; the last" \
           " from 75 % of the steps on" in (done / "log.txt").read_text()


@pytest.mark.parametrize("batches", [10, STEPS, STEPS + 6])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, whole, monkeypatch, batches):
    stopped_and_resumed(OVERRIDES, tmp_path, monkeypatch, batches)
    assert_same(tmp_path, whole)


@pytest.mark.slow
def test_two_processes_have_the_same_stages(tmp_path):
    overrides = [each for each in OVERRIDES if "mixup" not in each and "patch_drop" not in each]
    one = vit.train([*overrides, f"run_dir={tmp_path / 'one'}"])
    two = ["trainer.devices=2", "trainer.accelerator=cpu", "strategy=ddp", "run_dir=two"]
    code, _, err = run([*overrides, *two], tmp_path)
    assert code == 0, err
    first, second = (table(folder / "metrics.csv") for folder in (one.path, tmp_path / "two"))
    assert [row["image_size"] for row in first] == [row["image_size"] for row in second]
    losses = [[float(row["train/loss"]) for row in rows if row["epoch"] != "0"] for rows in (first, second)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_a_teacher_has_images_of_its_own_size(tmp_path, monkeypatch):
    teacher = vit.train([*DIGITS, "recipe.epochs=1", f"run_dir={tmp_path / 'teacher'}"]).path
    seen, prepare = [], Teacher.prepare

    def watched(teacher, images):
        seen.append((tuple(images.shape[2:]), tuple(prepare(teacher, images).shape[2:])))
        return prepare(teacher, images)

    monkeypatch.setattr(Teacher, "prepare", watched)
    vit.train([*OVERRIDES, "recipe.epochs=1", "distill=soft", f"distill.teacher={teacher}",
               f"run_dir={tmp_path / 'run'}"])
    assert set(seen) == {((4, 4), (8, 8)), ((6, 6), (8, 8)), ((8, 8), (8, 8))}


@pytest.mark.parametrize(("overrides", "text"), [
    (["recipe.progressive.image_size=[3,8]", "data.patch_size=2"],
     "recipe.progressive: image_size 3 is not divisible by patch_size 2; nearest valid: 2, 4"),
    (["recipe.progressive.image_size=[4,16]", "data.patch_size=2"],
     "recipe.progressive: image_size 16 is larger than the images of the run, which are 8x8; use 8 or less"),
    (["recipe.progressive.image_size=[4,8]", "data.patch_size=2", "model.positions=relative"],
     "recipe.progressive.image_size: positions=relative has a bias for each pair of patches"),
    (["recipe.progressive.patch_drop=[0.5,0.0]", "model.pool=sum"],
     "recipe.progressive.patch_drop: pool=sum depends on the number of patches"),
    (["recipe.progressive.patch_drop=[0.5,0.0]", "model.patch_dropout=0.2"],
     "recipe.progressive.patch_drop and model.patch_dropout=0.2 both drop patches"),
    (["recipe.progressive.patch_drop=[0.5,1.0]"],
     "recipe.progressive.patch_drop=[0.5, 1.0]: must be a list of 2 numbers, 0 or more, below 1, or null"),
    (["recipe.progressive.stages=9"], "recipe.progressive.stages=9: must be a whole number, 2 or more, 5 or less"),
    (["recipe.progressive.until=1"], "recipe.progressive.until=1: must be a number, above 0, below 1"),
    (["recipe.progressive.patch_drop=[0.5,0.0]", "model=timm", "model.name=test_vit",
      "data.image_size=16"],
     "are for the Vision Transformers of this project, not for timm models"),
    (["task=masked_image", "model=mae", "recipe=scratch", "recipe.progressive.image_size=[4,8]"],
     "recipe.progressive is for image classification, but this is task=masked_image"),
    (["data=spelled_numbers", "recipe.progressive.image_size=[4,8]"], "recipe.progressive"),
])
def test_what_cannot_be_trained_in_stages(overrides, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(overrides) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ") and printed.count("\n") == 1 and text in printed
    assert not list(tmp_path.rglob("*.ckpt"))
