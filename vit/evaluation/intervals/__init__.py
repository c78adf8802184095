"""Confidence intervals by bootstrap, and the comparison of two models on the same samples."""
