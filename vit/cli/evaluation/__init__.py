"""Commands that measure a saved model on labelled data."""
