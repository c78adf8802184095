"""Saved models in use: `load` gives what the bundle is made for, with its own preprocessing and tokenizers."""

from vit.inference.images import (
    Prediction,
    Predictions,
    Predictor,
    autocast,
    best_device,
    decode_ahead,
    forward,
    named_images,
)
from vit.inference.label_sets import LabelSet, LabelSetPredictor
from vit.inference.loading import load
from vit.inference.named_texts import Bad
from vit.inference.text_classes import TextPredictor
from vit.inference.texts import Writer, Written

__all__ = [
    "Bad", "LabelSet", "LabelSetPredictor", "Prediction", "Predictions", "Predictor", "TextPredictor", "Writer",
    "Written", "autocast", "best_device", "decode_ahead", "forward", "load", "named_images",
]
