"""Training around a model: optimizers, schedules, weight averages, checkpoints, distributed strategies, callbacks.

Names are imported on first use: building an optimizer does not load Lightning.
"""

import importlib

_HOMES = {  # module: its public names
    "training.optimization.optim": ("build_optimizer", "clip_gradients", "parameter_groups", "scaled_lr"),
    "training.optimization.schedule": ("build_schedule",),
    "training.monitoring.direction": ("mode_of",),
    "training.seeding": ("seed_everything_once", "seed_step"),
    "training.averaging.ema": ("EpochAverage", "WeightAverage"),
    "training.averaging.averages": ("AverageEpochs", "AverageWeights"),
    "training.precision": ("resolve_precision",),
    "training.strategy": ("build_strategy", "shard"),
    "training.checkpointing.checkpoint": ("AtomicCheckpointIO", "newest_valid", "trained_weights"),
    "training.checkpointing.resume": ("FollowEpoch", "resume_position"),
    "training.fault_tolerance.interrupts": ("Interrupted", "StopSignals"),
    "training.fault_tolerance.stopping": ("GracefulStop",),
    "training.fault_tolerance.watchdog": ("Heartbeat", "Progress", "store_of_environment"),
    "training.checkpointing.checkpoint_callback": ("Checkpoints",),
    "training.monitoring.patience": ("Patience",),
    "training.fault_tolerance.finite": ("FiniteLoss", "NonFiniteError"),
    "training.monitoring.progress": ("ProgressBar", "ThroughputMeter", "quiet_lightning"),
    "training.monitoring.memory": ("PeakMemory", "explain_out_of_memory"),
    "nn.cpu": ("keep_freed_memory",),
    "training.finetuning.finetune": ("Finetune",),
    "training.finetuning.unfreezing": ("Unfreezing",),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str):
    if name in _MODULES:
        return getattr(importlib.import_module(f"vit.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
