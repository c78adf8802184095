"""The sections of a multi-label classifier: scores per label with intervals, reliability per label, wrong labels."""

from dataclasses import asdict

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from vit.evaluation.calibration.reliability import reliability
from vit.evaluation.intervals.bootstrap import FEWEST, LEVEL
from vit.evaluation.intervals.label_bootstrap import RESAMPLES, LabelIntervals, label_intervals
from vit.evaluation.multi_label import label_calibration_errors
from vit.messages import left_to_right, number_of, path_left_to_right
from vit.report.figures.style import (
    BLUE,
    FONT,
    INK,
    MUTED,
    ORANGE,
    RULE,
    new_figure,
    save_figure,
    shorten_all,
    style_axes,
)
from vit.report.multi_label import labels_picture, names_of
from vit.report.pages.embedded import figure_url, thumbnail_url
from vit.report.pages.html_parts import card, cards, cut_note, drawing, facts, paragraph, table
from vit.report.sections.numbers import interval_cells
from vit.report.sections.subject import Section, Subject
from vit.report.summary import number

SHOWN = 1000  # labels in the tables of the page
DRAWN = 12  # reliability diagrams
GALLERY = 24
WRONG = ("file", "label", "predicted", "probability")


def label_scores(subject: Subject) -> Section:
    """Average precision and F1 of each label, with confidence intervals and thresholds."""
    evaluation = subject.evaluation
    bounds, metrics = label_intervals(evaluation), evaluation.metrics
    means = [("mean average precision", bounds.map), ("F1, mean over labels", bounds.f1)]
    rows = [(name, *interval_cells(each)) for name, each in means]
    html = table(("measure", "value", f"{LEVEL:.0%} interval"), rows, "Labels together", (1, 2))
    html += facts({"F1 over all decisions": f"{metrics['f1_micro']:.2%}",
                   "images with all labels right": f"{metrics['exact_match']:.2%}", "loss": f"{metrics['loss']:.4f}"})
    html += drawing(subject.figure("labels.png", labels_picture, evaluation.scores, subject.title),
                    f"Average precision and F1 of {number_of(len(evaluation.scores), 'label')}; mean "
                    f"{metrics['map']:.3f}")
    html += score_table(subject, bounds)
    html += paragraph(f"Bootstrap: percentiles over {RESAMPLES:,} draws of {number_of(len(evaluation.rows), 'image')} "
                      f"with replacement; a label with fewer than {FEWEST} images has no interval. Precision, recall "
                      "and F1 are those at the threshold.", muted=True)
    per_class = [{**asdict(score), "average_precision": score.average_precision if score.images else None,
                  "average_precision_interval": None if area is None else asdict(area),
                  "f1_interval": None if f1 is None else asdict(f1)}
                 for score, area, f1 in zip(evaluation.scores, bounds.average_precision, bounds.label_f1, strict=True)]
    values = {**metrics, "level": LEVEL, "resamples": RESAMPLES, "map": asdict(bounds.map), "f1": asdict(bounds.f1),
              "classes": per_class}
    return Section("accuracy", "Labels", html, values)


def score_table(subject: Subject, bounds: LabelIntervals) -> str:
    """A row per label."""
    scores = subject.evaluation.scores
    rows = [(score.name, f"{score.images:,}", *interval_cells(area), *interval_cells(f1), f"{score.threshold:.3f}",
             number(score.precision, ".2%"), number(score.recall, ".2%"))
            for score, area, f1 in zip(scores, bounds.average_precision, bounds.label_f1, strict=True)]
    columns = ("label", "images", "average precision", f"{LEVEL:.0%} interval", "F1", f"{LEVEL:.0%} interval",
               "threshold", "precision", "recall")
    return table(columns, rows[:SHOWN], "Each label", range(1, len(columns))) + cut_note(len(rows), SHOWN, "labels")


def label_reliability(subject: Subject) -> Section:
    """How often each label is true, by the probability that the model predicts for it."""
    evaluation, fitted = subject.evaluation, subject.predictor.bundle.calibration
    before = evaluation.probabilities if fitted is None else evaluation.uncalibrated
    errors = [label_calibration_errors(each, evaluation.truth) for each in (before, evaluation.probabilities)]
    order = np.argsort([-score.images for score in evaluation.scores], kind="stable")[:DRAWN]
    means = " and ".join(f"{np.mean(each):.3f}" for each in errors[fitted is None :])
    shown = f"Reliability diagrams of {number_of(len(order), 'label')}; mean calibration error {means}"
    html = drawing(figure_url(reliability_diagrams, subject, order),
                   shown + ("" if fitted is None else ", without and with calibration"))
    if fitted is None:
        html += paragraph("The model is not calibrated; vit calibrate saves a calibrated copy.", muted=True)
    else:
        html += facts({"temperatures": f"{min(fitted.temperatures):.4g} to {max(fitted.temperatures):.4g}, one per "
                                       f"label, from {number_of(fitted.samples, 'validation image')}"})
    temperatures = [None] * len(evaluation.classes) if fitted is None else fitted.temperatures
    columns = ("label", "images", "calibration error", "calibrated", "temperature", "mean probability",
               "share of images")
    rows = [(score.name, f"{score.images:,}", f"{plain:.4f}",
             *(("", "") if temperature is None else (f"{error:.4f}", f"{temperature:.4g}")),
             f"{probabilities.mean():.2%}", f"{truth.mean():.2%}")
            for score, plain, error, temperature, probabilities, truth in zip(
                evaluation.scores, *errors, temperatures, evaluation.probabilities.T, evaluation.truth.T, strict=True)]
    html += table(columns, rows[:SHOWN], "Calibration of each label", range(1, len(columns)))
    html += cut_note(len(rows), SHOWN, "labels")
    plain, calibrated = ({"mean": float(np.mean(each)), "classes": dict(zip(evaluation.classes, each, strict=True))}
                         for each in errors)
    values = {**plain, "calibrated": None if fitted is None else calibrated,
              "temperatures": None if fitted is None else list(fitted.temperatures)}
    return Section("calibration", "Calibration", html, values)


def reliability_diagrams(path: str, subject: Subject, chosen: np.ndarray) -> str:
    """A small diagram per label."""
    columns = min(4, len(chosen))
    rows = -(-len(chosen) // columns)
    figure = new_figure(9.2, 2.4 * rows + 0.6)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for axes in panels[len(chosen):]:
        axes.set_axis_off()
    evaluation = subject.evaluation
    lines = [("calibrated", BLUE, evaluation.probabilities)]
    if evaluation.uncalibrated is None:
        lines = [("as trained", BLUE, evaluation.probabilities)]
    else:
        lines.insert(0, ("as trained", ORANGE, evaluation.uncalibrated))
    names = shorten_all([evaluation.classes[c] for c in chosen], all_names=evaluation.classes)
    for axes, c, title in zip(panels, chosen, names, strict=False):
        style_axes(axes)
        axes.plot([0, 1], [0, 1], color=RULE, linewidth=2)
        for _, colour, probabilities in lines:
            draw_label(axes, probabilities[:, c].astype(float), evaluation.truth[:, c], colour)
        axes.set(xlim=(-0.05, 1.05), ylim=(-0.05, 1.05))
        axes.set_title(title, loc="left", fontsize=9, color=INK, family=FONT)
    for axes in panels[: len(chosen)][-columns:]:  # the lowest of each column, also above a place without a diagram
        axes.tick_params(labelbottom=True)
    handles = [Line2D([], [], color=colour, label=name) for name, colour, _ in lines]
    figure.legend(handles=handles, frameon=False, fontsize=8.5, labelcolor=INK, ncols=len(lines),
                  loc="outside upper right")  # in a panel it would cover the points of confident labels
    figure.supxlabel("probability of the label", fontsize=9, color=MUTED, family=FONT)
    figure.supylabel("share of images that have it", fontsize=9, color=MUTED, family=FONT)
    return save_figure(figure, path)


def draw_label(axes: Axes, probabilities: np.ndarray, truth: np.ndarray, colour: str) -> None:
    """A point per bin of the probability (N,), whose size grows with its images."""
    parts = np.array(reliability(probabilities, truth))
    axes.plot(parts[:, 1], parts[:, 2], color=colour, linewidth=1.2)
    axes.scatter(parts[:, 1], parts[:, 2], s=8 + 80 * parts[:, 0] / len(truth), color=colour, alpha=0.7)


def wrong_labels(subject: Subject) -> Section:
    """The wrong decisions, false or missing labels, of which the model is most certain."""
    evaluation = subject.evaluation
    predicted = evaluation.predicted
    certain = np.where(predicted, evaluation.probabilities, 1 - evaluation.probabilities)  # (N,classes)
    wrong = np.argwhere(predicted != evaluation.truth)
    shown = wrong[np.argsort(-certain[tuple(wrong.T)], kind="stable")][:GALLERY]
    if not len(wrong):
        return Section("errors", "Wrong labels", paragraph("There are no wrong labels."), {"wrong": 0, "samples": []})
    html = paragraph(f"{len(shown)} of {len(wrong):,} wrong decisions about a label, the most certain ones first.")
    html += cards(label_card(subject, int(i), int(c), bool(predicted[i, c]), float(certain[i, c])) for i, c in shown)
    rows = [dict(zip(WRONG, (subject.name(int(i)), evaluation.classes[c], bool(predicted[i, c]),
                             float(evaluation.probabilities[i, c])), strict=True)) for i, c in shown]
    return Section("errors", "Wrong labels", html, {"wrong": len(wrong), "samples": rows})


def label_card(subject: Subject, i: int, c: int, predicted: bool, certain: float) -> str:
    """An image with one wrong decision."""
    evaluation = subject.evaluation
    label = evaluation.classes[c] if predicted else f"no {evaluation.classes[c]}"
    true = ", ".join(names_of(evaluation.classes, evaluation.truth[i])) or "none"
    return card(thumbnail_url(subject.preview(i)), f"{subject.name(i)}: labels {true}, predicted {label}",
                [left_to_right("predicted ", label, f", {certain:.1%}"), left_to_right("labels ", true),
                 path_left_to_right(subject.name(i))])
