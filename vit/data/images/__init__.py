"""Preprocessing of images, and data sets of images as batches of tensors."""
