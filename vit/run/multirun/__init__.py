"""Several runs: sweeps, comparisons, cross-validation, and what is computed from their held-out predictions."""
