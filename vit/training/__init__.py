"""What a training run needs around a model: optimizers, schedules, averages, checkpoints, strategies, callbacks.

Names are imported on first use: building an optimizer does not load Lightning.
"""

import importlib

_HOMES = {
    "optim": ("build_optimizer", "clip_gradients", "parameter_groups", "scaled_lr"),
    "schedule": ("build_schedule",),
    "direction": ("mode_of",),
    "seeding": ("seed_everything_once", "seed_step"),
    "ema": ("EpochAverage", "WeightAverage"),
    "averages": ("AverageEpochs", "AverageWeights"),
    "precision": ("resolve_precision",),
    "strategy": ("build_strategy", "shard"),
    "checkpoint": ("AtomicCheckpointIO", "newest_valid", "trained_weights"),
    "resume": ("FollowEpoch", "resume_position"),
    "interrupts": ("Interrupted", "StopSignals"),
    "stopping": ("GracefulStop",),
    "watchdog": ("Heartbeat", "Progress", "store_of_environment"),
    "callbacks": ("Checkpoints",),
    "patience": ("Patience",),
    "finite": ("FiniteLoss", "NonFiniteError"),
    "progress": ("ProgressBar", "ThroughputMeter", "quiet_lightning"),
    "memory": ("PeakMemory", "explain_out_of_memory", "keep_freed_memory"),
    "finetune": ("Finetune",),
    "unfreezing": ("Unfreezing",),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str):
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
