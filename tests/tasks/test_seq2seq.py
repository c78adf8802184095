"""Word dropout: what training hides from the decoder, and what stays."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from vit.data.text import BOS, EOS, PAD, UNK, ByteTokenizer
from vit.generation import Generation
from vit.models import EncoderDecoderConfig, Transformer
from vit.tasks import Optimizing, Seq2Seq, TextLoss, Writing

TARGETS = torch.tensor([[BOS, 20, 21, 22, 23, EOS], [BOS, 30, 31, EOS, PAD, PAD]])


def task(word_dropout):
    torch.manual_seed(0)
    sizes = {"dim": 16, "depth": 1, "decoder_depth": 1, "num_heads": 2, "vocab_size": 261, "max_len": 8}
    model = Transformer(EncoderDecoderConfig(**sizes, dropout=0.0))
    optimizing, writing = Optimizing(torch.optim.SGD, torch.optim.lr_scheduler.ConstantLR), Writing([], Generation())
    return Seq2Seq(model, ByteTokenizer(), optimizing, writing, loss=TextLoss(), word_dropout=word_dropout)


def test_the_share_asked_for_is_hidden_and_special_tokens_never():
    many = TARGETS.repeat(2000, 1)
    torch.manual_seed(1)
    hidden = task(0.3).hidden(many)
    special = many <= EOS
    assert torch.equal(hidden[special], many[special])
    gone = hidden[~special] == UNK
    assert torch.equal(hidden[~special][~gone], many[~special][~gone])
    assert abs(gone.float().mean() - 0.3) < 0.02
    assert task(0.0).hidden(many) is many


def test_the_loss_is_that_of_what_is_left_to_see(monkeypatch):
    monkeypatch.setattr(Seq2Seq, "trainer", SimpleNamespace(world_size=1))
    batch = {"source": TARGETS, "source_mask": TARGETS != PAD, "target": TARGETS, "tokens": 7}
    hiding, plain = task(1.0), task(0.0)
    unknown = torch.tensor([[BOS, UNK, UNK, UNK, UNK], [BOS, UNK, UNK, EOS, PAD]])
    for one, inputs in ((hiding, unknown), (plain, TARGETS[:, :-1])):
        logits = one.model(TARGETS, inputs, TARGETS != PAD)
        wanted = F.cross_entropy(logits.transpose(1, 2), TARGETS[:, 1:], ignore_index=PAD, reduction="sum") / 7
        torch.testing.assert_close(one.training_loss(batch, 0, 0), wanted)
    assert torch.equal(hiding(batch), plain(batch))  # validation sees all


def test_no_share_is_refused():
    with pytest.raises(ValueError, match=r"word_dropout=1.5 must be a share of the tokens, 0..1"):
        task(1.5)
