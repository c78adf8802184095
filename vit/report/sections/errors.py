"""The sections about wrong predictions: the confusion matrix with example pictures, and the most confident errors."""

import numpy as np

from vit.evaluation.classification import MATRIX
from vit.messages import agree, left_to_right, number_of
from vit.report.figures.confusion import confusion_picture, most_frequent_errors
from vit.report.pages.html_parts import cards, drawing, heading, paragraph
from vit.report.sections.subject import Section, Subject

PAIRS = 6  # number of confused pairs of classes with examples
EXAMPLES = 4  # pictures of a pair
LISTED = 50  # pairs in the JSON file
GALLERY = 24  # pictures of the most confident errors
COLOURS = ("Rows are true classes, columns are predictions. The darker a cell, the larger its share of the true class: "
           "blue for correct predictions, orange for wrong ones, whose scale is steeper.")


def confusion(subject: Subject) -> Section:
    """The confusion matrix, and pictures of the pairs of classes that are confused most often."""
    evaluation = subject.evaluation
    counts = evaluation.confusion_counts
    pairs = most_frequent_errors(counts, LISTED)
    classes, right = evaluation.classes, int(counts.diagonal().sum())
    alt = (f"Confusion matrix of {number_of(len(classes), 'class')}: {right:,} of {len(evaluation.rows):,} "
           f"{subject.unit} correct"
           + "".join(f"; {count_text(subject, pair)}" for pair in pairs[:3]))
    url = subject.figure("confusion.png", confusion_picture, counts, classes, subject.title, subject.unit)
    html = drawing(url, alt) + paragraph(COLOURS, muted=True)
    html += "".join(examples(subject, pair) for pair in pairs[:PAIRS])
    if not pairs:
        html += paragraph("There are no wrong predictions.")
    listed = [{"true": classes[true], "predicted": classes[predicted],
               subject.unit: int(counts[true, predicted])} for true, predicted in pairs]
    counted = evaluation.confusion.tolist() if len(classes) <= MATRIX else None
    return Section("confusion", "Confusion", html, {"classes": classes, "confusion": counted, "most_frequent": listed})


def count_text(subject: Subject, pair: tuple[int, int]) -> str:
    """`7 of 40 images of cat are predicted as dog`"""
    true, predicted = pair
    classes, counts = subject.evaluation.classes, subject.evaluation.confusion_counts
    total, wrong = int((subject.evaluation.labels == true).sum()), int(counts[true, predicted])
    of = f"{wrong:,} of {number_of(total, subject.unit.removesuffix('s'))} of "
    return left_to_right(of, classes[true], f" {agree(wrong, 'is', 'are')} predicted as ", classes[predicted])


def examples(subject: Subject, pair: tuple[int, int]) -> str:
    """Pictures of one pair of classes, most confident first."""
    evaluation = subject.evaluation
    true, predicted = pair
    chosen = np.flatnonzero((evaluation.labels == true) & (evaluation.predictions[:, 0] == predicted))
    chosen = chosen[np.argsort(-evaluation.probabilities[chosen, 0], kind="stable")][:EXAMPLES]
    return heading(count_text(subject, pair)) + cards(subject.card(int(i)) for i in chosen)


def gallery(subject: Subject) -> Section:
    """The wrong predictions with the highest probability."""
    chosen = [int(i) for i in subject.confident_errors(GALLERY)]
    wrong = int((~subject.right).sum())
    if not chosen:
        return Section("errors", "Most confident errors", paragraph("There are no wrong predictions."),
                       {"wrong": 0, "samples": []})
    text = paragraph(f"{len(chosen)} of {wrong:,} wrong predictions, the highest probability first. An error that a "
                     "person would make too may be a wrong label: see vit audit --labels.")
    return Section("errors", "Most confident errors", text + cards(map(subject.card, chosen)),
                   {"wrong": wrong, "samples": [subject.values(i) for i in chosen]})
