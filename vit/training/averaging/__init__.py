"""Averages of the weights: EMA and the mean of the last epochs."""
