"""The metrics of an evaluation in the terminal."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vit.evaluation import Evaluation


def print_classification(evaluation: "Evaluation", title: str, unit: str) -> None:
    """Print the metrics of a classifier, and those of each class; `unit` is images or texts."""
    from vit.report.summary import class_table, print_table

    print_metrics(named_metrics(evaluation.metrics), {unit: f"{len(evaluation.rows):,}"}, title)
    print_table(lambda narrow: class_table(evaluation.class_scores(), unit, narrow=narrow))


def named_metrics(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics with names for people."""
    names = {"ece": "calibration error (ECE)", "calibrated_loss": "loss, calibrated",
             "calibrated_ece": "calibration error, calibrated", "set_coverage": "coverage of sets at 0.9",
             "set_size": "mean size of sets at 0.9", "real_accuracy": "accuracy, ReaL labels",
             "real_images": "images with ReaL labels"}
    return {names.get(name, name): value for name, value in metrics.items()}


def print_metrics(metrics: dict[str, float], facts: dict[str, str], title: str) -> None:
    """Print metrics with all digits, which identify equal results, and further facts."""
    from vit.report.summary import print_summary

    print_summary({name: repr(value) for name, value in metrics.items()} | facts, title)
