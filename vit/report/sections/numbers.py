"""The sections with the numbers of a report: the model and its data, accuracies with intervals, and calibration."""

from dataclasses import asdict

import numpy as np

from vit.data import LinePreprocessing, PackedPreprocessing
from vit.evaluation.calibration.reliability import reliability, risks
from vit.evaluation.intervals.bootstrap import EXACT, FEWEST, LEVEL, RESAMPLES, Interval, accuracies
from vit.messages import number_of
from vit.report.figures.reliability import reliability_picture
from vit.report.pages.html_parts import cut_note, drawing, facts, paragraph, table
from vit.report.sections.subject import Section, Subject
from vit.report.summary import number

SHOWN = 1000  # classes in the table of the page; all are in the JSON file
SHARES = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5)  # coverages: of the inputs without abstention


def header(subject: Subject) -> Section:
    """Model, data, date, command and versions."""
    predictor, evaluation = subject.predictor, subject.evaluation
    lines = {
        "model": str(predictor.bundle.path),
        "kind": predictor.model.config.kind,
        "parameters": sum(each.numel() for each in predictor.model.parameters()),
        "classes": len(predictor.bundle.classes) or None,
        "input": input_text(subject),
        "data": subject.title,
        subject.unit: len(evaluation.rows),
        "unreadable images": len(evaluation.unreadable) or None,
        **subject.facts,
    }
    shown = {name: f"{value:,}" if isinstance(value, int) else value for name, value in lines.items()}
    return Section("header", "Model and data", facts(shown), lines)


def input_text(subject: Subject) -> str:
    """The size of the model's input."""
    preprocessing = subject.predictor.bundle.preprocessing
    if isinstance(preprocessing, LinePreprocessing):
        return (f"lines of {preprocessing.height} pixels, at most {preprocessing.max_width} wide, "
                f"{preprocessing.mode}")
    if preprocessing is None:
        return f"texts of at most {subject.predictor.model.config.max_len:,} tokens"
    if isinstance(preprocessing, PackedPreprocessing):
        rows, columns = preprocessing.patch_size
        return (f"at most {preprocessing.max_patches} patches of {columns}x{rows} pixels in the aspect ratio of the "
                f"image, {preprocessing.mode}")
    height, width = preprocessing.size
    return f"{width}x{height} pixels, {preprocessing.mode}, resize {preprocessing.resize}"


def accuracy(subject: Subject) -> Section:
    """Accuracy, top-5, macro accuracy, and the scores of each class, with confidence intervals."""
    evaluation = subject.evaluation
    found = accuracies(evaluation)
    named = {"accuracy": found.accuracy, "accuracy of the best five": found.top5, "mean over classes": found.macro}
    rows = [(name, *interval_cells(each), each.method) for name, each in named.items() if each is not None]
    html = table(("measure", "value", f"{LEVEL:.0%} interval", "method"), rows, "Accuracy", (1, 2))
    html += paragraph(method_text(len(evaluation.rows), subject.unit), muted=True)
    scores = evaluation.class_scores()
    lines = [(score.name, score.images, *interval_cells(each), number(score.precision, ".2%"),
              number(score.f1, ".2%"))
             for score, each in zip(scores, found.per_class, strict=True)]
    columns = ("class", subject.unit, "accuracy (recall)", f"{LEVEL:.0%} interval", "precision", "F1")
    html += table(columns, lines[:SHOWN], "Accuracy of each class", range(1, 6))
    html += cut_note(len(scores), SHOWN, "classes")
    per_class = [{**asdict(score), "interval": None if each is None else asdict(each)}
                 for score, each in zip(scores, found.per_class, strict=True)]
    values = {"level": LEVEL, "resamples": RESAMPLES, "accuracy": asdict(found.accuracy),
              "top5": None if found.top5 is None else asdict(found.top5), "macro": asdict(found.macro),
              "loss": evaluation.metrics["loss"], "classes": per_class}
    return Section("accuracy", "Accuracy", html, values)


def interval_cells(interval: Interval | None) -> tuple[str, str]:
    """(value, interval)"""
    if interval is None:
        return "no sample", ""
    return f"{interval.value:.2%}", "" if interval.low is None else f"{interval.low:.2%} to {interval.high:.2%}"


def method_text(samples: int, unit: str) -> str:
    """How the intervals were computed, and their limits."""
    return (f"Bootstrap: percentiles over {RESAMPLES:,} draws of {number_of(samples, unit.removesuffix('s'))} with "
            f"replacement. A rate with fewer than {FEWEST} correct or wrong {unit} has the {EXACT} interval of Clopper "
            "and Pearson; the mean over classes then has no interval. An interval shows how much the number depends on "
            f"the draw of these {unit}, not how much another training or data from elsewhere would change it.")


def calibration(subject: Subject) -> Section:
    """Reliability diagram, risk-coverage curve, and the numbers of the calibration."""
    evaluation = subject.evaluation
    highest = evaluation.probabilities[:, 0].astype(float)
    metrics = evaluation.metrics
    names = {"ece": "expected calibration error", "calibrated_ece": "expected calibration error, calibrated",
             "loss": "log loss", "calibrated_loss": "log loss, calibrated",
             "set_coverage": "coverage of prediction sets at 90%", "set_size": "mean size of those sets"}
    numbers = {label: f"{metrics[key]:.4f}" for key, label in names.items() if key in metrics}
    fitted = subject.predictor.bundle.calibration
    if fitted is not None:
        split = subject.predictor.bundle.calibrated_on.get("split", "val")
        kind = "validation" if split == "val" else split
        numbers["temperature"] = f"{fitted.temperature:.4g}, from {number_of(fitted.samples, f'{kind} sample')}"
    abstention = risk_at(highest, subject.right)
    html = facts(numbers)
    if fitted is None:
        html += paragraph("The model is not calibrated; vit calibrate saves a calibrated copy.", muted=True)
    alt = (f"Reliability diagram: accuracy over probability in bins, calibration error {metrics['ece']:.3f}; beside it "
           f"the risk-coverage curve, with an error rate of {abstention[0]['wrong']:.2%} at full coverage")
    html += drawing(subject.figure("reliability.png", reliability_picture, evaluation, subject.title), alt)
    rows = [(f"{risk['coverage']:.0%}", risk["images"], f"{risk['probability']:.4f}", f"{risk['wrong']:.2%}")
            for risk in abstention]
    html += table(("coverage", subject.unit, "probability at least", "wrong"), rows,
                  "Errors if the model abstains for the least certain inputs", (0, 1, 2, 3))
    bins = [dict(zip(("samples", "probability", "accuracy"), each, strict=True))
            for each in reliability(highest, subject.right)]
    values = {key: metrics[key] for key in names if key in metrics}
    values |= {"temperature": None if fitted is None else fitted.temperature, "bins": bins, "risk": abstention}
    return Section("calibration", "Calibration", html, values)


def risk_at(probabilities: np.ndarray, right: np.ndarray) -> list[dict[str, float]]:
    """The error rate of the most certain predictions, for each coverage of `SHARES`; probabilities, right (N,)."""
    ordered, wrong = np.sort(probabilities)[::-1], risks(probabilities, right)
    rates = []
    for share in SHARES:
        count = max(round(share * len(ordered)), 1)
        rates.append({"coverage": share, "images": count, "probability": float(ordered[count - 1]),
                      "wrong": float(wrong[count - 1])})
    return rates
