"""Samples → batches: their order, balancing of classes, and loading in worker processes."""
