"""Training checkpoints: how they are written, verified and resumed from."""
