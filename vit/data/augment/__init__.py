"""Batch augmentation on the device, and random crops of single images."""

from vit.data.augment.steps import (
    Augment,
    HorizontalFlip,
    PadCrop,
    RandomChannelPermutation,
    RandomErasing,
    VerticalFlip,
)

__all__ = ["Augment", "HorizontalFlip", "PadCrop", "RandomChannelPermutation", "RandomErasing", "VerticalFlip"]
