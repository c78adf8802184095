"""From overrides to one checked config: composition by Hydra, ranges of numbers, and what a stored config may call."""
