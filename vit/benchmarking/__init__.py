"""Speed of training, inference, loading and generation on this machine, alone and against other libraries.

Programs that are compared run in turns in one process, and a ratio is computed from times of the same round. Names are
imported on first use.
"""

from typing import TYPE_CHECKING

from vit.lazy_names import lazy_names

if TYPE_CHECKING:  # for type checkers and editors, which do not execute `lazy_names`
    from vit.benchmarking.baseline import Comparison as Comparison
    from vit.benchmarking.baseline import compare_with_baseline as compare_with_baseline
    from vit.benchmarking.baseline import read_baseline as read_baseline
    from vit.benchmarking.generation import GENERATION_PEERS as GENERATION_PEERS
    from vit.benchmarking.generation import Search as Search
    from vit.benchmarking.generation import bench_generation as bench_generation
    from vit.benchmarking.hardware import DTYPES as DTYPES
    from vit.benchmarking.hardware import machine as machine
    from vit.benchmarking.hardware import matrix_rates as matrix_rates
    from vit.benchmarking.loaders import LOADER_PEERS as LOADER_PEERS
    from vit.benchmarking.loaders import bench_loader as bench_loader
    from vit.benchmarking.peers import MODEL_PEERS as MODEL_PEERS
    from vit.benchmarking.photos import make_photos as make_photos
    from vit.benchmarking.prediction import PREDICT_PEERS as PREDICT_PEERS
    from vit.benchmarking.prediction import bench_prediction as bench_prediction
    from vit.benchmarking.ratios import Ratio as Ratio
    from vit.benchmarking.ratios import paired_ratio as paired_ratio
    from vit.benchmarking.results import Case as Case
    from vit.benchmarking.results import Settings as Settings
    from vit.benchmarking.results import measured as measured
    from vit.benchmarking.results import to_json as to_json
    from vit.benchmarking.steps import bench_model as bench_model
    from vit.benchmarking.tables import result_tables as result_tables
    from vit.benchmarking.timing import CLOCKS as CLOCKS
    from vit.benchmarking.timing import in_turns as in_turns
    from vit.benchmarking.training_run import bench_training_run as bench_training_run

_MODULES = {
    "CLOCKS": "vit.benchmarking.timing",
    "Case": "vit.benchmarking.results",
    "Comparison": "vit.benchmarking.baseline",
    "DTYPES": "vit.benchmarking.hardware",
    "GENERATION_PEERS": "vit.benchmarking.generation",
    "LOADER_PEERS": "vit.benchmarking.loaders",
    "MODEL_PEERS": "vit.benchmarking.peers",
    "PREDICT_PEERS": "vit.benchmarking.prediction",
    "Ratio": "vit.benchmarking.ratios",
    "Search": "vit.benchmarking.generation",
    "Settings": "vit.benchmarking.results",
    "bench_generation": "vit.benchmarking.generation",
    "bench_loader": "vit.benchmarking.loaders",
    "bench_model": "vit.benchmarking.steps",
    "bench_prediction": "vit.benchmarking.prediction",
    "bench_training_run": "vit.benchmarking.training_run",
    "compare_with_baseline": "vit.benchmarking.baseline",
    "in_turns": "vit.benchmarking.timing",
    "machine": "vit.benchmarking.hardware",
    "make_photos": "vit.benchmarking.photos",
    "matrix_rates": "vit.benchmarking.hardware",
    "measured": "vit.benchmarking.results",
    "paired_ratio": "vit.benchmarking.ratios",
    "read_baseline": "vit.benchmarking.baseline",
    "result_tables": "vit.benchmarking.tables",
    "to_json": "vit.benchmarking.results",
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES)
