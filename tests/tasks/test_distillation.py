"""Distillation against timm's, and what a teacher may not change."""

import pytest
import timm
import torch
from timm.task import LogitDistillationTask, TokenDistillationTask
from torch import nn

from vit.data import Preprocessing
from vit.tasks import CrossEntropy, Distillation, Teacher

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
STUDENT, TEACHER = Preprocessing(16, mean=MEAN, std=STD), Preprocessing(16, mean=(0.4, 0.5, 0.6), std=(0.3, 0.2, 0.4))
SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 5}
LABELS = torch.tensor([0, 4, 2, 2, 1, 3])


def model(name, seed, preprocessing):
    torch.manual_seed(seed)
    made = timm.create_model(name, **SMALL)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=0.3)
    made.pretrained_cfg = {**made.pretrained_cfg, "mean": preprocessing.mean, "std": preprocessing.std}
    return made


def images():
    return torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("alpha", "tau"), [(0.5, 1.0), (0.9, 3.0)])
def test_soft_loss_and_gradients_are_those_of_timm(alpha, tau):
    student, master = (model("vit_tiny_patch16_224", seed, p) for seed, p in ((0, STUDENT), (1, TEACHER)))
    theirs = LogitDistillationTask(student, master, nn.CrossEntropyLoss(), task_loss_weight=1 - alpha,
                                   temperature=tau, verbose=False)
    expected = theirs(images(), LABELS)["loss"]
    expected.backward()
    gradients = [parameter.grad.clone() for parameter in student.parameters()]
    student.zero_grad()
    ours = Distillation(Teacher(master, TEACHER, STUDENT, range(5)), "soft", alpha, tau)
    loss = ours(student(images()), images(), lambda logits: CrossEntropy()(logits, LABELS)).mean()
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    for parameter, gradient in zip(student.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-5)
    assert all(parameter.grad is None for parameter in master.parameters())


@pytest.mark.parametrize(("target", "tau"), [("hard", 1.0), ("soft", 2.0)])
def test_the_token_s_loss_is_that_of_timm(target, tau):
    student = model("deit_tiny_distilled_patch16_224", 0, STUDENT)
    master = model("vit_tiny_patch16_224", 1, TEACHER)
    theirs = TokenDistillationTask(student, master, nn.CrossEntropyLoss(), distill_type=target, task_loss_weight=0.3,
                                   temperature=tau, verbose=False)
    student.train()
    expected = theirs(images(), LABELS)["loss"]
    ours = Distillation(Teacher(master, TEACHER, STUDENT, range(5)), target, 0.7, tau)
    loss = ours(student(images()), images(), lambda logits: CrossEntropy()(logits, LABELS)).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)


def test_a_teacher_has_the_same_pixels_under_its_own_mean_and_deviation():
    seen = []

    class Recording(nn.Module):
        def forward(self, x):
            seen.append(x)
            return x.mean((2, 3))

    pixels = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    teacher = Teacher(Recording(), TEACHER, STUDENT, [2, 0])
    logits = teacher(STUDENT.normalize(pixels))
    torch.testing.assert_close(seen[0], TEACHER.normalize(pixels), rtol=0, atol=1e-5)
    torch.testing.assert_close(logits, seen[0].mean((2, 3))[:, [2, 0]])
    larger = Teacher(Recording(), TEACHER.replace(size=(32, 24)), STUDENT, [0])
    larger(STUDENT.normalize(pixels))
    assert seen[1].shape == (2, 3, 32, 24)


def test_a_teacher_has_no_gradients_and_no_dropout():
    master = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(3 * 256, 5), nn.BatchNorm1d(5)).train()
    teacher = Teacher(master, STUDENT, STUDENT, range(5))
    before = {name: tensor.clone() for name, tensor in master.state_dict().items()}
    first = teacher(images())
    assert not first.requires_grad and torch.equal(first, teacher(images()))
    assert all(torch.equal(tensor, before[name]) for name, tensor in master.state_dict().items())


@pytest.mark.parametrize(("options", "message"), [
    ({"target": "both"}, "target=both is not one of soft, hard"),
    ({"alpha": 0.0}, "alpha=0.0 must be above 0 and at most 1; without a teacher use distill=none"),
    ({"tau": 0.0}, "tau=0.0 must be above 0"),
    ({"tau": float("nan")}, "tau=nan must be above 0"),
])
def test_invalid_combinations_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        Distillation(lambda x: x, **options)
    assert Distillation(lambda x: x, alpha=1).alpha == 1
