"""Figures and tables of runs, evaluations and predictions."""
