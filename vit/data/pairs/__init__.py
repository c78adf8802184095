"""Pairs of a source (a text or an image) and a target text: translation and image-to-text."""

from vit.data.pairs.source import PairSource, PairSplit

__all__ = ["PairSource", "PairSplit"]
