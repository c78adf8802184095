"""Batches of pairs: every row once, within the limits, for any world size and after restarts; too long texts."""

import numpy as np
import pytest
import torch

from vit.data import (
    ByteTokenizer,
    DataError,
    LinePreprocessing,
    PairDataset,
    PairEvalBatches,
    PairSplit,
    PairTrainBatches,
    digit_strips,
    source_tokens,
    target_tokens,
)
from vit.data.text.token_ids import Tokens
from vit.data.text.tokenizers import BOS, EOS, PAD

BYTES = ByteTokenizer()


def toy(n=60, longest=20, seed=0):
    rng = np.random.default_rng(seed)
    texts = ["".join(rng.choice(list("abcd"), rng.integers(1, longest))) for _ in range(2 * n)]
    return PairSplit(texts[n:], [f"toy line {i + 1}" for i in range(n)], texts[:n])


def data(n=60, longest=20, **options):
    return PairDataset(toy(n, longest), BYTES, BYTES, **options)


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def passes(batches, count):
    return [batch for _ in range(count) for batch in batches]


def rows(batch, skip_blank=False):
    """index → (source ids, target ids) without padding."""
    found = {}
    for i, source, mask, target in zip(
        batch["index"].tolist(), batch["source"], batch["source_mask"], batch["target"], strict=True
    ):
        kept = target[target != PAD].tolist()
        assert mask.tolist() == sorted(mask.tolist(), reverse=True) and (source[~mask] == PAD).all()
        if not (skip_blank and kept == [BOS]):
            found[i] = (source[mask].tolist(), kept)
    return found


def test_a_batch_is_the_texts_with_special_tokens():
    split = toy(60)
    batch = PairDataset(split, BYTES, BYTES).__getitems__([(3, 7), (3, 0), (4, 59)])
    assert batch["index"].tolist() == [7, 0, 59] and batch["epoch"].tolist() == [3, 3, 4]
    assert batch["source"].dtype == batch["target"].dtype == torch.int64 and batch["source_mask"].dtype == torch.bool
    for i, (source, target) in rows(batch).items():
        assert source == [*BYTES.encode(split.sources[i]), EOS]
        assert target == [BOS, *BYTES.encode(split.targets[i]), EOS]
    assert batch["source"].shape[1] == batch["source_mask"].sum(1).max()
    assert same(data()[5], data().__getitems__([(0, 5)]))


def test_source_and_target_tokens():
    ids, mask = source_tokens(BYTES, ["ab", "", "abcdef"], max_len=4).padded(np.arange(3))
    assert ids.tolist() == [[102, 103, EOS, 0], [EOS, 0, 0, 0], [102, 103, 104, EOS]]
    assert mask.sum(1).tolist() == [3, 1, 4]
    ids, _ = target_tokens(BYTES, ["ab", "abcdef"], max_len=4).padded(np.arange(2))
    assert ids.tolist() == [[BOS, 102, 103, EOS, 0], [BOS, 102, 103, 104, EOS]]
    assert source_tokens(BYTES, []).padded(np.arange(0))[0].shape == (0, 0)


@pytest.mark.parametrize("limits", [{"batch_tokens": 100}, {"batch_size": 7}, {"batch_tokens": 100, "batch_size": 4}])
def test_an_epoch_has_every_row_once_within_the_limits(limits):
    dataset = data(200)
    batches = PairTrainBatches(dataset, **limits, seed=1)
    epochs = [passes(batches, 1) for _ in range(3)]
    assert [len(epoch) for epoch in epochs] == [len(batches)] * 3
    for number, epoch in enumerate(epochs):
        assert sorted(torch.cat([b["index"] for b in epoch]).tolist()) == list(range(200))
        for batch in epoch:
            assert (batch["epoch"] == number).all()
            assert len(batch["index"]) <= limits.get("batch_size", 200)
            widest = max(batch["source"].shape[1], batch["target"].shape[1] - 1)
            assert widest * len(batch["index"]) <= limits.get("batch_tokens", 10**9)
            assert batch["tokens"] == (batch["target"][:, 1:] != PAD).sum()
    order = [[len(b["index"]) * b["target"].shape[1] for b in epoch] for epoch in epochs]
    assert order[0] != order[1] and order[0] != sorted(order[0]), "batches come in another order, not by length"


def test_buckets_have_little_padding():
    dataset = data(2000, 60)
    padded = sum(b["target"].numel() + b["source"].numel() for b in PairTrainBatches(dataset, batch_tokens=1000))
    assert dataset.lengths.sum() / padded > 0.6
    shuffled = np.split(np.random.default_rng(0).permutation(2000), 50)
    assert dataset.lengths.sum() / sum(dataset.lengths[part].max(0).sum() * len(part) for part in shuffled) < 0.55


def test_epochs_have_different_batches():
    batches = PairTrainBatches(data(4000, 30), batch_tokens=500)
    batch_of = np.empty((2, 4000), dtype=int)
    for epoch in (0, 1):
        for number, row in enumerate(batches.order(epoch)):
            batch_of[epoch, row] = number
    met = [
        np.bincount(batch_of[1, batch_of[0] == number]).max() / (batch_of[0] == number).sum()
        for number in range(len(batches))
    ]
    assert np.mean(met) < 0.65, "with exact lengths it would be 0.9"


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_at_every_batch_equals_no_interruption(workers):
    dataset = data(30)
    expected = passes(PairTrainBatches(dataset, 100, seed=1), 2)
    resumed = PairTrainBatches(dataset, 100, seed=1, workers=workers)
    per_epoch = len(resumed)
    assert len(expected) == 2 * per_epoch and resumed.state_dict() == {}
    for done in range(0, 2 * per_epoch, 1 if workers == 0 else 5):
        resumed.epoch, resumed.start = divmod(done, per_epoch)
        rest = passes(resumed, 2)[: 2 * per_epoch - done]
        assert all(same(a, b) for a, b in zip(rest, expected[done:], strict=True))
    resumed.close()


@pytest.mark.parametrize("world", [2, 3, 4])
def test_ranks_share_the_same_global_batches(world):
    dataset = data(60)
    whole = passes(PairTrainBatches(dataset, 80, seed=2), 2)
    ranks = [passes(PairTrainBatches(dataset, 80, seed=2, rank=rank, world=world), 2) for rank in range(world)]
    assert min(len(b["index"]) for b in whole) < world, "some batch must be too small for all ranks"
    for b, batch in enumerate(whole):
        joined = {}
        for rank in ranks:
            own = rows(rank[b], skip_blank=True)
            assert not own.keys() & joined.keys()
            joined |= own
            assert torch.equal(rank[b]["tokens"], batch["tokens"]) and len(rank[b]["index"]) >= 1
        assert joined == rows(batch)
        own_tokens = [int((rank[b]["target"][:, 1:] != PAD).sum()) for rank in ranks]
        assert sum(own_tokens) == batch["tokens"]


@pytest.mark.parametrize("start", [0, 5])
def test_parts_of_a_step_without_rows_are_fillers(start):
    """So that they change no running statistics either."""
    ranks = [PairTrainBatches(data(60), 80, seed=2, rank=rank, world=2, accumulate=2) for rank in range(2)]
    assert min(map(len, ranks[0].order(0))) < 4 < max(map(len, ranks[0].order(0)))
    for rank in ranks:
        rank.start = start
        for batch in rank:
            assert ("filler" in batch) == (batch["target"][:, 1:] == PAD).all() == (not rows(batch, skip_blank=True))


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("limits", [{"batch_tokens": 100}, {"batch_size": 8}])
@pytest.mark.parametrize("n", [1, 3, 23, 64])
def test_evaluation_has_every_row_once(n, limits, world):
    dataset = data(n)
    ranks = [list(PairEvalBatches(dataset, **limits, rank=rank, world=world)) for rank in range(world)]
    assert len({len(r) for r in ranks}) == 1 and len(ranks[0]) == len(PairEvalBatches(dataset, **limits))
    real = [int(i) for r in ranks for b in r for i, w in zip(b["index"], b["weight"], strict=True) if w == 1]
    assert sorted(real) == list(range(n))
    for parts in zip(*ranks, strict=True):
        assert len({len(p["index"]) for p in parts}) == 1
        assert sum(int((p["target"][:, 1:] != PAD).sum()) for p in parts) == parts[0]["tokens"]
    assert all((b["target"][b["weight"] == 0, 1:] == PAD).all() for r in ranks for b in r)
    assert "epoch" not in ranks[0][0]
    shortest = [dataset.lengths[b["index"].numpy(), 1].min() for b in ranks[0]]
    assert all(a <= b * 1.25 for a, b in zip(shortest, shortest[1:], strict=False)), "in the order of lengths"


def test_texts_that_are_too_long():
    split = PairSplit(["abc", "abcdef", "ab"], ["f line 1", "f line 2", "f line 3"], ["a", "b", "abcdefgh"])
    with pytest.raises(DataError, match="f line 2: 7 tokens are more than data.max_target_len=5; 1 of 3 texts are"):
        PairDataset(split, BYTES, BYTES, max_target_len=5)
    with pytest.raises(DataError, match="f line 3: 9 tokens are more than data.max_source_len=5"):
        PairDataset(split, BYTES, BYTES, max_source_len=5)
    limits = {"max_source_len": 5, "max_target_len": 5}
    skipped = PairDataset(split, BYTES, BYTES, **limits, on_long="skip")
    assert skipped.rows.tolist() == [0] and len(skipped) == 1 and skipped.cut == []
    assert skipped.left_out == [
        ("f line 2", "7 tokens are more than data.max_target_len=5"),
        ("f line 3", "9 tokens are more than data.max_source_len=5"),
    ]
    assert [b["index"].tolist() for b in PairTrainBatches(skipped, 10)] == [[0]]
    cut = PairDataset(split, BYTES, BYTES, **limits, on_long="cut")
    assert len(cut) == 3 and cut.left_out == [] and [name for name, _ in cut.cut] == ["f line 2", "f line 3"]
    found = rows(cut.__getitems__([(0, 0), (0, 1), (0, 2)]))
    assert found[1][1] == [BOS, *BYTES.encode("abcd"), EOS] and found[2][0] == [*BYTES.encode("abcd"), EOS]
    assert cut.lengths.tolist() == [[2, 4], [2, 5], [5, 3]]
    exact = PairDataset(split, BYTES, BYTES, max_source_len=9, max_target_len=7)
    assert len(exact) == 3, "max_len counts the end, not the beginning"


@pytest.mark.parametrize("on_long", ["skip", "cut"])
def test_texts_that_are_too_long_are_tokenized_once(on_long, monkeypatch):
    split = PairSplit(["abc", "abcdef"], ["f line 1", "f line 2"], ["a", "abcdefgh"])
    tokenized, encode = [], BYTES.encode_batch
    monkeypatch.setattr(ByteTokenizer, "encode_batch", lambda _, texts: tokenized.extend(texts) or encode(texts))
    PairDataset(split, BYTES, BYTES, max_source_len=5, max_target_len=5, on_long=on_long)
    assert sorted(tokenized) == sorted([*split.sources, *split.targets])


def test_cut_tokens_are_those_of_cut_texts():
    texts = ["ab", "", "abcdef", "abc"]
    for max_len in (2, 3, 9):
        for tokens, limit in ((source_tokens, max_len), (target_tokens, max_len + 1)):
            cut, expected = tokens(BYTES, texts).cut(limit), tokens(BYTES, texts, max_len)
            assert cut.ids.tolist() == expected.ids.tolist() and cut.offsets.tolist() == expected.offsets.tolist()
    assert len(source_tokens(BYTES, []).cut(4)) == 0


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: data(on_long="drop"), "on_long='drop' is not one of error, skip, cut"),
        (lambda: data(max_source_len=1, on_long="cut"), "max_source_len=1 must be at least 2"),
        (lambda: PairTrainBatches(data()), "set recipe.batch_tokens or recipe.batch_size"),
        (lambda: PairTrainBatches(data(), batch_size=0), "batch_size 0 must be at least 1"),
        (
            lambda: PairTrainBatches(data(), 10),
            r"toy line \d+: its 20 tokens exceed recipe.batch_tokens=10; raise",
        ),
        (lambda: PairTrainBatches(data(), 100, rank=2, world=2), "rank 2 must be 0..1"),
        (lambda: data(max_source_len=2, on_long="skip", n=3),
         r"all 3 texts have more than data.max_source_len=2 tokens, at least \d+: raise data.max_source_len, or set"),
        (lambda: PairDataset(toy(), LinePreprocessing(8, 8, 4), BYTES), "source of images must be a LinePreprocessing"),
    ],
)
def test_wrong_options(build, text):
    with pytest.raises(ValueError, match=text):
        build()


def test_works_in_lightnings_fit_loop(tmp_path):
    from pytorch_lightning import LightningModule, Trainer

    class Recorder(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), []

        def training_step(self, batch, number):
            self.seen.append((int(batch["epoch"][0]), batch["index"].tolist()))
            return self.layer(torch.ones(1, 1)).sum() / batch["tokens"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options = {"max_epochs": 3, "accelerator": "cpu", "default_root_dir": tmp_path} | dict.fromkeys(off, False)
    batches, module = PairTrainBatches(data(40), 100), Recorder()
    Trainer(**options).fit(module, batches)
    assert module.seen == [(e, k[:, 1].tolist()) for e in range(3) for k in batches.keys(e)]


def test_the_progress_of_line_images_reaches_their_number():
    """Of the tokenized targets, of their sizes, and of their pixels where they are held in memory."""
    split = digit_strips(digits=2, train=30, val=5, test=5).splits["train"]
    line = LinePreprocessing(height=8, patch_size=(8, 4), max_width=16, mode="L", mean=(0.5,), std=(0.5,))
    for cache, stages in ((True, ["tokenization", "sizes", "images"]), (False, ["tokenization", "sizes"])):
        seen = {}
        dataset = PairDataset(split, line, BYTES, cache=cache,
                              progress=lambda stage, *counts, seen=seen: seen.update({stage: counts}))
        assert seen == dict.fromkeys(stages, (30, 30))
        assert same(dataset[3], PairDataset(split, line, BYTES, cache=cache)[3])


def test_the_progress_of_texts_is_reported_for_each_part_that_is_tokenized(monkeypatch):
    """Both sides of millions of sentence pairs took minutes without a sign of life."""
    monkeypatch.setattr("vit.data.text.token_ids._CHUNK", 25)
    seen = []
    dataset = data(60, progress=lambda *each: seen.append(each))
    parts = [("tokenization", done, 60) for done in (25, 50, 60)]
    assert seen == 2 * parts and same(dataset[3], data(60)[3])
    seen.clear()
    data(60, max_source_len=4, on_long="cut", progress=lambda *each: seen.append(each))
    assert seen == 2 * parts  # the sources are cut without being tokenized again


def test_a_filler_has_no_token_to_predict_and_the_epoch_of_padding():
    filler = data().filler()
    assert filler["epoch"].tolist() == [1] and filler["index"].tolist() == [0]
    assert filler["target"][0, 0] == BOS and (filler["target"][0, 1:] == PAD).all()


def test_rows_of_tokens():
    tokens = Tokens(np.array([5, 6, 7, 8, 9, 10], np.int32), np.array([0, 2, 2, 6]))
    assert len(tokens) == 3 and tokens.lengths.tolist() == [2, 0, 4] and tokens[2].tolist() == [7, 8, 9, 10]
    ids, mask = tokens.padded(np.array([2, 1, 0]))
    assert ids.tolist() == [[7, 8, 9, 10], [PAD] * 4, [5, 6, PAD, PAD]]
    assert mask.sum(1).tolist() == [4, 0, 2] and mask[2].tolist() == [True, True, False, False]
    assert tokens.padded(np.array([1, 1]))[0].shape == (2, 0)
