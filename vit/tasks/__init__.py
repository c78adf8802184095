"""LightningModules: loss, metrics, augmentation and optimizer around a model; and the data module they share."""

from vit.tasks.classification import Classification
from vit.tasks.datamodule import Batches

__all__ = ["Batches", "Classification"]
