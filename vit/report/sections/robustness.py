"""The section about robustness: accuracy under common corruptions (Hendrycks and Dietterich, arXiv 1903.12261)."""

import numpy as np

from vit.data.augment.corruptions import CORRUPTIONS, corrupt
from vit.evaluation.progress import as_stage
from vit.evaluation.robustness import SEED, accuracy_under_corruptions, levels
from vit.report.pages.embedded import thumbnail_url
from vit.report.pages.html_parts import card, cards, facts, paragraph, table
from vit.report.sections.subject import Section, Subject, missing

KEY, TITLE = "robustness", "Robustness"


def robustness(subject: Subject) -> Section:
    """The section: accuracy for each kind and severity of corruption, beside that of the original images."""
    if not subject.severities:
        return missing(KEY, TITLE, "accuracy under corruptions takes 75 further evaluations; add --corruptions")
    clean = subject.evaluation.metrics["accuracy"]
    rows = accuracies(subject)
    mean = float(np.mean(list(rows.values())))
    html = facts({"accuracy, images as they are": f"{clean:.2%}", "mean accuracy, corrupted": f"{mean:.2%}"})
    html += paragraph("Each image is corrupted at the size of the model's input. Frost is a generated texture, and "
                      "radii are scaled to the size of the image, so the numbers are not those of ImageNet-C.", True)
    several = len(subject.severities) > 1
    columns = ["corruption", *(f"severity {severity}" for severity in subject.severities)] + ["mean"] * several
    lines = [(kind.replace("_", " "), *(f"{value:.1%}" for value in [*values, np.mean(values)]))[: len(columns)]
             for kind, values in rows.items()]
    html += table(columns, lines, "Accuracy under corruptions", range(1, len(columns)))
    html += cards(examples(subject))
    return Section(KEY, TITLE, html, {"clean": clean, "mean": mean, "severities": list(subject.severities),
                                      "accuracy": rows})


def accuracies(subject: Subject) -> dict[str, list[float]]:
    """Kind of corruption -> accuracy in each severity, without the unreadable images, as in the evaluation."""
    predictor = subject.predictor
    split = subject.samples.take(subject.evaluation.rows)
    total = len(split) * len(levels(subject.severities))
    progress = as_stage(subject.progress, "images under corruptions", total)
    return accuracy_under_corruptions(
        predictor.model, predictor.preprocessing, split, subject.severities, subject.batch_size, predictor.precision,
        predictor.device, progress)


def examples(subject: Subject) -> list[str]:
    """HTML of the first image under each corruption, in the highest severity that was evaluated."""
    row, severity, html = int(subject.evaluation.rows[0]), max(subject.severities), []
    pixels = subject.predictor.preprocessing.image(subject.samples.read(row), subject.name(0)).permute(1, 2, 0).numpy()
    for kind in CORRUPTIONS:
        image, name = corrupt(pixels, kind, severity, SEED, 0), kind.replace("_", " ")
        html.append(card(thumbnail_url(image), f"{subject.name(0)} under {name}", [name, f"severity {severity}"]))
    return html
