"""Monitoring of a run: progress bar, peak memory, direction of a metric, early stopping."""
