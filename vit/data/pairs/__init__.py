"""Pairs of a source (a text or an image) and a target text: translation and image-to-text."""
