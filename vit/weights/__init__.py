"""First floor: weights of other projects as ours, and ours as timm's. Pure maps of names and shapes, and one loader."""

from vit.weights.config_inference import detect, published_heads
from vit.weights.format_detection import FORMATS, Recognised, recognise, to_ours
from vit.weights.formats.bert import from_bert, to_bert
from vit.weights.formats.timm import from_timm, timm_arguments, to_timm
from vit.weights.formats.torchvision import from_torchvision
from vit.weights.formats.transformers import from_transformers
from vit.weights.key_report import KeyReport, KeyRow
from vit.weights.loading import load_weights
from vit.weights.weight_format import Format

__all__ = [
    "FORMATS", "Format", "KeyReport", "KeyRow", "Recognised", "detect", "from_bert", "from_timm", "from_torchvision",
    "from_transformers", "load_weights", "published_heads", "recognise", "timm_arguments", "to_bert", "to_ours",
    "to_timm",
]
