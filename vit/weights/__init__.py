"""First floor: weights of other projects as ours, and ours as timm's. Pure maps of names and shapes, and one loader."""

from vit.weights.bert import from_bert, to_bert
from vit.weights.detect import detect, published_heads
from vit.weights.format import Format
from vit.weights.load import KeyReport, KeyRow, load_weights, to_ours
from vit.weights.timm import from_timm, timm_arguments, to_timm
from vit.weights.torchvision import from_torchvision
from vit.weights.transformers import from_transformers

__all__ = [
    "Format", "KeyReport", "KeyRow", "detect", "from_bert", "from_timm", "from_torchvision", "from_transformers",
    "load_weights", "published_heads", "timm_arguments", "to_bert", "to_ours", "to_timm",
]
