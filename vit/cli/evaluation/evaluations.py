"""The evaluation of each kind of model on a split, with a progress bar."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vit.cli.data.data_sets import ALL, splits_of_all
from vit.cli.terminal import check_classes, counted, print_unreadable
from vit.data.errors import SplitError

if TYPE_CHECKING:
    from vit.data import PairSource, PairSplit, Source, Split, TextSplit
    from vit.evaluation import Evaluation, MultiLabelEvaluation
    from vit.evaluation.seq2seq import Seq2SeqEvaluation
    from vit.inference import MaskedTextPredictor, MultiLabelPredictor, Predictor, Seq2SeqPredictor, TextPredictor

    AnyPredictor = Predictor | TextPredictor | Seq2SeqPredictor | MaskedTextPredictor

IMAGES, MULTI_LABEL, TEXTS = "labelled images", "multi-label images", "labelled texts"
IMAGE_TEXT, TEXT_PAIRS, PLAIN_TEXT = "images and their texts", "pairs of texts", "unlabelled text"


@dataclass(frozen=True)
class Measurement:
    """A split of a source, its `data` config node, and how it is evaluated.

    Args:
        output: a folder for report files.
        tta: 2 averages over the mirror images, for classifiers of images.
        classes: "data" ranks only the classes that occur in the split, for classifiers of images; "model" all.
        real_labels: labels of ImageNet-ReaL, for classifiers of images.
    """

    source: "Source | PairSource"
    split: str
    data: dict
    batch_size: int
    precision: str
    output: Path | None
    tta: int = 1
    classes: str = "model"
    real_labels: list[list[int]] | None = None

    @property
    def title(self) -> str:
        parts = f" ({', '.join(splits_of_all(self.source))})" if self.split == ALL else ""
        mirrored = ", averaged over mirror images" if self.tta == 2 else ""
        chosen = ", among the classes of the data" if self.classes == "data" else ""
        return f"{self.source.name}, {self.split}{parts}{mirrored}{chosen}"

    def samples(self) -> "Split | PairSplit":
        """The samples of the split.

        Raises:
            ValueError: the source has no such split.
        """
        if self.split not in self.source.splits:
            raise SplitError(f"split={self.split}: {self.source.name} has no such split; it has "
                             f"{', '.join(self.source.splits)}")
        return self.source.splits[self.split]


def check_kind(predictor: "AnyPredictor", task: Measurement) -> str:
    """The kind of data that both the model and the source have.

    Raises:
        ValueError: the data is not of the kind that the model reads, or a classifier has no head.
    """
    check_classes(predictor)
    kind = kind_of_model(predictor)
    if (holds := kind_of_data(task.source)) != kind:
        raise ValueError(f"{task.source.name} holds {holds}, but the model is for {kind}; choose another data set with "
                         "data=NAME")
    return kind


def kind_of_model(predictor: "AnyPredictor") -> str:
    """The kind of data that a model is evaluated on."""
    from vit.inference import MaskedTextPredictor, MultiLabelPredictor, Seq2SeqPredictor, TextPredictor

    if isinstance(predictor, MaskedTextPredictor):
        return PLAIN_TEXT
    if isinstance(predictor, Seq2SeqPredictor):
        return IMAGE_TEXT if predictor.is_image_to_text else TEXT_PAIRS
    if isinstance(predictor, MultiLabelPredictor):
        return MULTI_LABEL
    return TEXTS if isinstance(predictor, TextPredictor) else IMAGES


def kind_of_data(source: "Source | PairSource") -> str:
    """The kind of data that a source has."""
    from vit.data import PairSource, Source, TextSplit

    if isinstance(source, PairSource):
        return IMAGE_TEXT if source.images else TEXT_PAIRS
    if not isinstance(source, Source):
        return PLAIN_TEXT
    if source.multi_label:
        return MULTI_LABEL
    return TEXTS if isinstance(source.splits["train"], TextSplit) else IMAGES


def evaluate_predictor(predictor: "AnyPredictor", kind: str, task: Measurement) -> tuple:
    """The evaluation of any model but a masked language model, and the evaluated samples.

    Args:
        kind: as `check_kind` returns it.

    Raises:
        BadImage, BadText, DataError: as the functions for the kinds of models.
    """
    functions = {IMAGES: evaluate_images, MULTI_LABEL: evaluate_images, TEXTS: evaluate_text_classes}
    return functions.get(kind, evaluate_generated)(predictor, task)


def evaluate_images(
    predictor: "Predictor | MultiLabelPredictor", task: Measurement
) -> "tuple[Evaluation | MultiLabelEvaluation, Split]":
    """The evaluation of an image classifier, and the evaluated samples with the labels of the model.

    Raises:
        BadImage: an image cannot be read, and the data config does not skip it.
        DataError: there is no such split, or its classes are not those of the model.
    """
    from vit.evaluation import (
        among_present,
        evaluate,
        evaluate_multi_label,
        matched_split,
        named_classes,
        with_real_accuracy,
    )
    from vit.evaluation.real_labels import real_labels_of
    from vit.inference.tta import averaged

    bundle = predictor.bundle
    function = partial(evaluate_multi_label, thresholds=bundle.thresholds) if bundle.thresholds else evaluate
    model, calibration = averaged(predictor.model, task.tta), bundle.calibration
    classes = named_classes(predictor.classes, task.source)
    samples = matched_split(task.source, classes, task.split)
    if task.classes == "data":
        model, classes = among_present(model, classes, samples)
        samples = matched_split(task.source, classes, task.split)
        calibration = None  # measured with all classes of the model
    if task.real_labels is not None:
        real_labels_of(classes, samples.names, task.real_labels)  # raises its errors before the images are read
    with counted("evaluate", len(samples)) as progress:
        evaluation = function(
            model, predictor.preprocessing, samples, classes,
            batch_size=task.batch_size, precision=task.precision, on_bad_sample=task.data["on_bad_sample"],
            device=predictor.device, progress=progress, calibration=calibration,
        )
    print_unreadable(evaluation.unreadable, len(samples))
    if task.real_labels is not None:
        evaluation = with_real_accuracy(evaluation, samples.names, task.real_labels)
    return evaluation, samples


def evaluate_text_classes(predictor: "TextPredictor", task: Measurement) -> "tuple[Evaluation, TextSplit]":
    """The evaluation of a text classifier, and the evaluated samples with the labels of the model.

    Raises:
        BadText: a text is empty or too long.
        DataError: there is no such split, or its classes are not those of the model.
    """
    from vit.evaluation import matched_split
    from vit.evaluation.text_classification import evaluate_texts
    from vit.run.parts.data_source import truncates

    predictor.truncate = truncates(task.data)
    samples = matched_split(task.source, predictor.classes, task.split)
    with counted("evaluate", len(samples)) as progress:
        return evaluate_texts(predictor, samples, task.batch_size, progress), samples


def evaluate_generated(predictor: "Seq2SeqPredictor", task: Measurement) -> "tuple[Seq2SeqEvaluation, PairSplit]":
    """The evaluation of a translator or image-to-text model, and the evaluated samples.

    Raises:
        BadImage, BadText: a source cannot be read.
        ValueError: there is no such split.
    """
    from vit.evaluation.seq2seq import evaluate_seq2seq
    from vit.run.parts.data_source import truncates

    samples, predictor.truncate = task.samples(), truncates(task.data)
    with counted("evaluate", len(samples)) as progress:
        evaluation = evaluate_seq2seq(predictor, samples, task.batch_size, task.data["on_bad_sample"], progress)
    print_unreadable(evaluation.unreadable, len(samples))
    return evaluation, samples
