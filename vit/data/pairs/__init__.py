"""Pairs of a source (text or image) and a target text, for translation and image-to-text."""

from vit.data.pairs.source import PairSource, PairSplit

__all__ = ["PairSource", "PairSplit"]
