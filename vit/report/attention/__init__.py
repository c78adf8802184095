"""Attention maps: recorded, drawn as figures, and as an HTML page."""
