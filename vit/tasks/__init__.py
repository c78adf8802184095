"""LightningModules, which combine a model with loss, metrics, augmentation and optimizer, and their data module."""

from vit.tasks.base import Optimization, Task
from vit.tasks.classification import Classification
from vit.tasks.datamodule import Batches, DeviceBatches
from vit.tasks.distillation import Distillation, Teacher
from vit.tasks.loss import BinaryCrossEntropy, CrossEntropy, MultiLabelLoss, TextLoss
from vit.tasks.masked_image import MaskedImages
from vit.tasks.masked_text import MaskedTokens
from vit.tasks.multi_label import MultiLabel
from vit.tasks.seq2seq import Seq2Seq, ValidationTexts
from vit.tasks.text_classification import TextClassification

Optimizing, Writing = Optimization, ValidationTexts  # aliases: former names

__all__ = [
    "Batches", "BinaryCrossEntropy", "Classification", "CrossEntropy", "DeviceBatches", "Distillation", "MaskedImages",
    "MaskedTokens", "MultiLabel", "MultiLabelLoss", "Optimization", "Optimizing", "Seq2Seq", "Task", "Teacher",
    "TextClassification", "TextLoss", "ValidationTexts", "Writing",
]
