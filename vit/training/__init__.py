"""Training around a model: optimizers, schedules, weight averages, checkpoints, distributed strategies, callbacks.

Names are imported on first use: building an optimizer does not load Lightning.
"""

from vit.lazy_names import lazy_names

_MODULES = {
    "AtomicCheckpointIO": "vit.training.checkpointing.checkpoint_io",
    "AverageEpochs": "vit.training.averaging.ema",
    "AverageWeights": "vit.training.averaging.ema",
    "Checkpoints": "vit.training.checkpointing.checkpoint_callback",
    "EpochAverage": "vit.training.averaging.ema",
    "Finetune": "vit.training.finetuning.finetune",
    "FiniteLoss": "vit.training.fault_tolerance.nan_guard",
    "FollowEpoch": "vit.training.checkpointing.resume_position",
    "GracefulStop": "vit.training.fault_tolerance.stopping",
    "Heartbeat": "vit.training.fault_tolerance.watchdog",
    "Interrupted": "vit.training.fault_tolerance.interrupts",
    "NonFiniteError": "vit.training.fault_tolerance.nan_guard",
    "Patience": "vit.training.monitoring.early_stopping",
    "PeakMemory": "vit.training.monitoring.memory",
    "Progress": "vit.training.fault_tolerance.watchdog",
    "ProgressBar": "vit.training.monitoring.progress",
    "Progressive": "vit.training.progressive",
    "StopSignals": "vit.training.fault_tolerance.interrupts",
    "ThroughputMeter": "vit.training.monitoring.progress",
    "Unfreezing": "vit.training.finetuning.unfreezing",
    "WeightAverage": "vit.training.averaging.ema",
    "build_optimizer": "vit.training.optimization.optim",
    "build_schedule": "vit.training.optimization.schedule",
    "build_stages": "vit.training.progressive",
    "noam_peak": "vit.training.optimization.schedule",
    "build_strategy": "vit.training.strategy",
    "clip_gradients": "vit.training.optimization.gradient_clipping",
    "explain_out_of_memory": "vit.training.monitoring.memory",
    "keep_freed_memory": "vit.files.machine",
    "mode_of": "vit.training.monitoring.metric_direction",
    "newest_valid": "vit.files.checkpoints",
    "parameter_groups": "vit.training.optimization.optim",
    "quiet_lightning": "vit.training.monitoring.progress",
    "resolve_precision": "vit.training.precision",
    "resume_position": "vit.training.checkpointing.resume_position",
    "scaled_lr": "vit.training.optimization.optim",
    "seed_everything_once": "vit.counters",
    "seed_step": "vit.counters",
    "shard": "vit.training.strategy",
    "stops_while_joining": "vit.training.fault_tolerance.stops_while_joining",
    "store_of_environment": "vit.training.fault_tolerance.watchdog",
    "trained_weights": "vit.training.checkpointing.checkpoint",
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
