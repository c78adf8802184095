"""Losses of batches over the samples or tokens of the whole step, and those of validation, against torch's."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vit.data import Preprocessing
from vit.data.images.masked_patches import EVALUATION, patch_noise
from vit.generation import Generation, generate
from vit.models import create_model, model_from_config
from vit.tasks import (
    Classification,
    CrossEntropy,
    MaskedImages,
    MultiLabel,
    MultiLabelLoss,
    Seq2Seq,
    TextClassification,
    TextLoss,
    ValidationTexts,
)
from vit.training.progressive import Progressive, Stage

PIXELS = Preprocessing((8, 12), mean=(0.5,) * 3, std=(0.25,) * 3)
IMAGES = torch.randint(0, 256, (6, 3, 8, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 3, 4, 0])
STEP = 16  # samples of the step, of which the batch is a part


def test_of_images():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 12, 5))
    task = Classification(model, PIXELS, 5, CrossEntropy(), None)
    expected = F.cross_entropy(model((IMAGES / 255 - 0.5) / 0.25), LABELS, reduction="sum") / STEP
    loss = task.training_loss({"image": IMAGES, "label": LABELS, "samples": STEP}, 0, 0)
    torch.testing.assert_close(loss, expected)
    assert torch.equal(task.inputs, PIXELS.normalize(IMAGES))


def test_of_texts():
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    task = TextClassification(lambda ids, mask, segment: logits[(ids - segment) // mask], 5, CrossEntropy(), None)
    batch = {"source": 2 * torch.arange(6) + 1, "source_mask": torch.tensor(2), "segment": torch.tensor(1),
             "label": LABELS, "samples": STEP}
    expected = F.cross_entropy(logits, LABELS, reduction="sum") / STEP
    torch.testing.assert_close(task.training_loss(batch, 0, 0), expected)


@pytest.mark.parametrize("several", [False, True])
def test_validation_of_images_is_the_mean_over_the_real_images(several):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 12, 5))
    kind, loss = (MultiLabel, MultiLabelLoss()) if several else (Classification, CrossEntropy())
    task = kind(model, PIXELS, 5, loss, None)
    task.log = task.log_dict = lambda *_, **__: None
    labels = F.one_hot(LABELS, 5) + F.one_hot(LABELS.flip(0), 5) > 0 if several else LABELS
    batch = {"image": IMAGES, "label": labels, "index": torch.tensor([4, 2, 9, 7, 0, 0]),
             "weight": torch.tensor([1.0, 1, 1, 1, 0, 0])}  # two rows only fill the batch
    for _ in range(2):  # each validation has a table of its own
        task.val_loss.reset()
        task.on_validation_start()
        task.validation_step(batch, 0)
    logits = model(PIXELS.normalize(IMAGES))[:4]
    each = (F.binary_cross_entropy_with_logits(logits, labels[:4].float(), reduction="none").mean(1) if several
            else F.cross_entropy(logits, labels[:4], reduction="none"))
    torch.testing.assert_close(task.val_loss.compute(), each.mean())
    index, scores = task.sample_scores("val/loss")
    assert index.tolist() == [2, 4, 7, 9]
    torch.testing.assert_close(scores, each[[1, 0, 3, 2]])
    right = task.sample_scores("val/accuracy")
    correct = None if several else (logits.argmax(1) == labels[:4])[[1, 0, 3, 2]].float()
    assert right is None if several else torch.equal(right.score, correct)
    assert task.sample_scores("train/loss") is None


def test_of_masked_images():
    torch.manual_seed(0)
    model = create_model("mae_tiny", image_size=(8, 12), patch_size=4, dim=16, depth=1, num_heads=2, decoder_dim=16,
                         decoder_depth=1, decoder_num_heads=2).eval()
    task = MaskedImages(model, PIXELS, None, seed=7)
    index, epoch, weight = torch.arange(6) + 10, torch.full((6,), 3), torch.tensor([1.0, 1, 1, 1, 0, 0])
    errors = {}
    for seed, number in ((7, epoch), (EVALUATION, 0)):
        pixels, masked = model(PIXELS.normalize(IMAGES), patch_noise(seed, number, index, 2 * 3))
        difference = (pixels - model.targets(PIXELS.normalize(IMAGES))).square().mean(-1)
        errors[seed] = torch.stack([row[hidden.bool()].mean() for row, hidden in zip(difference, masked, strict=True)])
    loss = task.training_loss({"image": IMAGES, "index": index, "epoch": epoch, "samples": STEP}, 0, 0)
    torch.testing.assert_close(loss, errors[7].sum() / STEP)
    task.log = lambda *_, **__: None
    task.validation_step({"image": IMAGES, "index": index, "weight": weight}, 0)
    torch.testing.assert_close(task.val_loss.compute(), errors[EVALUATION][:4].mean())


@pytest.fixture
def translator():
    torch.manual_seed(0)
    sizes = {"vocab_size": 9, "max_len": 8, "dim": 16, "depth": 1, "decoder_depth": 1, "num_heads": 2}
    model = model_from_config({"kind": "encoder_decoder", **sizes}).eval()
    tokenizer = SimpleNamespace(pieces=[b""] * 5 + [b"a", b"b", b"c", b"d"])
    task = Seq2Seq(model, tokenizer, None, ValidationTexts((), Generation(max_len=8), 0, 0),
                   loss=TextLoss(label_smoothing=0.2))
    task.log = lambda *_, **__: None
    return task


SOURCE = torch.tensor([[5, 6, 7, 2], [8, 5, 2, 0], [5, 5, 5, 2]])
TARGET = torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0], [1, 8, 8, 2]])  # with bos and eos; 0 is padding


def test_of_pairs(translator):
    batch = {"source": SOURCE, "source_mask": SOURCE != 0, "target": TARGET, "tokens": STEP}
    logits = translator.model(SOURCE, TARGET[:, :-1], SOURCE != 0)
    expected = F.cross_entropy(logits.flatten(0, 1), TARGET[:, 1:].flatten(), ignore_index=0, label_smoothing=0.2,
                               reduction="sum") / STEP
    torch.testing.assert_close(translator.training_loss(batch, 0, 0), expected)


def test_validation_of_pairs_is_the_mean_over_the_tokens_of_the_real_rows(translator):
    weight = torch.tensor([1.0, 1.0, 0.0])  # the last row only fills the batch
    logits = translator.model(SOURCE, TARGET[:, :-1], SOURCE != 0)
    target = TARGET.clone()
    target[0, 1], target[2, 1:] = logits.argmax(-1)[0, 0], logits.argmax(-1)[2]
    batch = {"source": SOURCE, "source_mask": SOURCE != 0, "target": TARGET, "weight": weight}
    translator.forward = lambda _: logits  # of the first targets
    translator.validation_step({**batch, "target": target}, 0)
    real = (target[:2, 1:] != 0).flatten()
    found, labels = logits[:2].flatten(0, 1)[real], target[:2, 1:].flatten()[real]
    logged = {}
    translator.log = logged.__setitem__
    translator.on_validation_epoch_end()
    torch.testing.assert_close(translator.val_loss.compute(), F.cross_entropy(found, labels))
    torch.testing.assert_close(logged, {"val/perplexity": F.cross_entropy(found, labels).exp()})  # not smoothed
    accuracy = (found.argmax(-1) == labels).float().mean()
    assert 0 < accuracy < 1
    torch.testing.assert_close(translator.val_accuracy.compute(), accuracy)


def test_texts_are_generated_for_the_first_rows_of_the_validation_data_and_not_for_filling(translator):
    settings = Generation(max_len=4)
    translator.tokenizer = SimpleNamespace(decode=lambda ids, errors: tuple(ids))
    translator.validation = ValidationTexts(("first", "second", "third"), settings, rows=2, examples=0)
    batch = {"source": SOURCE, "source_mask": SOURCE != 0, "index": torch.tensor([2, 0, 1])}
    alone = generate(translator.model, SOURCE[1:2], SOURCE[1:2] != 0, settings, utf8=translator.utf8)[0][0]
    translator.generate_texts({**batch, "weight": torch.tensor([1.0, 1.0, 0.0])})
    assert translator.generated == [(0, alone.ids, "first")]


def test_a_validation_source_with_several_references_is_generated_once(translator):
    translator.tokenizer = SimpleNamespace(decode=lambda ids, errors: tuple(ids))
    translator.validation = ValidationTexts((["a", "b"], None, ["c"]), Generation(max_len=4), rows=3, examples=0)
    translator.generate_texts({"source": SOURCE, "source_mask": SOURCE != 0, "index": torch.tensor([2, 0, 1]),
                               "weight": torch.ones(3)})
    assert sorted((number, references) for number, _, references in translator.generated) == [(0, ["a", "b"]),
                                                                                              (2, ["c"])]


def test_a_validation_text_without_a_letter_is_named_in_the_log(translator, caplog):
    """A line of 256 spaces, or nothing, was above the reference."""
    translator.validation = ValidationTexts(("a", "b", "c"), Generation(max_len=4), rows=3, examples=3)
    translator.generated = [(0, "", "a"), (1, " " * 256, "b"), (2, "x\ty", "c")]
    translator.val_loss.update(torch.tensor(1.0))
    translator._trainer = SimpleNamespace(world_size=1, is_global_zero=True)
    translator.log_dict = lambda *_, **__: None
    with caplog.at_level("INFO", "vit"):
        translator.on_validation_epoch_end()
    assert [record.message for record in caplog.records] == [
        "  (empty)\n    should be: a", "  (only white space)\n    should be: b", "  x\\ty\n    should be: c"]


def test_mixed_images_depend_on_step_micro_batch_and_process():
    seen = []

    def mixup(images, targets, *counters):
        seen.append(counters)
        return images, F.one_hot(targets, 5).float()

    task = Classification(nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 12, 5)), PIXELS, 5, CrossEntropy(), None,
                          mixup=mixup, seed=7)
    task.training_loss({"image": IMAGES, "label": LABELS, "samples": STEP}, 5, 2)
    assert seen == [(7, 5, 2, 0)]


def test_the_stage_of_a_step_decides_how_many_patches_the_blocks_have():
    model = create_model("vit_tiny", image_size=(8, 12), patch_size=2, dim=16, depth=1, num_heads=2, num_classes=5,
                         patch_dropout=0.5).train()
    stages = Progressive((Stage(patch_drop=0.5), Stage(patch_drop=0.25), Stage(patch_drop=0.0)), until=0.5)
    task = Classification(model, PIXELS, 5, CrossEntropy(), None, progressive=stages)
    task.total_steps, seen = 8, []
    model.encoder.blocks[0].register_forward_pre_hook(lambda block, inputs: seen.append(inputs[0].shape[1]))
    for step in (0, 2, 4):
        task.training_loss({"image": IMAGES, "label": LABELS, "samples": STEP}, step, 0)
    assert seen == [1 + 12, 1 + 18, 1 + 24]  # with the class token
