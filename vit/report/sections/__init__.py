"""The sections of the page of `vit report`, a function each."""
