"""Whether a metric is better when it is higher or when it is lower."""

MODES = {
    "loss": "min",
    "accuracy": "max",
    "top5": "max",
    "map": "max",
    "f1": "max",
    "token_accuracy": "max",
    "pair_accuracy": "max",
    "exact_match": "max",
    "bleu": "max",
    "cer": "min",
}


def mode_of(metric: str) -> str:
    """`val/loss` -> min, `val/accuracy` -> max.

    Raises:
        ValueError: for a metric that no task has.
    """
    name = metric.rpartition("/")[2]
    if name not in MODES:
        raise ValueError(f"{metric} is not one of the metrics that can be compared: {', '.join(MODES)}")
    return MODES[name]
