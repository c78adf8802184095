"""LightningModules: loss, metrics, augmentation and optimizer around a model; and the data module they share."""

from vit.tasks.base import Task
from vit.tasks.classification import Classification
from vit.tasks.datamodule import Batches
from vit.tasks.loss import BinaryCrossEntropy, CrossEntropy

__all__ = ["Batches", "BinaryCrossEntropy", "Classification", "CrossEntropy", "Task"]
