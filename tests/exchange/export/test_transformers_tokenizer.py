"""Tokenizers of this project in transformers: the same ids and texts."""

import json
import random

import pytest

from vit.data.text.tokenizers import BOS, EOS, MASK, PAD, SPECIALS, UNK, BPETokenizer, ByteTokenizer, CharTokenizer
from vit.exchange.export.transformers_tokenizer import tokenizer_files

hf = pytest.importorskip("transformers")

LINES = ["the cat sat on the mat", "Schöne Grüße", "ο δρόμος ΣΑΣ", "it's 12 o'clock"] * 3
TOKENIZERS = {
    "bytes": ByteTokenizer(), "lower bytes": ByteTokenizer(lower=True),
    "byte pairs": BPETokenizer.train(LINES, 300), "lower byte pairs": BPETokenizer.train(LINES, 300, lower=True),
    "characters": CharTokenizer.train(LINES), "lower characters": CharTokenizer.train(LINES, lower=True),
}
LETTERS = [*"aA ΣΣσςΟ1'.,·\n\tßẞİıé", "e\u0301", "\u00ad", "ʰ", "中", "😀", "\x00", "the", "<pad>", "<eos>", "▁", "Ġ"]


def transformers_tokenizer(tokenizer, folder):
    """The tokenizer that `AutoTokenizer` reads from the files."""
    for name, values in tokenizer_files(tokenizer, max_len=77).items():
        (folder / name).write_text(json.dumps(values))
    return hf.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_are_the_same(name: str, tmp_path) -> None:
    ours, draw = TOKENIZERS[name], random.Random(0)
    theirs = transformers_tokenizer(ours, tmp_path)
    texts = ["", "THE CAT", "ΟΔΟΣ ΣΟΦΟΣ", *("".join(draw.choices(LETTERS, k=9)) for _ in range(500))]
    assert theirs(texts)["input_ids"] == [[BOS, *ours.encode(text), EOS] for text in texts]
    pair = theirs("the cat", "ΟΣ")
    first, second = ours.encode("the cat"), ours.encode("ΟΣ")
    assert pair["input_ids"] == [BOS, *first, EOS, *second, EOS]
    assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert theirs.decode(ours.encode("the cat sat"), skip_special_tokens=True) == "the cat sat"


def test_special_tokens_and_the_number_of_tokens(tmp_path) -> None:
    theirs = transformers_tokenizer(TOKENIZERS["characters"], tmp_path)
    found = {kind: getattr(theirs, f"{kind}_token_id") for kind in ("pad", "bos", "eos", "unk", "mask")}
    assert found == {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK, "mask": MASK}
    assert theirs.model_max_length == 77 and len(theirs) == TOKENIZERS["characters"].vocab_size
    assert theirs.decode([BOS, EOS, MASK], skip_special_tokens=True) == ""
    assert theirs.convert_ids_to_tokens(range(5)) == list(SPECIALS)
