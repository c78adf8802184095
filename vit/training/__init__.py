"""What a training run needs around a model: optimizers, schedules, averages, checkpoints, strategies, callbacks."""
