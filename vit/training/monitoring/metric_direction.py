"""The direction of each metric: whether higher or lower values are better, `max` or `min`."""

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
    """"min" for `val/loss`, "max" for `val/accuracy`.

    Raises:
        ValueError: no task has this metric.
    """
    name = metric.rpartition("/")[2]
    if name not in MODES:
        raise ValueError(f"{metric} is not one of the metrics that can be compared: {', '.join(MODES)}")
    return MODES[name]
