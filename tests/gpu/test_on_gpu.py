"""Training and inference on a CUDA GPU: `CUDA_VISIBLE_DEVICES=0 python -m pytest -m gpu`.

All other tests have no GPU, and the default suite leaves these out.
"""

import copy
import csv

import pytest
import torch
import torch.nn.functional as F

import vit
from tests.run.test_resume import assert_same, stopped_and_resumed
from vit.benchmarking.memory import memory_of
from vit.cli import main
from vit.data import (
    Augment,
    ColorJitter,
    HorizontalFlip,
    PadCrop,
    RandAugment,
    RandomAffine,
    RandomChannelPermutation,
    RandomElastic,
    RandomErasing,
    RandomLineAffine,
    RandomStrokeWidth,
    ThreeAugment,
    TrivialAugment,
    VerticalFlip,
)
from vit.nn.cpu.attention import scaled_dot_product_attention
from vit.tasks import Task

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def usual_mode():
    yield
    torch.cuda.set_sync_debug_mode("default")


BRIEF = ["recipe.epochs=2", "report=false", "calibrate=none", "logger=csv", "trainer.accelerator=gpu"]
STRONG = ["augment=randaugment", "recipe.mixup={mixup: 0.2, cutmix: 1.0, prob: 0.5}"]
STEPS = [
    HorizontalFlip(), VerticalFlip(), PadCrop(4), PadCrop(3, reflect=True), ColorJitter(), RandAugment(2, 9, std=0.5),
    TrivialAugment(), ThreeAugment(), RandomErasing(p=0.5), RandomAffine(), RandomChannelPermutation(),
    RandomElastic(), RandomLineAffine(), RandomStrokeWidth(),
]


def train(folder, *overrides):
    return vit.train([f"run_dir={folder}", *BRIEF, *overrides])


def losses(folder):
    return [float(row["train/loss"]) for row in csv.DictReader((folder / "metrics.csv").open())]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
@pytest.mark.parametrize("channels", [1, 3])
def test_augmentation_has_the_pixels_of_a_cpu_without_waiting(step, channels):
    coarse = torch.randint(0, 256, (64, channels, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images, index = coarse.repeat_interleave(4, 2).repeat_interleave(4, 3), torch.arange(64)
    expected = Augment([step], seed=5)(images, index, index * 0 + 3)
    on_gpu, augment = images.cuda(), Augment([copy.deepcopy(step)], seed=5).cuda()
    augment(on_gpu, index, index * 0 + 3)  # the first call may load a library
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = augment(on_gpu, index, index * 0 + 3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    away = (found.cpu().int() - expected.int()).abs()
    assert away.max() <= 1 and (away > 0).float().mean() < 0.01  # rounding of the resampled pixels


def test_a_run_has_the_losses_of_a_cpu(tmp_path):
    train(tmp_path / "gpu", "precision=32-true", *STRONG)
    train(tmp_path / "cpu", "precision=32-true", *STRONG, "trainer.accelerator=cpu")
    assert losses(tmp_path / "gpu") == pytest.approx(losses(tmp_path / "cpu"), rel=2e-3)


@pytest.mark.parametrize("cache", ["memory", "device"])
def test_a_step_does_not_wait_for_the_gpu(tmp_path, monkeypatch, cache):
    """From the augmentation to the update; what is logged is read in other steps."""
    training_step, end, steps = Task.training_step, Task.lr_scheduler_step, []

    def strict(task, batch, batch_idx):
        if task.global_step > 12:
            steps.append(task.global_step)
            torch.cuda.set_sync_debug_mode("error")
        return training_step(task, batch, batch_idx)

    def free(task, scheduler, metric):
        torch.cuda.set_sync_debug_mode("default")
        end(task, scheduler, metric)

    monkeypatch.setattr(Task, "training_step", strict)
    monkeypatch.setattr(Task, "lr_scheduler_step", free)
    train(tmp_path / "run", *STRONG, f"data.cache={cache}", "trainer.log_every_n_steps=1000")
    assert len(steps) == 25


def test_images_on_the_device_give_the_same_bits(tmp_path):
    for cache in ("memory", "device"):
        train(tmp_path / cache, f"data.cache={cache}", "trainer.deterministic=true")
    assert losses(tmp_path / "device") == losses(tmp_path / "memory")


PROGRESSIVE = ["recipe.progressive.patch_drop=[0.5,0.0]", "recipe.epochs=3", "recipe.progressive.stages=2"]


@pytest.mark.parametrize("options", [[], PROGRESSIVE, ["compile=true"]], ids=["plain", "progressive", "compiled"])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, monkeypatch, options):
    options = [*BRIEF, *options, "trainer.deterministic=true"]
    vit.train([*options, f"run_dir={tmp_path / 'whole'}"])
    stopped_and_resumed(options, tmp_path / "cut", monkeypatch, 25)
    assert_same(tmp_path / "whole", tmp_path / "cut")
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_run_has_the_losses_of_eager_mode(tmp_path, mode):
    train(tmp_path / "eager", "precision=32-true")
    train(tmp_path / "compiled", "precision=32-true", "compile=true", f"compile_mode={mode}")
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "eager"), rel=2e-3)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_one_rank_of_a_strategy_has_the_losses_of_one_process(tmp_path, strategy):
    train(tmp_path / "one", "precision=32-true")
    train(tmp_path / strategy, "precision=32-true", f"strategy={strategy}")
    assert losses(tmp_path / strategy) == pytest.approx(losses(tmp_path / "one"), rel=1e-3)


def test_predictions_are_those_of_a_cpu(tmp_path):
    train(tmp_path / "run")
    images = sorted((tmp_path / "run" / "samples").glob("**/*.png"))
    gpu, cpu = (vit.load(tmp_path / "run" / "model", device=device).predict(images) for device in ("cuda", "cpu"))
    assert len(images) > 5 and [found.label for found in gpu] == [found.label for found in cpu]
    shares = [[found.probabilities[0] for found in each] for each in (gpu, cpu)]
    assert shares[0] == pytest.approx(shares[1], abs=1e-2)
    assert main(["evaluate", str(tmp_path / "run" / "model"), "--device", "cuda"]) == 0


def test_memory_of_a_call():
    assert 60 * 2**20 <= memory_of(lambda: torch.ones(2**24, device="cuda")) < 70 * 2**20


def test_the_benchmark(capsys):
    small = ["data.image_size=16", "data.patch_size=8", "model.dim=32", "model.num_heads=2", "model.depth=1"]
    assert main(["bench", "step", "inference", *small, "--batch", "2", "--rounds", "2", "--against", "timm"]) == 0
    assert "bf16-mixed" in capsys.readouterr().out


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("queries", "keys", "masked"), [(64, 64, False), (192, 192, True), (1, 128, False)])
def test_gradients_of_attention_are_finite_for_strongly_negative_scores(queries, keys, masked, compiled):
    """Where those of cuDNN's kernel are not, in some of its versions."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 64, generator=generator).mul(0.1) for n in (queries, keys, keys))
    q[..., 0], k[..., 0] = 1, -120 * 8  # all scaled scores are about -120
    mask = torch.ones(queries, keys, dtype=torch.bool).tril() if masked else None
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    F.scaled_dot_product_attention(*exact, mask).square().sum().backward()
    found = [x.cuda().bfloat16().requires_grad_() for x in (q, k, v)]
    attend = torch.compile(scaled_dot_product_attention) if compiled else scaled_dot_product_attention
    attend(*found, mask if mask is None else mask.cuda()).float().square().sum().backward()
    assert all(x.grad.isfinite().all() for x in found)
    assert (found[2].grad.cpu().double() - exact[2].grad).norm() < 0.05 * exact[2].grad.norm()
