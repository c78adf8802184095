"""Models of texts that were never trained: what they say means nothing, but it is always the same."""

import torch

from vit.bundle import save_bundle
from vit.data import ByteTokenizer, LinePreprocessing
from vit.models.seq2seq import EncoderDecoderConfig, Transformer
from vit.models.text import TextClassifier, TextClassifierConfig

BYTES = ByteTokenizer()
SIZES = {"vocab_size": 261, "max_len": 9, "dim": 12, "num_heads": 2, "depth": 1}


def save_writer(folder, tokenizers=("source", "target"), line=None, extra=None, **options):
    """It reads 8 bytes and the end."""
    torch.manual_seed(0)
    model = Transformer(EncoderDecoderConfig(**SIZES, decoder_depth=1, **options))
    extra = {"generation": {"beam": 2, "max_len": 6}} | (extra or {})
    return save_bundle(folder, model, preprocessing=line, extra=extra, tokenizers=dict.fromkeys(tokenizers, BYTES))


def save_reader(folder):
    """It reads images of 8 by at most 24 pixels."""
    line = LinePreprocessing(height=8, patch_size=(4, 4), max_width=24, mode="L", mean=(0.5,), std=(0.5,))
    options = {"source": "image", "image_size": (8, 24), "patch_size": 4, "in_chans": 1, "tied": "target"}
    return save_writer(folder, ["target"], line, **options)


def save_classifier(folder, columns=1, extra=None):
    """It reads 7 bytes, the beginning and the end."""
    torch.manual_seed(0)
    model = TextClassifier(TextClassifierConfig(**SIZES, num_classes=2))
    extra = {"columns": columns} | (extra or {})
    return save_bundle(folder, model, ["no", "yes"], extra=extra, tokenizers={"source": BYTES})
