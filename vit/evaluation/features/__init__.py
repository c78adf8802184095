"""Features of a frozen model, and simple classifiers on them."""
