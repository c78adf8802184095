"""Untrained models of texts with fixed weights: their predictions are arbitrary but reproducible."""

import torch

from vit.bundle import save_bundle
from vit.data import ByteTokenizer, LinePreprocessing
from vit.models.masked import Bert, MaskedTextConfig
from vit.models.seq2seq import EncoderDecoderConfig, Transformer
from vit.models.text import TextClassifier, TextClassifierConfig

BYTES = ByteTokenizer()
SIZES = {"vocab_size": 261, "max_len": 9, "dim": 12, "num_heads": 2, "depth": 1}


def save_translator(folder, tokenizers=("source", "target"), line=None, extra=None, source_tokenizer=BYTES,
                    target_tokenizer=BYTES, **options):
    """A byte-level seq2seq model with sources of 8 bytes and EOS."""
    torch.manual_seed(0)
    model = Transformer(EncoderDecoderConfig(**{**SIZES, "decoder_depth": 1, **options}))
    extra = {"generation": {"beam": 2, "max_len": 6}} | (extra or {})
    known = {"source": source_tokenizer, "target": target_tokenizer}
    tokenizers = {side: known[side] for side in tokenizers}
    return save_bundle(folder, model, preprocessing=line, extra=extra, tokenizers=tokenizers)


def save_image_to_text(folder, max_width=24, mean=(0.5,)):
    """An image-to-text model for images of 8 by at most `max_width` pixels."""
    line = LinePreprocessing(height=8, patch_size=(4, 4), max_width=max_width, mode="L", mean=mean, std=(0.5,))
    options = {"source": "image", "image_size": (8, max_width), "patch_size": 4, "in_chans": 1, "tied": "target"}
    return save_translator(folder, ["target"], line, **options)


def save_masked(folder, tokenizer=BYTES, max_len=32):
    """A masked language model."""
    torch.manual_seed(0)
    sizes = SIZES | {"vocab_size": tokenizer.vocab_size, "max_len": max_len}
    return save_bundle(folder, Bert(MaskedTextConfig(**sizes)), tokenizers={"source": tokenizer})


def save_classifier(folder, columns=1, extra=None, tokenizer=BYTES):
    """A byte-level text classifier with inputs of BOS, 7 bytes and EOS."""
    torch.manual_seed(0)
    model = TextClassifier(TextClassifierConfig(**SIZES, num_classes=2))
    extra = {"columns": columns} | (extra or {})
    return save_bundle(folder, model, ["no", "yes"], extra=extra, tokenizers={"source": tokenizer})
