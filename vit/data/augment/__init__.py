"""Augmentation of batches on the device, and random crops of single images."""
