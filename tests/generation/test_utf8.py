"""Constrained decoding against Python's UTF-8 decoder."""

import codecs
import itertools

import pytest
import torch

from vit.data import BPETokenizer, ByteTokenizer
from vit.generation import Generation, Utf8, generate
from vit.generation.utf8 import following
from vit.models.seq2seq import EncoderDecoderConfig, Transformer

LINES = ["das Straßenfest", "日本語のテキスト", "😀 café"] * 4


def incomplete(data: bytes) -> bytes | None:
    """The bytes of the last, incomplete character; None if the bytes are not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(data)
    except UnicodeDecodeError:
        return None
    return decoder.getstate()[0]


def test_every_sequence_of_two_bytes_and_many_of_four_are_as_in_python() -> None:
    edges = [0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF,
             0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF]
    for data in [*itertools.product(range(256), repeat=2), *itertools.product(edges, repeat=4)]:
        expected, found = incomplete(bytes(data)), following((), bytes(data))
        if expected is not None and expected[:1] == b"\xed" and expected[1:] >= b"\xa0":
            expected = None  # a surrogate, which Python rejects at its third byte
        assert (found is None) == (expected is None) and (found == ()) == (expected == b"")


def byte_model(vocab_size: int, seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(EncoderDecoderConfig(vocab_size=vocab_size, dim=16, num_heads=2, depth=1, decoder_depth=1,
                                            max_len=40, tied="none")).eval()


@pytest.mark.parametrize("settings", [{}, {"beam": 4, "n_best": 4}, {"sample": True, "n_best": 3, "temperature": 2.0},
                                      {"beam": 3, "no_repeat_ngram": 1}], ids=str)
@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BPETokenizer.train(LINES, 300)], ids=["bytes", "bpe"])
def test_texts_are_utf8_and_end_between_characters(settings: dict, tokenizer) -> None:
    model, source = byte_model(tokenizer.vocab_size + 3), torch.randint(5, 200, (6, 7))
    settings = Generation(max_len=14, **settings)
    found = generate(model, source, None, settings, utf8=Utf8(tokenizer.pieces))
    for text in itertools.chain(*found):
        assert all(5 <= token < tokenizer.vocab_size for token in text.ids)
        data = b"".join(tokenizer.pieces[token] for token in text.ids)
        assert incomplete(data) is not None and not (text.ended and incomplete(data))
        assert "\ufffd" not in tokenizer.decode(text.ids, "ignore")
    free = generate(model, source, None, settings)
    assert any("\ufffd" in tokenizer.decode(text.ids) for text in itertools.chain(*free))


def test_greedy_search_selects_the_best_of_the_allowed_tokens() -> None:
    model, pieces, source = byte_model(261), ByteTokenizer().pieces, torch.randint(5, 200, (1, 7))
    ((found,),) = generate(model, source, None, Generation(max_len=12), utf8=Utf8(pieces))
    ids = [1]
    for _ in range(12):
        with torch.no_grad():
            logits = model(source, torch.tensor([ids]))[0, -1]
        data = b"".join(pieces[token] for token in ids)
        allowed = [token for token in range(5, 261) if incomplete(data + pieces[token]) is not None]
        allowed += [2] * (incomplete(data) == b"")
        ids.append(max(allowed, key=lambda token: float(logits[token])))
        if ids[-1] == 2:
            break
    assert list(found.ids) == [token for token in ids[1:] if token != 2]
