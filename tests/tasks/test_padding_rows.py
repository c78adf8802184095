"""Rows that only fill a batch have no influence on losses and metrics, and weights count."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vit.tasks import MultiLabel, TextLoss
from vit.tasks.base import ScoreTable, WeightedMean
from vit.tasks.classification import TABLE_METRICS, accuracies, update_metrics
from vit.tasks.masked_text import MaskedTokens

LOGITS = torch.randn(8, 7, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([4, 1, 2, 2, 1, 5, 3, 6])  # 3 of the 6 real rows are right, and both padding rows
REAL = torch.tensor([1, 1, 1, 1, 1, 1, 0, 0]).bool()


def test_padding_rows_of_images_do_not_count():
    task = SimpleNamespace(val_loss=WeightedMean(), val_scores=accuracies(7), val_table=ScoreTable(TABLE_METRICS),
                           log=lambda *_: None, log_dict=lambda *_, **__: None)
    for half in (slice(0, 4), slice(4, 8)):
        update_metrics(task, LOGITS[half], {"weight": REAL[half].float(), "label": LABELS[half],
                                            "index": torch.arange(8)[half]})
    logits, labels = LOGITS[REAL], LABELS[REAL]
    torch.testing.assert_close(task.val_loss.compute(), F.cross_entropy(logits, labels))
    found = {name: float(value) for name, value in task.val_scores.compute().items()}
    assert found["val/accuracy"] == 0.5
    best = logits.topk(5).indices == labels[:, None]
    assert found == pytest.approx({"val/accuracy": float(best[:, 0].float().mean()),
                                   "val/top5": float(best.any(1).float().mean())})


def test_padding_rows_of_images_with_several_labels_do_not_count():
    def scores(rows):
        task = MultiLabel(nn.Identity(), SimpleNamespace(normalize=lambda images: images), 3, None, None)
        task.log = task.log_dict = lambda *_, **__: None
        labels = torch.stack([LABELS > 2, LABELS % 2 == 0, LABELS > 3], dim=1)
        task.validation_step({"image": LOGITS[rows, :3], "label": labels[rows], "weight": REAL[rows].float(),
                              "index": torch.arange(8)[rows]}, 0)
        return {"val/loss": task.val_loss.compute(), **task.val_scores.compute()}

    found = scores(slice(0, 8))
    torch.testing.assert_close(found, scores(REAL))
    labels = torch.stack([LABELS > 2, LABELS % 2 == 0, LABELS > 3], dim=1)
    each = F.binary_cross_entropy_with_logits(LOGITS[REAL, :3], labels[REAL].float())
    torch.testing.assert_close(found["val/loss"], each)  # the mean over images and labels


def test_the_five_most_probable_of_five_classes_are_no_metric():
    assert list(accuracies(5)) == ["val/accuracy"] and set(accuracies(6)) == {"val/accuracy", "val/top5"}


class Outputs(nn.Module):
    """A model with fixed logits of the masked tokens (M,V) and of the pairs (B,2)."""

    def __init__(self, tokens, pairs):
        super().__init__()
        self.outputs = tokens, pairs

    def forward(self, *inputs):
        return self.outputs


def test_losses_of_masked_tokens_and_pairs_are_weighted_and_padding_pairs_do_not_count():
    masked = torch.tensor([[-1, 4, -1], [2, -1, 6], [-1, -1, 2]])  # masked ids; the last row is padding
    tokens, pairs, following = LOGITS[:4], LOGITS[4:7, :2], torch.tensor([1, 1, 0])
    task = MaskedTokens(Outputs(tokens, pairs), None, token_loss=2.0, pair_loss=0.5)
    batch = {"masked": masked, "source": torch.zeros(3, 3), "source_mask": None, "segment": None, "next": following,
             "tokens": 10, "samples": 6, "weight": torch.tensor([1.0, 1.0, 0.0])}
    batch = task.on_before_batch_transfer(batch, 0)
    assert batch["positions"].tolist() == [1, 3, 5, 8] and batch["labels"].tolist() == [4, 2, 6, 2]
    each = F.cross_entropy(tokens, batch["labels"], reduction="none")
    of_pairs = F.cross_entropy(pairs, following, reduction="none")
    torch.testing.assert_close(task.training_loss(batch, 0, 0), 2 * each.sum() / 10 + 0.5 * of_pairs.sum() / 6)
    task.validation_step(batch, 0)
    torch.testing.assert_close(task.val_token_loss.compute(), each[:3].mean())
    torch.testing.assert_close(task.val_pair_loss.compute(), of_pairs[:2].mean())
    right = (tokens.argmax(1) == batch["labels"])[:3].float().mean()
    torch.testing.assert_close(task.val_tokens.compute(), right)
    torch.testing.assert_close(task.val_pairs.compute(), (pairs.argmax(1) == following)[:2].float().mean())
    logged = []
    task.log, task.log_dict = lambda name, value: logged.append((name, value)), lambda *_, **__: None
    for _ in range(2):  # each epoch has a mean of its own
        task.on_validation_epoch_end()
        task.validation_step({**batch, "next": 1 - following}, 0)
    expected = [2 * each[:3].mean() + 0.5 * F.cross_entropy(pairs[:2], labels[:2])
                for labels in (following, 1 - following)]
    assert [name for name, _ in logged] == ["val/loss", "val/perplexity"] * 2
    torch.testing.assert_close([value for _, value in logged[::2]], expected)
    torch.testing.assert_close([value for _, value in logged[1::2]], [each[:3].mean().exp()] * 2)


@pytest.mark.parametrize("ctc", [-0.1, 1.0])
def test_a_weight_of_ctc_outside_its_range_is_an_error(ctc):
    with pytest.raises(ValueError, match=rf"ctc={ctc} must lie in \[0, 1\)"):
        TextLoss(ctc=ctc)
