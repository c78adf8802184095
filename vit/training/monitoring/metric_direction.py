"""The direction of each metric: whether higher or lower values are better, `max` or `min`."""

MODES = {
    "loss": "min",
    "perplexity": "min",
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
METRICS = {  # task -> its metrics of the validation split; which of them a run has depends on its data and options too
    "classification": ("loss", "accuracy", "top5", "map", "f1"),
    "text_classification": ("loss", "accuracy", "top5"),
    "masked_image": ("loss",),
    "masked_text": ("loss", "perplexity", "token_accuracy", "pair_accuracy"),
    "seq2seq": ("loss", "perplexity", "token_accuracy", "exact_match", "cer", "bleu"),
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
