"""Training, validation and test splits: made from names, groups or folds, saved and restored."""
