"""`recipe.accumulate` and the number of processes change neither the gradient of a step nor the steps of an epoch."""

from types import SimpleNamespace

import pytest
import torch

import vit
from tests.run.conftest import table, write_photos
from tests.run.test_multi_label import write_shapes
from tests.run.test_resume import stopped_and_resumed
from vit.run.config.composing import compose, resolve
from vit.run.finish import batch_of_test
from vit.run.jobs import build_job
from vit.run.parts.devices import Devices
from vit.tasks import Distillation
from vit.training import seed_everything_once

QUICK = ["precision=32-true", "logger=csv", "report=false", "calibrate=none", "data.workers=0"]
IMAGES = [*QUICK, "data.patch_size=4", "model.dim=16", "model.num_heads=2", "model.depth=2", "recipe.mixup=null"]
TEXTS = [*QUICK, "model.dim=16", "model.num_heads=2", "model.depth=1", "model.dropout=0"]
PAIRS = [*TEXTS, "model.decoder_depth=1", "data.train=30", "data.val=4", "data.test=4"]
PHOTOS = [*IMAGES, "data.image_size=16", "model=micro", "recipe.crop=null", "data.audit_seconds=0"]

TASKS = {
    "classification": [*IMAGES, "recipe.batch_size=16"],
    "balanced": ["data=folder", "data.root={photos}", *PHOTOS, "data.balance=loss",
                 "recipe.batch_size=8", "recipe.drop_last=false"],  # steps of 6 or 7: some of 8 parts are empty
    "skipping": ["data=folder", "data.root={spoilt}", *PHOTOS, "data.on_bad_sample=skip", "recipe.batch_size=16",
                 "recipe.crop={{scale: null, ratio: null}}"],
    "repeats": ["data=folder", "data.root={photos}", *PHOTOS[:-2], "recipe.crop.scale=[0.2,1.0]",
                "data.audit_seconds=0", "recipe.repeats=3", "recipe.batch_size=8", "recipe.drop_last=false"],
    "bce": [*IMAGES, "recipe.batch_size=16", "recipe.loss.name=bce"],
    "distillation": [*IMAGES, "recipe.batch_size=16"],
    "multi-label": ["data=table", "data.path={shapes}", "data.label_separator='|'", *PHOTOS, "data.balance=loss",
                    "recipe.batch_size=16"],
    "masked images": ["task=masked_image", "model=mae", "recipe=mae", *IMAGES[:-1], "data.image_size=16",
                      "model.name=mae_tiny", "recipe.crop=null", "model.decoder_dim=16", "model.decoder_depth=1",
                      "model.decoder_num_heads=2", "recipe.batch_size=16"],
    "masked texts": ["data=corpus", "data.root={corpus}", *TEXTS, "model.attention_dropout=0",
                     "data.tokenizer.kind=byte", "recipe.batch_size=16", "recipe.drop_last=false"],
    "text classes": ["data=text_table", "data.path={table}", *TEXTS, "data.tokenizer.kind=byte", "data.balance=loss",
                     "recipe.batch_size=16", "recipe.drop_last=false"],
    "sequences": ["data=spelled_numbers", *PAIRS, "recipe.batch_size=10"],
    "sequences by tokens": ["data=spelled_numbers", *PAIRS, "recipe.batch_size=null", "recipe.batch_tokens=200"],
    "reading with CTC": ["data=digit_strips", "data.min_digits=1", *PAIRS, "recipe=image_to_text",
                         "recipe.augment=null", "recipe.batch_size=6"],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Small data sets of each kind. Of `spoilt` a file in three is cut, which only decoding finds."""
    folder = tmp_path_factory.mktemp("data")
    photos, spoilt = (write_photos(folder / name, {"cat": 30, "dog": 12}) for name in ("photos", "spoilt"))
    for path in sorted(spoilt.rglob("*.png"))[::3]:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    lines = [f"{'ab' * (i % 7 + 1)} {i}" for i in range(60)]
    (folder / "table.csv").write_text("text,label\n" + "".join(f"{t},{'yes' if i % 3 else 'no'}\n"
                                                               for i, t in enumerate(lines)))
    (folder / "corpus.txt").write_text("\n".join(lines))
    return {"photos": photos, "spoilt": spoilt, "shapes": write_shapes(folder / "several", 60),
            "table": folder / "table.csv", "corpus": folder / "corpus.txt"}


def made(overrides, accumulate, world):
    config = resolve(compose([*overrides, f"recipe.accumulate={accumulate}"])) | {"resumed": False, "overrides": []}
    seed_everything_once(0)
    return build_job(config, Devices("cpu", world, 1))


def mean_brightness(images):
    """The logits (B,10) of a teacher without weights."""
    return torch.stack([images.mean((1, 2, 3)) * k for k in range(10)], dim=1)


def gradients(job, accumulate, world, steps=2):
    """The gradient of the first optimizer steps, as accumulation and DDP make it: mean over micro-batches and ranks."""
    task, found = job.task, []
    loaders = [iter(job.batches._train(rank, world)) for rank in range(world)]
    for step in range(steps):
        task.zero_grad()
        for micro in range(accumulate):
            for rank in range(world):
                task._trainer = SimpleNamespace(accumulate_grad_batches=accumulate, world_size=world, global_step=1,
                                                global_rank=rank, log_every_n_steps=1000)
                batch = task.on_before_batch_transfer(next(loaders[rank]), 0)
                loss = task.training_step(batch, step * accumulate + micro)
                (loss / accumulate / world).backward()
        found.append(torch.cat([p.grad.flatten() for p in task.model.parameters() if p.grad is not None]))
    return found


ROUNDING = 4e-6  # float32 sums in another order: up to 1.03e-6 on the processors tried, and more with torch's CTC


@pytest.mark.parametrize("name", TASKS)
def test_every_division_of_a_step_has_the_same_gradient(name, data):
    overrides = [override.format(**data) for override in TASKS[name]]
    expected = count = None
    for accumulate in (1, 2, 4):
        for world in (1, 2):
            job = made(overrides, accumulate, world)
            if name == "distillation":
                job.task.distillation = Distillation(mean_brightness, tau=2.0)
            steps = len(job.batches._train(0, world)) / accumulate
            found = gradients(job, accumulate, world)
            if expected is None:
                expected, count = found, steps
                assert all(float(each.norm()) > 1e-3 for each in expected)
            assert steps == count
            for ours, theirs in zip(found, expected, strict=True):
                assert float((ours - theirs).abs().max() / theirs.abs().max()) < ROUNDING, (accumulate, world)


def test_a_filler_changes_neither_weights_nor_running_statistics(data):
    """The batch norms of a CNN would count a blank image as a sample."""
    job = made(["data=folder", f"data.root={data['photos']}", *QUICK, "data.image_size=32", "model=timm",
                "model.name=timm/test_resnet", "data.on_bad_sample=skip", "data.audit_seconds=0",
                "recipe.batch_size=16"], 1, 1)
    job.task._trainer = SimpleNamespace(accumulate_grad_batches=1, world_size=1, global_step=1, global_rank=0,
                                        log_every_n_steps=1000)
    loader = job.batches._train(0, 1)
    filler = loader.dataset.filler() | {"filler": True, "samples": torch.tensor(16)}
    before = {name: tensor.clone() for name, tensor in job.model.state_dict().items()}
    loss = job.task.training_step(filler, 0)
    loss.backward()
    assert loss == 0 and all((p.grad == 0).all() for p in job.model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in job.model.state_dict().items())
    assert job.model.training and all(module.training for module in job.model.modules())


@pytest.mark.parametrize(("batch_size", "accumulate", "world", "expected"), [
    (64, 1, 1, 64), (64, 4, 2, 8), (3, 4, 1, 1), (None, 1, 1, None),
])
def test_a_batch_of_the_test_is_one_of_a_device_in_training(batch_size, accumulate, world, expected):
    config = {"recipe": {"batch_size": batch_size, "accumulate": accumulate}}
    assert batch_of_test(SimpleNamespace(config=config, devices=Devices("cpu", world, 1))) == expected


RUN = [*IMAGES, "recipe.epochs=3", "recipe.batch_size=256", "model.dropout=0", "recipe.drop_last=true"]  # 4 steps each


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 2)])
def test_a_run_that_was_stopped_within_an_epoch_resumes_at_its_step_with_another_accumulation(
        tmp_path, monkeypatch, before, after):
    whole = table(vit.train([*RUN, f"run_dir={tmp_path / 'whole'}"]).path / "metrics.csv")
    folder, change = tmp_path / "run", [f"recipe.accumulate={after}", "allow_change=recipe.accumulate"]
    stopped_and_resumed([*RUN, f"recipe.accumulate={before}"], folder, monkeypatch, 6 * before, change)
    rows = table(folder / "metrics.csv")
    for name in ("step", "train/loss", "val/loss", "lr"):
        assert [float(row[name]) for row in rows] == pytest.approx([float(row[name]) for row in whole], rel=1e-4)


@pytest.mark.parametrize(("size", "steps"), [(128, [4, 11, 20]), (512, [4, 7, 9])])
def test_the_schedule_of_a_resumed_run_ends_with_its_last_step_also_with_another_batch_size(
        tmp_path, monkeypatch, size, steps):
    change = [f"recipe.batch_size={size}", "allow_change=recipe.batch_size", "callbacks.every_steps=1"]
    stopped_and_resumed(RUN, tmp_path, monkeypatch, 6, change)  # after 2 of the 4 steps of epoch 2
    rows = table(tmp_path / "metrics.csv")
    assert [int(row["step"]) for row in rows] == steps
    assert float(rows[-1]["lr"]) == 0 < float(rows[-2]["lr"])
