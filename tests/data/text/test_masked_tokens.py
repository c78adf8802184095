"""Corpora and masked-token batches: selection and frequency of masked tokens, as a function of counters."""

import gzip

import numpy as np
import pytest
import torch

from vit.data import (
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    CorpusSource,
    CorpusSplit,
    DataError,
    EvalBatches,
    MaskedDataset,
    MaskedTrainBatches,
    corpus,
    number_stories,
)
from vit.data.text.tokenizers import BOS, EOS, MASK, PAD, SPECIALS

BYTES = ByteTokenizer()


def toy(documents=30, lines=4):
    texts = [
        f"{chr(97 + d % 26)}{chr(97 + d // 26)}{'x' * (d + 3 * s)} {s}" for d in range(documents) for s in range(lines)
    ]
    return CorpusSplit(texts, [f"toy line {i + 1}" for i in range(len(texts))], np.repeat(np.arange(documents), lines))


def epoch_of(dataset, epoch=0):
    return dataset.__getitems__([(epoch, i) for i in range(len(dataset))])


def original(batch):
    """The ids before masking."""
    return torch.where(batch["masked"] != -100, batch["masked"], batch["source"])


def texts_of(ids):
    """[bos] a [eos] b [eos] → a, b"""
    ids = ids[ids != PAD].tolist()
    assert ids[0] == BOS and ids[-1] == EOS and ids.count(EOS) == 2
    middle = ids.index(EOS)
    return BYTES.decode(ids[1:middle]), BYTES.decode(ids[middle + 1 : -1])


def test_unknown_and_special_tokens_are_not_selected():
    texts = ["abcde" * 8, "?" * 20, "??a??", "?" * 30, "abcab" * 8, "!!"]
    split = CorpusSplit(texts, [f"line {i}" for i in range(6)], np.repeat([0, 1, 2], 2))
    seen = []
    dataset = MaskedDataset(split, CharTokenizer(list("abcde")), max_len=40, progress=lambda *each: seen.append(each))
    assert seen == [("tokenization", len(split), len(split))]
    for epoch in range(20):
        batch = epoch_of(dataset, epoch)
        assert not ((batch["masked"] >= 0) & (batch["masked"] < len(SPECIALS))).any()
        known = (original(batch) >= len(SPECIALS)).sum(1)
        expected = torch.minimum((known * 0.15).round().clamp(min=1), known)
        assert (batch["masked"] >= 0).sum(1).tolist() == expected.tolist()
        assert dataset.masked_count([(epoch, i) for i in range(3)]) == expected.sum()


def test_pairs_of_sentences():
    split = toy()
    dataset = MaskedDataset(split, BYTES)
    assert len(dataset) == 30 * 3, "the last sentence of a document has none that follows"
    batch = epoch_of(dataset)
    index = {text: i for i, text in enumerate(split.texts)}
    seen = []
    for row, ids in enumerate(original(batch)):
        a, b = texts_of(ids)
        assert index[a] == dataset.first_sentences[row]
        follows = index[b] == index[a] + 1
        assert follows == (batch["next"][row] == 0), "0: follows, 1: any other"
        assert batch["segment"][row].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * int((ids == PAD).sum())
        seen.append(index[b])
    assert torch.equal(batch["source_mask"], original(batch) != PAD)
    assert len(set(seen)) > 50


def test_half_of_the_second_sentences_are_random():
    dataset = MaskedDataset(toy(), BYTES)
    batches = [epoch_of(dataset, epoch) for epoch in range(20)]
    assert 0.45 < torch.cat([b["next"] for b in batches]).float().mean() < 0.55
    index = {text: i for i, text in enumerate(toy().texts)}
    drawn = [index[texts_of(ids)[1]] for batch in batches for ids in original(batch)[batch["next"] == 1]]
    counts = np.bincount(drawn, minlength=120)
    assert counts.min() >= 1 and counts.max() < 25, "every sentence of the corpus is drawn, evenly"
    two = CorpusSplit(["a", "b"], ["1", "2"], np.zeros(2, int))
    assert {texts_of(ids) for e in range(9) for ids in original(epoch_of(MaskedDataset(two, BYTES), e))} == {
        ("a", "b"),
        ("a", "a"),
    }


def test_fifteen_percent_are_selected_and_80_percent_of_them_masked():
    tokenizer = BPETokenizer.train(toy().texts, 300)
    dataset = MaskedDataset(toy(), tokenizer)
    chosen = changed = masked = total = 0
    for epoch in range(40):
        batch = epoch_of(dataset, epoch)
        selected, ids = batch["masked"] != -100, original(batch)
        plain = ids >= 5
        assert not (selected & ~plain).any(), "special tokens are never selected"
        per_row, maskable = selected.sum(1), plain.sum(1)
        assert torch.equal(per_row, (maskable * 0.15).round().clamp(min=1).long())
        assert torch.equal(batch["source"][~selected], ids[~selected])
        assert ((batch["source"][selected] == MASK) | (batch["source"][selected] >= 5)).all()
        total += int(plain.sum())
        chosen += int(selected.sum())
        masked += int((batch["source"][selected] == MASK).sum())
        changed += int((batch["source"] != ids).sum()) - int((batch["source"][selected] == MASK).sum())
    assert 0.13 < chosen / total < 0.17
    assert 0.78 < masked / chosen < 0.82 and 0.085 < changed / chosen < 0.115


def test_positions_are_selected_uniformly():
    dataset = MaskedDataset(CorpusSplit(["abcdefghij"] * 2, ["1", "2"], np.zeros(2, int)), BYTES)
    selected = torch.stack([(epoch_of(dataset, epoch)["masked"][0] != -100) for epoch in range(1000)]).sum(0)
    letters = selected[selected > 0]
    assert len(letters) == 20 and letters.min() > 110 and letters.max() < 195  # 150 expected


def test_batches_are_functions_of_counters():
    dataset = MaskedDataset(toy(), BYTES, seed=5)
    alone = dataset.__getitems__([(3, 17)])
    among = dataset.__getitems__([(3, 80), (3, 17), (4, 17)])
    width = int(alone["source_mask"].sum())
    for key in ("source", "masked", "segment"):
        assert torch.equal(among[key][1, :width], alone[key][0, :width])
    assert not torch.equal(among["source"][1], among["source"][2])
    other = MaskedDataset(toy(), BYTES, seed=6).__getitems__([(3, i) for i in range(20)])
    assert not torch.equal(other["next"], dataset.__getitems__([(3, i) for i in range(20)])["next"])


def test_long_pairs_are_cut():
    dataset = MaskedDataset(toy(), BYTES, max_len=24)
    assert dataset.cut == sum(len(text) > 21 for text in toy().texts) > 0
    batch = epoch_of(dataset)
    assert batch["source"].shape[1] == 24 and (batch["source_mask"].sum(1) <= 24).all()
    for ids in original(batch):
        texts_of(ids)


@pytest.mark.parametrize("workers", [0, 2])
def test_training_batches_count_tokens_over_all_ranks(workers):
    dataset = MaskedDataset(toy(), BYTES)
    whole = list(MaskedTrainBatches(dataset, 16, seed=1))
    ranks = [list(MaskedTrainBatches(dataset, 16, seed=1, rank=rank, world=2, workers=workers)) for rank in range(2)]
    assert len(whole) == len(ranks[0]) == 90 // 16
    for batch, *parts in zip(whole, *ranks, strict=True):
        assert torch.cat([p["index"] for p in parts]).tolist() == batch["index"].tolist()
        assert batch["tokens"] == (batch["masked"] != -100).sum() == parts[0]["tokens"] == parts[1]["tokens"]
        assert sum(int((p["masked"] != -100).sum()) for p in parts) == batch["tokens"]
    resumed = MaskedTrainBatches(dataset, 16, seed=1)
    resumed.start = 3
    rest = list(resumed)
    assert all(torch.equal(a[k], b[k]) for a, b in zip(rest, whole[3:], strict=True) for k in a)
    first, second = (list(EvalBatches(dataset, 16)) for _ in range(2))
    assert all(torch.equal(a[k], b[k]) for a, b in zip(first, second, strict=True) for k in a)


def test_corpus_files(tmp_path):
    text = "one\ntwo\n\n\nthree\n \nfour\nfive\nsix\n"
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "dev.txt").write_text("a\nb\n")
    source = corpus(tmp_path)
    train = source.splits["train"]
    assert list(train.texts) == ["one", "two", "three", "four", "five", "six"] and set(source.splits) == {
        "train",
        "val",
    }
    assert [train.texts[i] for i in train.followed_sentences()] == ["one", "four", "five"]
    assert train.names[2] == "train.txt.gz line 5"
    lines = [f"line {i}" for i in range(100)]
    (tmp_path / "all.txt").write_text("\n".join(lines))
    assert len(corpus(tmp_path, test="all.txt").splits["test"]) == 100


def where(source):
    return {text: key for key, split in source.splits.items() for text in split.texts}


@pytest.mark.parametrize("documents", [1, 40])
def test_a_corpus_is_split_by_documents_and_splits_are_stable(tmp_path, documents):
    """A single document is split by blocks; a sentence added at the start changes only its block."""
    length = 2000 // documents
    texts = [[f"sentence {i} of document {d}" for i in range(length)] for d in range(documents)]
    write = lambda texts: (tmp_path / "a.txt").write_text("\n\n".join("\n".join(text) for text in texts))  # noqa: E731
    write(texts)
    before = where(corpus(tmp_path / "a.txt", fractions=(0.6, 0.2, 0.2)))
    assert len(before) == 2000
    counts = [list(before.values()).count(key) for key in ("train", "val", "test")]
    assert 900 < counts[0] < 1500 and min(counts) > 150
    write([["a new one", "and another one"], *texts] if documents > 1 else [["a new one", *texts[0]]])
    after = where(corpus(tmp_path / "a.txt", fractions=(0.6, 0.2, 0.2)))
    moved = [text for text, key in before.items() if after[text] != key]
    assert moved == [] if documents > 1 else len(moved) <= 60 and all(int(text.split()[1]) < 60 for text in moved)
    for split in corpus(tmp_path / "a.txt", split_seed=3).splits.values():
        firsts = [split.texts[i] for i in split.followed_sentences()]
        follows = [split.texts[i + 1] for i in split.followed_sentences()]
        both = [(a.split()[1], b.split()[1]) for a, b in zip(firsts, follows, strict=True) if "new" not in a]
        assert all(int(b) == int(a) + 1 for a, b in both), "sentences of different blocks are not neighbours"


@pytest.mark.parametrize(
    ("lines", "options", "text"),
    [
        (
            ["a", "", "b", "", "c"],
            {"fractions": (1, 0, 0)},
            r"none of the 3 sentences of train is followed by another one",
        ),
        (
            ["a", "b", "c"],
            {},
            r"c.txt: with data.fractions=\[0.8, 0.1, 0.1\] val gets 0 of 3 sentences, none of which is followed",
        ),
        (["a", "b"], {}, "val gets 0 of 2 sentences, .*; add text, or name a file with data.val=NAME"),
        (["a", "b", "c"], {"fractions": (0.7, 0, 0.3)}, "test gets 0 of 3 sentences"),
        (["", " "], {}, "has 0 sentences"),
        (["a", "b"], {"fractions": (0.5, 0.2, 0.1)}, "must be three numbers >= 0 that add up to 1"),
    ],
)
def test_wrong_files(tmp_path, lines, options, text):
    (tmp_path / "c.txt").write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=text):
        corpus(tmp_path / "c.txt", **options)


def test_missing_files_and_wrong_options(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data.train: .* has no train.txt\[.gz\]; name the file"):
        corpus(tmp_path)
    with pytest.raises(FileNotFoundError, match="data.root: .*no does not exist"):
        corpus(tmp_path / "no")
    with pytest.raises(ValueError, match="share=0 must be above 0"):
        MaskedDataset(toy(), BYTES, share=0)
    with pytest.raises(ValueError, match="max_len=4 must be at least 5"):
        MaskedDataset(toy(), BYTES, max_len=4)
    with pytest.raises(DataError, match="is followed by another one"):
        CorpusSource("x", {"train": CorpusSplit(["a"], ["1"], np.zeros(1, int))})


def test_generated_stories_are_consistent():
    from tests.data.sets.test_spelled_numbers import read

    source = number_stories(train=300, val=20, test=30)
    assert len(np.unique(source.splits["train"].document)) == 300
    for split in source.splits.values():
        amount, person = None, None
        for i, line in enumerate(split.texts):
            words = line.split()
            if i == 0 or split.document[i] != split.document[i - 1]:
                person, amount = words[0], read(" ".join(words[2:-1]))
                continue
            at = words.index(person)
            assert read(" ".join(words[1 : at - 1])) == amount
            end = words.index("and")
            change = read(words[end - 1])
            before, amount = amount, read(" ".join(words[end + 2 :]))
            assert amount == before + change if words[0] == "with" else amount == before - change
            assert 0 <= amount <= 20 and 1 <= change <= 12
    assert len(corpus().splits["train"].followed_sentences()) > 15_000
    assert list(number_stories(10, 1, 1).splits["train"].texts)[:5] == list(source.splits["train"].texts)[:5]
