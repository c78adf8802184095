"""Predictors over saved models: `load` returns the one that fits the bundle, with its preprocessing and tokenizers."""

from vit.inference.image_inputs import decode_ahead, named_images
from vit.inference.images import Prediction, Predictions, Predictor, autocast, best_device, forward
from vit.inference.loading import load
from vit.inference.masked_text import FilledText, MaskedTextPredictor, MaskedWord
from vit.inference.multi_label import MultiLabelPrediction, MultiLabelPredictor
from vit.inference.seq2seq import GeneratedText, RecordedSearch, ScoredText, Seq2SeqPredictor
from vit.inference.text_classification import TextPredictor
from vit.inference.text_inputs import BadInput

# former names
Bad, LabelSet, LabelSetPredictor = BadInput, MultiLabelPrediction, MultiLabelPredictor
Writer, Written = Seq2SeqPredictor, GeneratedText

__all__ = [
    "Bad", "BadInput", "FilledText", "GeneratedText", "LabelSet", "LabelSetPredictor", "MaskedTextPredictor",
    "MaskedWord", "MultiLabelPrediction", "MultiLabelPredictor",
    "Prediction", "Predictions", "Predictor", "RecordedSearch", "ScoredText", "Seq2SeqPredictor",
    "TextPredictor", "Writer", "Written", "autocast", "best_device", "decode_ahead", "forward", "load", "named_images",
]
