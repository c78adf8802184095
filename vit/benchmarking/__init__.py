"""Speed of training, inference, loading and generation on this machine, alone and against other libraries.

Programs that are compared run in turns in one process, and a ratio is computed from times of the same round. Names are
imported on first use.
"""

from vit.lazy_names import lazy_names

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

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
