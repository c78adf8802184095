"""LightningModules: loss, metrics, augmentation and optimizer around a model; and the data module they share."""

from vit.tasks.base import Optimizing, Task
from vit.tasks.classification import Classification
from vit.tasks.datamodule import Batches
from vit.tasks.distilling import Distillation, Teacher
from vit.tasks.loss import BinaryCrossEntropy, CrossEntropy, MultiLabelLoss, TextLoss
from vit.tasks.masked_image import MaskedImages
from vit.tasks.masked_text import MaskedTokens
from vit.tasks.multi_label import MultiLabel
from vit.tasks.seq2seq import Seq2Seq, Writing
from vit.tasks.text_classification import TextClassification

__all__ = [
    "Batches", "BinaryCrossEntropy", "Classification", "CrossEntropy", "Distillation", "MaskedImages", "MaskedTokens",
    "MultiLabel", "MultiLabelLoss", "Optimizing", "Seq2Seq", "Task", "Teacher", "TextClassification", "TextLoss",
    "Writing",
]
