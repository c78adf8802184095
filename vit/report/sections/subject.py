"""What a report is about, and what a section of it consists of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vit.data import PairSource, PairSplit, Source, Split, TextSplit
from vit.data.quality.audit_report import AuditReport
from vit.data.threads import StageProgress
from vit.evaluation import Evaluation, MultiLabelEvaluation
from vit.evaluation.seq2seq import Seq2SeqEvaluation
from vit.inference import Predictor, Seq2SeqPredictor, TextPredictor
from vit.messages import left_to_right, path_left_to_right
from vit.report.pages.embedded import figure_url, file_url, thumbnail_url
from vit.report.pages.html_parts import card, paragraph, shortened, text_card
from vit.report.sections.run_record import RunRecord


@dataclass(frozen=True)
class Section:
    """A section of the page: HTML whose values are escaped, and the same as plain values for JSON."""

    key: str
    heading: str
    html: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """A model and its evaluation.

    Args:
        samples: the evaluated samples, with the labels of the model.
        source: the data set that is audited.
        split: the name of the evaluated split.
        title: names data and split.
        facts: further lines of the header: date, command, versions.
        run: the run that the model is from, if there is one.
        batch_size: batch size of further evaluations.
        audit_seconds: time limit of decoding in the audit of the data, including the one in `audit`.
        attention_images: how many images have attention maps.
        severities: severities of the corruptions that the model is evaluated on, from 1 to 5; none by default.
        grad_cam: whether images also have Grad-CAM, which needs captum.
        drawn: a folder with figures of this evaluation, which are not drawn again.
        audit: the audit of the data, if there is one already; otherwise images are audited within `audit_seconds`.
        progress: called by sections that take long.
    """

    predictor: Predictor | TextPredictor | Seq2SeqPredictor
    evaluation: Evaluation | MultiLabelEvaluation | Seq2SeqEvaluation
    samples: Split | TextSplit | PairSplit
    source: Source | PairSource
    split: str
    title: str
    facts: Mapping[str, str]
    run: RunRecord | None = None
    batch_size: int = 64
    audit_seconds: float | None = 10.0
    attention_images: int = 4
    severities: tuple[int, ...] = ()
    audit: AuditReport | None = None
    grad_cam: bool = False
    drawn: Path | None = None
    progress: StageProgress | None = None

    @property
    def unit(self) -> str:
        """What a sample is."""
        if isinstance(self.samples, PairSplit):
            return "pairs"
        return "texts" if isinstance(self.samples, TextSplit) else "images"

    @property
    def right(self) -> np.ndarray:
        """Whether each prediction is right: (N,)."""
        return self.evaluation.predictions[:, 0] == self.evaluation.labels

    def figure(self, name: str, draw: Callable[..., Path | None], *arguments: Any) -> str | None:
        """The figure `name` of `drawn` as a data URL, otherwise what `draw` draws; None if that is nothing."""
        path = None if self.drawn is None else self.drawn / name
        return file_url(path) if path is not None and path.is_file() else figure_url(draw, *arguments)

    def name(self, i: int) -> str:
        """The name of the i-th evaluated sample."""
        return self.samples.names[int(self.evaluation.rows[i])]

    def preview(self, i: int) -> np.ndarray:
        """The i-th evaluated image after resizing and cropping: uint8 (H,W,C)."""
        row = int(self.evaluation.rows[i])
        return self.predictor.preprocessing.preview(self.samples.read(row), self.samples.names[row])

    def texts(self, i: int) -> tuple[str, ...]:
        """The i-th evaluated text, or both texts of a pair."""
        row = int(self.evaluation.rows[i])
        return tuple(column[row] for column in self.samples.texts)

    def text(self, i: int) -> str:
        """The i-th evaluated text; a tab separates the texts of a pair."""
        return "\t".join(self.texts(i))

    def prediction(self, i: int) -> tuple[str, str, float]:
        """(true class, predicted class, probability) of the i-th evaluated sample."""
        evaluation = self.evaluation
        return (evaluation.classes[evaluation.labels[i]], evaluation.classes[evaluation.predictions[i, 0]],
                float(evaluation.probabilities[i, 0]))

    def confident_errors(self, limit: int) -> np.ndarray:
        """Indices of the wrong predictions with the highest probability."""
        wrong = np.flatnonzero(~self.right)
        return wrong[np.argsort(-self.evaluation.probabilities[wrong, 0], kind="stable")][:limit]

    def card(self, i: int) -> str:
        """The i-th evaluated sample, a small picture or the start of a text, with its prediction."""
        true, predicted, probability = self.prediction(i)
        lines = [left_to_right("predicted ", predicted, f", {probability:.1%}"), left_to_right("true ", true),
                 path_left_to_right(self.name(i))]
        if isinstance(self.samples, TextSplit):
            return text_card(shortened(self.text(i)), lines)
        alt = f"{self.name(i)}: {true}, predicted as {predicted}"
        return card(thumbnail_url(self.preview(i)), alt, lines)

    def values(self, i: int) -> dict[str, Any]:
        """The i-th evaluated sample for JSON."""
        true, predicted, probability = self.prediction(i)
        return {"file": self.name(i), "true": true, "predicted": predicted, "probability": probability}


def missing(key: str, heading: str, why: str) -> Section:
    """An empty section with the reason why it is empty."""
    return Section(key, heading, paragraph(f"Not in this report: {why}."), {"missing": why})
