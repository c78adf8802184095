"""What a training run needs around a model: optimizers, schedules, averages, checkpoints, strategies, callbacks.

Names are imported on first use: building an optimizer does not load Lightning.
"""

import importlib

_HOMES = {  # module: its public names
    "training.optim": ("build_optimizer", "clip_gradients", "parameter_groups", "scaled_lr"),
    "training.schedule": ("build_schedule",),
    "training.direction": ("mode_of",),
    "training.seeding": ("seed_everything_once", "seed_step"),
    "training.ema": ("EpochAverage", "WeightAverage"),
    "training.averages": ("AverageEpochs", "AverageWeights"),
    "training.precision": ("resolve_precision",),
    "training.strategy": ("build_strategy", "shard"),
    "training.checkpoint": ("AtomicCheckpointIO", "newest_valid", "trained_weights"),
    "training.resume": ("FollowEpoch", "resume_position"),
    "training.interrupts": ("Interrupted", "StopSignals"),
    "training.stopping": ("GracefulStop",),
    "training.watchdog": ("Heartbeat", "Progress", "store_of_environment"),
    "training.callbacks": ("Checkpoints",),
    "training.patience": ("Patience",),
    "training.finite": ("FiniteLoss", "NonFiniteError"),
    "training.progress": ("ProgressBar", "ThroughputMeter", "quiet_lightning"),
    "training.memory": ("PeakMemory", "explain_out_of_memory"),
    "nn.cpu": ("keep_freed_memory",),
    "training.finetune": ("Finetune",),
    "training.unfreezing": ("Unfreezing",),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str):
    if name in _MODULES:
        return getattr(importlib.import_module(f"vit.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
