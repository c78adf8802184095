"""Tokenizers of this project as files that transformers' `AutoTokenizer` reads."""

import json
from typing import Any

from vit.data.text.tokenizers import (
    BOS,
    EOS,
    MASK,
    PAD,
    SPECIALS,
    UNK,
    BPETokenizer,
    CharTokenizer,
    Tokenizer,
    bytes_to_unicode,
)

CASED, SKIPPED = r"[\p{Cased}&&[^\p{Case_Ignorable}]]", r"\p{Case_Ignorable}*"
# a capital sigma at the end of a word, of which `str.lower` makes another letter than inside; Lowercase does not
FINAL_SIGMA = f"(?<={CASED}{SKIPPED})Σ(?!{SKIPPED}{CASED})"


def tokenizer_files(tokenizer: Tokenizer, max_len: int) -> dict[str, Any]:
    """The contents of `tokenizer.json` and `tokenizer_config.json`: the same ids, with bos and eos around one text or
    two.
    """
    from tokenizers import AddedToken, Regex, normalizers, processors

    library = of_characters(tokenizer) if isinstance(tokenizer, CharTokenizer) else of_bytes(tokenizer)
    if tokenizer.lower:
        library.normalizer = normalizers.Sequence([normalizers.Replace(Regex(FINAL_SIGMA), "ς"),
                                                   normalizers.Lowercase()])
    library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    bos, eos = SPECIALS[BOS], SPECIALS[EOS]
    library.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}", pair=f"{bos} $A {eos} $B:1 {eos}:1", special_tokens=[(bos, BOS), (eos, EOS)])
    named = {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK, "mask": MASK}
    config = {f"{name}_token": SPECIALS[i] for name, i in named.items()}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_len, "split_special_tokens": True,
               "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    return {"tokenizer.json": json.loads(library.to_str()), "tokenizer_config.json": config}


def of_bytes(tokenizer: Tokenizer) -> Any:
    """Byte-level BPE of the library, without merges for bytes."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers

    letter = bytes_to_unicode()
    vocab = {"".join(letter[byte] for byte in piece): i for i, piece in enumerate(tokenizer.pieces) if piece}
    merges = tokenizer.merges if isinstance(tokenizer, BPETokenizer) else []
    library = Library(models.BPE(vocab=with_specials(vocab), merges=merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return library


def of_characters(tokenizer: CharTokenizer) -> Any:
    """A word of the library for each character."""
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Library

    vocab = {piece.decode(): i for i, piece in enumerate(tokenizer.pieces) if piece}
    library = Library(models.WordLevel(vocab=with_specials(vocab), unk_token=SPECIALS[UNK]))
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    library.decoder = decoders.Fuse()
    return library


def with_specials(vocab: dict[str, int]) -> dict[str, int]:
    return vocab | {name: i for i, name in enumerate(SPECIALS)}
