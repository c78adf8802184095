"""The section about robustness: accuracy under common corruptions (Hendrycks and Dietterich, arXiv 1903.12261)."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from vit.data import Preprocessing
from vit.data.augment.corruptions import CORRUPTIONS, corrupt
from vit.data.splits.split import Raw, Split
from vit.evaluation import evaluate
from vit.report.pages.embedded import thumbnail_url
from vit.report.pages.html_parts import card, cards, facts, paragraph, table
from vit.report.sections.subject import Section, Subject, missing

KEY, TITLE, SEED = "robustness", "Robustness", 0


@dataclass(frozen=True)
class ReadCorrupted:
    """Reads samples as the model's input before normalization, corrupted: uint8 (H,W) or (H,W,3)."""

    read: Callable[[int], Raw]
    preprocessing: Preprocessing
    kind: str
    severity: int

    def __call__(self, i: int) -> np.ndarray:
        pixels = self.preprocessing.image(self.read(i)).permute(1, 2, 0).numpy()
        found = corrupt(pixels, self.kind, self.severity, SEED, i)
        return found[..., 0] if found.shape[2] == 1 else found


def corrupted(split: Split, preprocessing: Preprocessing, kind: str, severity: int) -> Split:
    """A split whose samples have the size of the model's input and are corrupted."""
    return replace(split, read=ReadCorrupted(split.read, preprocessing, kind, severity), pixels=None)


def robustness(subject: Subject) -> Section:
    """The accuracy for each kind and severity, beside that of the images as they are."""
    if not subject.severities:
        return missing(KEY, TITLE, "accuracy under corruptions takes 75 further evaluations; add --corruptions")
    clean = subject.evaluation.metrics["accuracy"]
    rows = {kind: [accuracy_under(subject, kind, severity) for severity in subject.severities] for kind in CORRUPTIONS}
    mean = float(np.mean(list(rows.values())))
    html = facts({"accuracy, images as they are": f"{clean:.2%}", "mean accuracy, corrupted": f"{mean:.2%}"})
    html += paragraph("Each image is corrupted at the size of the model's input. Frost is a generated texture, and "
                      "radii are scaled to the size of the image, so the numbers are not those of ImageNet-C.", True)
    several = len(subject.severities) > 1
    columns = ["corruption", *(f"severity {severity}" for severity in subject.severities)] + ["mean"] * several
    lines = [(kind.replace("_", " "), *(f"{value:.1%}" for value in [*values, np.mean(values)]))[: len(columns)]
             for kind, values in rows.items()]
    html += table(columns, lines, "Accuracy under corruptions", range(1, len(columns)))
    html += cards(example(subject, kind) for kind in CORRUPTIONS)
    return Section(KEY, TITLE, html, {"clean": clean, "mean": mean, "severities": list(subject.severities),
                                      "accuracy": rows})


def accuracy_under(subject: Subject, kind: str, severity: int) -> float:
    """The accuracy on the corrupted images; unreadable ones are left out, as in the evaluation."""
    predictor = subject.predictor
    split = corrupted(subject.samples, predictor.preprocessing, kind, severity).take(subject.evaluation.rows)
    as_it_is = predictor.preprocessing.replace(resize="none", crop_pct=1.0)
    found = evaluate(predictor.model, as_it_is, split, subject.evaluation.classes, subject.batch_size,
                     predictor.precision, device=predictor.device)
    return found.metrics["accuracy"]


def example(subject: Subject, kind: str) -> str:
    """The first image in the highest severity that was evaluated."""
    severity = subject.severities[-1]
    split = corrupted(subject.samples, subject.predictor.preprocessing, kind, severity)
    name = kind.replace("_", " ")
    return card(thumbnail_url(split.read(int(subject.evaluation.rows[0]))), f"{subject.name(0)} under {name}",
                [name, f"severity {severity}"])
