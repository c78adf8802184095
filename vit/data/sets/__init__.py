"""Data sets by name: built-in, generated, and those of the Hugging Face hub."""
