"""Tokenizers of this project as files that transformers' `AutoTokenizer` reads."""

import json
from typing import Any

from vit.data.text.tokenizers import BOS, EOS, MASK, PAD, SPECIALS, UNK, BPETokenizer, Tokenizer, bytes_to_unicode


def tokenizer_files(tokenizer: Tokenizer, max_len: int) -> dict[str, Any]:
    """The contents of `tokenizer.json` and `tokenizer_config.json`: the same ids, with bos and eos around one text or
    two.
    """
    from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors
    from tokenizers import Tokenizer as Library

    letter = bytes_to_unicode()
    vocab = {"".join(letter[byte] for byte in piece): i for i, piece in enumerate(tokenizer.pieces) if piece}
    vocab |= {name: i for i, name in enumerate(SPECIALS)}
    merges = tokenizer.merges if isinstance(tokenizer, BPETokenizer) else []
    library = Library(models.BPE(vocab=vocab, merges=merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if tokenizer.lower:
        library.normalizer = normalizers.Lowercase()
    library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    bos, eos = SPECIALS[BOS], SPECIALS[EOS]
    library.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}", pair=f"{bos} $A {eos} $B:1 {eos}:1", special_tokens=[(bos, BOS), (eos, EOS)])
    named = {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK, "mask": MASK}
    config = {f"{name}_token": SPECIALS[i] for name, i in named.items()}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_len, "split_special_tokens": True,
               "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    return {"tokenizer.json": json.loads(library.to_str()), "tokenizer_config.json": config}
