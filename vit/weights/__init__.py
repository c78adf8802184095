"""First floor: weights of other projects as ours, and ours as timm's. Pure maps of names and shapes, and one loader."""

from vit.weights.bert import from_bert, to_bert
from vit.weights.detect import detect, published_heads
from vit.weights.format import Format
from vit.weights.load import load_weights
from vit.weights.recognise import FORMATS, Recognised, recognise, to_ours
from vit.weights.report import KeyReport, KeyRow
from vit.weights.timm import from_timm, timm_arguments, to_timm
from vit.weights.torchvision import from_torchvision
from vit.weights.transformers import from_transformers

__all__ = [
    "FORMATS", "Format", "KeyReport", "KeyRow", "Recognised", "detect", "from_bert", "from_timm", "from_torchvision",
    "from_transformers", "load_weights", "published_heads", "recognise", "timm_arguments", "to_bert", "to_ours",
    "to_timm",
]
