"""Models composed of the layers in `vit.nn`."""

from vit.models.classifier import Classifier, VisionTransformer
from vit.models.config import VisionTransformerConfig
from vit.models.ensemble import ClassifierEnsemble, EnsembleConfig
from vit.models.flops import flops
from vit.models.mae import MaskedAutoencoder, MaskedImageConfig
from vit.models.masked import Bert, MaskedText, MaskedTextConfig
from vit.models.seq2seq import EncoderDecoder, EncoderDecoderConfig, ImageToTextConfig, Transformer
from vit.models.text import TextClassifier, TextClassifierConfig
from vit.models.timm_model import TimmConfig, timm_model
from vit.models.zoo import create_model, list_models, model_from_config

__all__ = [
    "Bert", "Classifier", "ClassifierEnsemble", "EncoderDecoder", "EncoderDecoderConfig", "EnsembleConfig",
    "ImageToTextConfig", "MaskedAutoencoder",
    "MaskedImageConfig", "MaskedText", "MaskedTextConfig", "TextClassifier", "TextClassifierConfig", "TimmConfig",
    "Transformer", "VisionTransformer", "VisionTransformerConfig", "create_model", "flops", "list_models",
    "model_from_config", "timm_model",
]
