"""Losses against torch's own, timm's and plain counting, with hard, smoothed, mixed and weighted targets, and texts."""

import itertools
import math

import pytest
import timm.loss
import torch
from torch.nn import functional as F

from vit.data.text.tokenizers import BOS, EOS, PAD
from vit.tasks import BinaryCrossEntropy, CrossEntropy, MultiLabelLoss, TextLoss
from vit.tasks.cross_entropy import cross_entropy

LOGITS = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 3, 4, 0, 2])
SOFT = torch.rand(7, 5, generator=torch.Generator().manual_seed(1)).softmax(dim=1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_torchs(smoothing):
    expected = F.cross_entropy(LOGITS, LABELS, label_smoothing=smoothing)
    assert torch.allclose(CrossEntropy(smoothing)(LOGITS, LABELS).mean(), expected, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_smallest_smoothed_loss_is_the_entropy_of_the_target(smoothing):
    """With 10 classes and smoothing 0.1 it is 0.50 at the probabilities 0.91 and 0.01, not 0 at infinite logits."""
    target = torch.full((1, 10), smoothing / 10)
    target[0, 3] += 1 - smoothing
    logits = target.clamp(min=1e-30).log().requires_grad_()
    loss = CrossEntropy(smoothing)(logits, torch.tensor([3]))
    assert loss.item() == pytest.approx(0.5003 if smoothing else 0, abs=1e-4)
    loss.sum().backward()
    torch.testing.assert_close(logits.grad, torch.zeros(1, 10), rtol=0, atol=1e-6)
    other = CrossEntropy(smoothing)(logits.detach() + torch.eye(10), torch.tensor([3]).expand(10))
    assert (other > loss - 1e-6).all()


def test_soft_targets_are_timms():
    expected = timm.loss.SoftTargetCrossEntropy()(LOGITS, SOFT)
    assert torch.allclose(CrossEntropy()(LOGITS, SOFT).mean(), expected, atol=1e-6)


def test_binary_cross_entropy_is_timms():
    ours = BinaryCrossEntropy(0.1)(LOGITS, LABELS).mean()
    theirs = timm.loss.BinaryCrossEntropy(smoothing=0.0, sum_classes=True)(LOGITS, F.one_hot(LABELS, 5) * 0.9 + 0.1 / 5)
    assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("threshold", [0.0, 0.2])
def test_mixed_targets_above_the_threshold_are_1_as_in_timm(threshold):
    mixed = F.one_hot(LABELS, 5).float().lerp(F.one_hot(LABELS.roll(1), 5).float(), torch.linspace(0, 1, 7)[:, None])
    ours = BinaryCrossEntropy(target_threshold=threshold)(LOGITS, mixed).mean()
    theirs = timm.loss.BinaryCrossEntropy(0.0, target_threshold=threshold, sum_classes=True)(LOGITS, mixed)
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert not torch.allclose(ours, BinaryCrossEntropy()(LOGITS, mixed).mean(), atol=1e-3)


@pytest.mark.parametrize("threshold", [-0.1, 1.0])
def test_a_threshold_is_a_part_of_a_label(threshold):
    with pytest.raises(ValueError, match=f"target_threshold={threshold} must lie in"):
        BinaryCrossEntropy(target_threshold=threshold)


def test_weights_multiply_the_loss_of_a_class():
    weights = torch.tensor([2.0, 0.5, 1.0, 1.0, 3.0])
    each = F.cross_entropy(LOGITS, LABELS, reduction="none")
    assert torch.allclose(
        CrossEntropy(weights=weights.numpy())(LOGITS, LABELS).mean(), (each * weights[LABELS]).mean(), atol=1e-6
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("share", [1.0, 0.7, 0.5])
def test_weighted_classes_have_equal_parts_in_mixed_images(share, smoothing):
    """Classes of 80 %, 15 % and 5 % of the images, each mixed with each: the best constant output is 1/3 each."""
    labels = torch.tensor([0] * 16 + [1] * 3 + [2])
    own = F.one_hot(labels, 3).float()
    mixed = torch.lerp(own[None], own[:, None], share).flatten(0, 1)  # (400,3)
    weights = (20 / (3 * own.sum(0))).numpy()
    for loss, logit in ((CrossEntropy, 0.0), (BinaryCrossEntropy, None)):
        third = 1 / 3 * (1 - smoothing) + smoothing / 3
        logit = math.log(third / (1 - third)) if logit is None else logit
        logits = torch.full((3,), logit, requires_grad=True)
        loss(smoothing, weights)(logits.expand(400, 3), mixed).mean().backward()
        assert logits.grad.abs().max() < 1e-6, loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_weighted_labels_are_positive_as_often_as_negative(smoothing):
    """Labels of 1 %, 30 % and 90 % of the images: a smoothed negative does not weigh as much as a rare positive."""
    targets = torch.stack([torch.arange(100) < n for n in (1, 30, 90)], dim=1).float()
    weights = ((100 - targets.sum(0)) / targets.sum(0)).numpy()
    logits = torch.zeros(3, requires_grad=True)
    MultiLabelLoss(smoothing, weights)(logits.expand(100, 3), targets).mean().backward()
    assert logits.grad.abs().max() < 1e-6


def test_a_row_of_padding_has_no_loss():
    """Such rows fill the batch of a rank; an empty text, which is EOS alone, is not padding."""
    generator = torch.Generator().manual_seed(0)
    logits, patches = (torch.randn(3, 4, 8, generator=generator, requires_grad=True) for _ in range(2))
    labels = torch.tensor([[5, 6, EOS, PAD], [PAD] * 4, [EOS, PAD, PAD, PAD]])
    TextLoss(0.1, ctc=0.5)(logits, labels, patches, torch.ones(3, 4, dtype=torch.bool)).backward()
    for grad in (logits.grad, patches.grad):
        assert (grad[1] == 0).all() and (grad[0] != 0).any() and (grad[2] != 0).any()


def test_bfloat16_logits_are_summed_in_float32():
    assert CrossEntropy()(LOGITS.bfloat16(), LABELS).dtype == torch.float32


def test_padding_of_a_text_does_not_count():
    logits, labels = torch.randn(2, 4, 8), torch.tensor([[5, 6, 7, EOS], [5, EOS, PAD, PAD]])
    expected = F.cross_entropy(logits[labels != PAD], labels[labels != PAD], label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(TextLoss(0.1)(logits, labels), expected)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_by_parts_is_torchs(precision, smoothing, monkeypatch):
    monkeypatch.setattr("vit.tasks.cross_entropy.CHUNK", 3 * 50)  # three rows at a time, and a last one of one
    torch.manual_seed(0)
    values = torch.randn(10, 50) * torch.tensor([1.0, 5, 30, 1, 1, 1, 1, 1, 1, 200])[:, None]
    if not smoothing:  # which would include the impossible id in the target
        values[4, 7] = -math.inf
    labels = torch.randint(10, 50, (10,))
    labels[3], labels[9] = PAD, values[9].argmin()  # an id of negligible probability has a finite loss
    ours, theirs = (values.to(precision).requires_grad_() for _ in range(2))
    found = cross_entropy(ours, labels, PAD, smoothing)
    options = {"ignore_index": PAD, "reduction": "sum", "label_smoothing": smoothing}
    expected = F.cross_entropy(theirs.float(), labels, **options)
    torch.testing.assert_close(found, expected)
    assert found.isfinite()
    (found / 3).backward()
    (expected / 3).backward()
    assert ours.grad.dtype == precision and found.dtype == torch.float32
    torch.testing.assert_close(ours.grad, theirs.grad)
    with torch.no_grad():
        torch.testing.assert_close(cross_entropy(ours, labels, PAD, smoothing), expected.detach())


@pytest.mark.parametrize("ignored", [-100, 7])
def test_ignored_labels_need_not_be_ids(ignored):
    logits, labels = torch.randn(4, 7, requires_grad=True), torch.tensor([1, ignored, 6, 0])
    found = cross_entropy(logits, labels, ignored)
    torch.testing.assert_close(found, F.cross_entropy(logits[[0, 2, 3]], labels[[0, 2, 3]], reduction="sum"))
    found.backward()
    assert not logits.grad[1].any() and logits.grad[0].any()


@pytest.mark.parametrize("label", [7, -1])
def test_a_label_that_is_no_id_is_refused(label):
    with pytest.raises(RuntimeError, match="out of bounds"):
        cross_entropy(torch.randn(2, 7, requires_grad=True), torch.tensor([1, label]), PAD)


def collapsed(path: tuple[int, ...]) -> list[int]:
    """The text of an alignment: repeated ids are one character, and `PAD` is the blank."""
    return [sign for sign, _ in itertools.groupby(path) if sign != PAD]


def test_ctc_is_the_sum_over_all_alignments_of_a_text():
    """Two rows of patches; the second image is two columns narrower, and its lower row is empty in one of them."""
    torch.manual_seed(0)
    patches = torch.randn(3, 10, 7)  # (B,2*5,V)
    mask = torch.ones(3, 2, 5, dtype=torch.bool)
    mask[1, :, 3:] = mask[1, 1, 2] = False
    labels = torch.tensor([[5, 6, 6, EOS], [6, EOS, PAD, PAD], [5, 5, 5, 5]])  # the last needs 7 columns
    assert BOS not in labels
    total = 0.0
    for row, width in ((0, 5), (1, 3)):
        each = patches[row].view(2, 5, 7)
        lower = mask[row, 1].float()[:, None]
        likely = ((each[0] + lower * each[1]) / (1 + lower)).log_softmax(-1)[:width]  # (columns,V)
        text = [sign for sign in labels[row].tolist() if sign not in (PAD, EOS)]
        ways = [path for path in itertools.product(range(7), repeat=width) if collapsed(path) == text]
        total -= math.log(sum(math.exp(sum(float(likely[i, sign]) for i, sign in enumerate(path))) for path in ways))
    found = TextLoss(ctc=0.5, rows=2).ctc_loss(patches, mask.flatten(1), labels)
    assert float(found) == pytest.approx(total, rel=1e-5)
    logits, loss = torch.randn(3, 4, 7), TextLoss(0.1, ctc=0.25, rows=2)
    whole = loss(logits, labels, patches, mask.flatten(1))
    torch.testing.assert_close(whole, 0.75 * loss(logits, labels) + 0.25 * found)
