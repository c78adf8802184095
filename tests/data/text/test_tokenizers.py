"""Tokenizers: lossless round trips, no special tokens from text, and identical ids after loading."""

import json
import subprocess
import sys

import pytest

from vit.data import BPETokenizer, ByteTokenizer, CharTokenizer, parallel, tokenizer_from_dict, train_tokenizer
from vit.data.text.tokenizers import BOS, EOS, MASK, PAD, UNK, byte_alphabet

LINES = [
    "the dog sees the dogs",
    "Der Hund läuft über die Straße.",
    "the dog runs",
    "dogs and dogs",
    "日本語のテキスト",
] * 3
ODD = [
    "",
    " ",
    "  two  spaces ",
    "tab\tnewline\nreturn\r",
    "\x00\x01\x7f\x85\u2028",
    "<pad><bos><eos><unk><mask> [MASK] </s>",
    "naïve café e\u0301 Ŀ Ġ Ċ Ã",
    "日本語 😀👩‍👩‍👧 العربية",
    "a" * 500,
    "12345 1,000.50 don't",
]


@pytest.fixture(scope="module")
def bpe():
    return BPETokenizer.train(LINES, vocab_size=320)


@pytest.fixture(params=["byte", "bpe", "char"])
def tokenizer(request, bpe):
    char = CharTokenizer.train([*LINES, *ODD, "half ? a pair"])
    return {"byte": ByteTokenizer(), "bpe": bpe, "char": char}[request.param]


def test_special_ids():
    assert (PAD, BOS, EOS, UNK, MASK) == (0, 1, 2, 3, 4)
    assert ByteTokenizer().vocab_size == 261
    assert ByteTokenizer().encode("aß") == [5 + 97, 5 + 0xC3, 5 + 0x9F]


@pytest.mark.parametrize("text", ODD + LINES)
def test_decoding_inverts_encoding(tokenizer, text):
    ids = tokenizer.encode(text)
    assert all(5 <= i < tokenizer.vocab_size for i in ids), "a text was encoded to a special id"
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([BOS, *ids, EOS, *ids, PAD]) == text
    assert tokenizer.decode(i for i in [PAD, BOS, UNK, MASK, *ids]) == text


def test_batch_encoding_equals_single_encoding(tokenizer):
    assert tokenizer.encode_batch(ODD + LINES) == [tokenizer.encode(text) for text in ODD + LINES]
    assert tokenizer.encode_batch([]) == []


def test_decoding_never_fails(tokenizer):
    broken = tokenizer.encode("ß")[:1] if tokenizer.kind == "byte" else [5 + byte_alphabet().index("Ã")]
    assert tokenizer.decode(broken) == "\ufffd"
    assert tokenizer.decode([10**6, -1]) == "\ufffd\ufffd"
    assert tokenizer.decode(tokenizer.encode("half \ud83d a pair")) == "half ? a pair"


def test_tokens_for_display(bpe):
    assert bpe.tokens([BOS, *bpe.encode("the dog"), EOS, MASK]) == ["<bos>", "the", " dog", "<eos>", "<mask>"]
    for tokenizer in (bpe, ByteTokenizer()):
        assert "".join(tokenizer.tokens(tokenizer.encode("the dog, dogs"))) == "the dog, dogs"
        assert len(tokenizer.tokens(range(tokenizer.vocab_size))) == tokenizer.vocab_size


def test_frequent_pairs_are_merged(bpe):
    assert bpe.vocab_size <= 320 and len(bpe.encode("the dogs")) == 2
    assert len(BPETokenizer.train(LINES, 320, min_frequency=100).merges) == 0
    assert BPETokenizer.train([], 300).vocab_size == 261, "without lines there are only bytes"
    small = BPETokenizer.train(LINES, 270)
    assert small.vocab_size == 270 and small.merges == bpe.merges[:9]


def test_training_is_deterministic():
    """Also in another process with different string hashes."""
    code = ("from tests.data.text.test_tokenizers import LINES, BPETokenizer; "
            "print(ascii(BPETokenizer.train(LINES, 320).merges))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == ascii(BPETokenizer.train(LINES, 320).merges), done.stderr


def test_ids_equal_those_of_the_library(bpe):
    """The ids equal the vocabulary of the library, checked with its decoder and ranks."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {letter: i for i, letter in enumerate(byte_alphabet())}
    for a, b in bpe.merges:
        vocab.setdefault(a + b, len(vocab))
    reference = Tokenizer(models.BPE(vocab=vocab, merges=bpe.merges))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.decoder = decoders.ByteLevel()
    assert sorted(pre_tokenizers.ByteLevel.alphabet()) == byte_alphabet()
    for text in LINES + ODD:
        ids = reference.encode(text).ids
        assert bpe.encode(text) == [i + 5 for i in ids]
        assert bpe.decode(bpe.encode(text)) == reference.decode(ids)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_stored_as_plain_data(kind, lower):
    tokenizer = train_tokenizer(kind, LINES, 300, lower=lower)
    assert type(tokenizer) is {"byte": ByteTokenizer, "bpe": BPETokenizer}[kind]
    again = tokenizer_from_dict(json.loads(json.dumps(tokenizer.to_dict())))
    assert type(again) is type(tokenizer) and again.vocab_size == tokenizer.vocab_size
    assert again.encode_batch(LINES + ODD) == tokenizer.encode_batch(LINES + ODD)
    assert again.to_dict() == tokenizer.to_dict()
    assert again.decode(again.encode("Straße ÄÖ")) == ("straße äö" if lower else "Straße ÄÖ")


def test_tokenizers_can_be_pickled(bpe):
    import pickle

    bpe.encode("the")
    assert pickle.loads(pickle.dumps(bpe)).encode_batch(LINES) == bpe.encode_batch(LINES)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"kind": "os.system"}, "tokenizer kind 'os.system' is not one of byte, bpe"),
        ({}, "tokenizer kind None is not one of byte, bpe"),
        ({"kind": "bpe", "lower": False}, "the bpe tokenizer cannot be read: KeyError 'merges'"),
        ({"kind": "byte", "lower": "no"}, "lower='no' must be true or false"),
        (
            {"kind": "bpe", "lower": False, "merges": [["a", "bc"]]},
            "merge 1 of the tokenizer joins 'a' and 'bc', one of which",
        ),
        (
            {"kind": "bpe", "lower": False, "merges": [["a", "b"], ["a"]]},
            r"merge 2 of the tokenizer, \['a'\], is not a pair",
        ),
        (
            {"kind": "char", "lower": False, "characters": ["a", "\ud800"]},
            r"'\\ud800' in the tokenizer is not one character",
        ),
        ({"kind": ["byte"]}, r"tokenizer kind \['byte'\] is not one of byte, bpe"),
    ],
)
def test_invalid_stored_values_are_errors(values, text):
    with pytest.raises(ValueError, match=text):
        tokenizer_from_dict(values)


def test_a_vocabulary_smaller_than_the_bytes_is_an_error():
    with pytest.raises(ValueError, match="vocab_size 260 is below 261, the number of special tokens and bytes"):
        BPETokenizer.train(LINES, 260)
    with pytest.raises(ValueError, match="tokenizer kind 'words' is not one of byte, bpe"):
        train_tokenizer("words", LINES)


def test_the_library_is_imported_lazily():
    code = "import sys, vit.data; vit.data.ByteTokenizer().encode('a'); print('tokenizers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_real_sentences(real):
    source = parallel(real / "multi30k", test="test_2016_flickr")
    train, test = source.splits["train"], source.splits["test"]
    lines = [train.sources[i] for i in range(3000)] + [train.targets[i] for i in range(3000)]
    tokenizer = BPETokenizer.train(lines, 2000)
    unseen = [*test.sources, *test.targets]
    ids = tokenizer.encode_batch(unseen)
    assert [tokenizer.decode(row) for row in ids] == unseen
    assert sum(map(len, ids)) < 0.35 * sum(len(text.encode()) for text in unseen)


def test_characters_are_those_of_the_training_texts():
    tokenizer = CharTokenizer.train(["Straße 😀", "aab"])
    assert tokenizer.characters == sorted(set("Straße 😀aab")) and tokenizer.vocab_size == 5 + 9
    assert tokenizer.encode("aßz") == [5 + tokenizer.characters.index("a"), 5 + tokenizer.characters.index("ß"), UNK]
    assert tokenizer.decode(tokenizer.encode("aßz")) == "aß"
    assert CharTokenizer.train(["aaabbc"], vocab_size=7).characters == ["a", "b"]  # the most frequent ones
    assert CharTokenizer.train(["Aa"], lower=True).characters == ["a"]
    for wrong in (["ab"], ["a", "a"]):
        with pytest.raises(ValueError, match="the tokenizer"):
            CharTokenizer(wrong)
    with pytest.raises(ValueError, match="vocab_size 5 is not above 5"):
        train_tokenizer("char", ["a"], vocab_size=5)


def test_an_incomplete_character_is_left_out_on_request():
    assert ByteTokenizer().decode(ByteTokenizer().encode("aß")[:-1], "ignore") == "a"
