"""Training around a model: optimizers, schedules, weight averages, checkpoints, distributed strategies, callbacks.

Names are imported on first use: building an optimizer does not load Lightning.
"""

from typing import TYPE_CHECKING

from vit.lazy_names import lazy_names

if TYPE_CHECKING:  # for type checkers and editors, which do not execute `lazy_names`
    from vit.counters import seed_everything_once as seed_everything_once
    from vit.counters import seed_step as seed_step
    from vit.files.checkpoints import newest_valid as newest_valid
    from vit.files.machine import keep_freed_memory as keep_freed_memory
    from vit.training.averaging.ema import AverageEpochs as AverageEpochs
    from vit.training.averaging.ema import AverageWeights as AverageWeights
    from vit.training.averaging.ema import EpochAverage as EpochAverage
    from vit.training.averaging.ema import WeightAverage as WeightAverage
    from vit.training.checkpointing.checkpoint import trained_weights as trained_weights
    from vit.training.checkpointing.checkpoint_callback import Checkpoints as Checkpoints
    from vit.training.checkpointing.checkpoint_io import AtomicCheckpointIO as AtomicCheckpointIO
    from vit.training.checkpointing.resume_position import FollowEpoch as FollowEpoch
    from vit.training.checkpointing.resume_position import resume_position as resume_position
    from vit.training.fault_tolerance.interrupts import Interrupted as Interrupted
    from vit.training.fault_tolerance.interrupts import StopSignals as StopSignals
    from vit.training.fault_tolerance.nan_guard import FiniteLoss as FiniteLoss
    from vit.training.fault_tolerance.nan_guard import NonFiniteError as NonFiniteError
    from vit.training.fault_tolerance.stopping import GracefulStop as GracefulStop
    from vit.training.fault_tolerance.stops_while_joining import stops_while_joining as stops_while_joining
    from vit.training.fault_tolerance.watchdog import Heartbeat as Heartbeat
    from vit.training.fault_tolerance.watchdog import Progress as Progress
    from vit.training.fault_tolerance.watchdog import store_of_environment as store_of_environment
    from vit.training.finetuning.finetune import Finetune as Finetune
    from vit.training.finetuning.unfreezing import Unfreezing as Unfreezing
    from vit.training.monitoring.early_stopping import Patience as Patience
    from vit.training.monitoring.memory import PeakMemory as PeakMemory
    from vit.training.monitoring.memory import explain_out_of_memory as explain_out_of_memory
    from vit.training.monitoring.metric_direction import mode_of as mode_of
    from vit.training.monitoring.progress import ProgressBar as ProgressBar
    from vit.training.monitoring.progress import quiet_lightning as quiet_lightning
    from vit.training.monitoring.throughput import ThroughputMeter as ThroughputMeter
    from vit.training.optimization.gradient_clipping import clip_gradients as clip_gradients
    from vit.training.optimization.optim import build_optimizer as build_optimizer
    from vit.training.optimization.optim import parameter_groups as parameter_groups
    from vit.training.optimization.optim import scaled_lr as scaled_lr
    from vit.training.optimization.schedule import build_schedule as build_schedule
    from vit.training.optimization.schedule import noam_peak as noam_peak
    from vit.training.precision import resolve_precision as resolve_precision
    from vit.training.progressive import Progressive as Progressive
    from vit.training.progressive import build_stages as build_stages
    from vit.training.strategy import build_strategy as build_strategy
    from vit.training.strategy import shard as shard

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
    "ThroughputMeter": "vit.training.monitoring.throughput",
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

__getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES)
