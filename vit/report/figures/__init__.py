"""Figures of matplotlib, in one style."""
