"""The evaluation of each kind of model for `vit evaluate`: runs it, prints the metrics, writes the report files."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vit.cli.data.data_sets import ALL, calibration_split, splits_of_all
from vit.cli.evaluation.printing import named_metrics, print_classification, print_metrics
from vit.cli.terminal import check_classes, counted, print_unreadable, print_without_effect
from vit.messages import number_of

if TYPE_CHECKING:
    from vit.bundle import Bundle
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
    """

    source: "Source | PairSource"
    split: str
    data: dict
    batch_size: int
    precision: str
    output: Path | None
    tta: int = 1

    @property
    def title(self) -> str:
        parts = f" ({', '.join(splits_of_all(self.source))})" if self.split == ALL else ""
        return f"{self.source.name}, {self.split}{parts}{', averaged over mirror images' if self.tta == 2 else ''}"

    def samples(self) -> "Split | PairSplit":
        """The samples of the split.

        Raises:
            ValueError: the source has no such split.
        """
        if self.split not in self.source.splits:
            raise ValueError(f"split={self.split}: {self.source.name} has no such split; it has "
                             f"{', '.join(self.source.splits)}")
        return self.source.splits[self.split]


def measure(predictor: "AnyPredictor", task: Measurement) -> dict:
    """The metrics of a predictor.

    Raises:
        ValueError: the data is not of the kind that the model reads, or `tta` is given for another model than a
            classifier of images.
    """
    kind = check_kind(predictor, task)
    if task.tta != 1 and kind not in (IMAGES, MULTI_LABEL):
        instead = "use task.decode.tta=N" if kind == IMAGE_TEXT else "leave it out"
        raise ValueError(f"--tta is for classifiers of images, but {predictor.bundle.path} is for {kind}; {instead}")
    predictor.precision = task.precision
    functions = {IMAGES: measure_images, MULTI_LABEL: measure_multi_label, TEXTS: measure_texts,
                 PLAIN_TEXT: measure_masked_words}
    return functions.get(kind, measure_seq2seq)(predictor, task)


def calibration_note(bundle: "Bundle", task: Measurement) -> tuple[str, int] | None:
    """The sentence about samples on which the model was calibrated, which is also printed, and their number; None where
    there are none.
    """
    split = calibration_split(task.source, task.split, task.data, bundle)
    if split is None:
        return None
    count, evaluated = len(task.source.splits[split]), len(task.samples())
    which = f"these {split} samples" if split == task.split else (
        f"{count:,} of these {number_of(evaluated, 'sample')}, the {split} split")
    text = (f"{bundle.path} was calibrated on {which} of {task.source.name}, so its calibrated loss and calibration "
            "error are too low; evaluate another split")
    print_without_effect(text)
    return text, count


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


def evaluate_predictor(predictor: "AnyPredictor", task: Measurement) -> tuple:
    """The evaluation of any model, and the evaluated samples.

    Raises:
        BadImage, BadText, DataError: as the functions for the kinds of models.
        ValueError: the data is not of the kind that the model reads.
    """
    kind = check_kind(predictor, task)
    functions = {IMAGES: evaluate_images, MULTI_LABEL: evaluate_labels, TEXTS: evaluate_text_classes}
    return functions.get(kind, evaluate_generated)(predictor, task)


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


def measure_images(predictor: "Predictor", task: Measurement) -> dict:
    """Accuracy, loss and confusion matrix of an image classifier.

    Raises:
        BadImage, DataError: as `evaluate_images`.
    """
    evaluation, samples = evaluate_images(predictor, task)
    print_classification(evaluation, task.title, "images")
    if task.output is not None:
        from vit.report.evaluation import write_evaluation  # loads Matplotlib

        write_evaluation(task.output, evaluation, samples, predictor.preprocessing, task.title)
    return evaluation.to_dict(task.split)


def evaluate_images(predictor: "Predictor", task: Measurement) -> "tuple[Evaluation, Split]":
    """The evaluation of an image classifier, and the evaluated samples with the labels of the model.

    Raises:
        BadImage: an image cannot be read, and the data config does not skip it.
        DataError: there is no such split, or its classes are not those of the model.
    """
    from vit.evaluation import evaluate, matched_split
    from vit.inference.tta import averaged

    samples = matched_split(task.source, predictor.classes, task.split)
    with counted("evaluate", len(samples)) as progress:
        evaluation = evaluate(
            averaged(predictor.model, task.tta), predictor.preprocessing, samples, predictor.classes, task.batch_size,
            task.precision, task.data["on_bad_sample"], predictor.device, progress, predictor.bundle.calibration,
        )
    print_unreadable(evaluation.unreadable, len(samples))
    return evaluation, samples


def measure_multi_label(predictor: "MultiLabelPredictor", task: Measurement) -> dict:
    """Average precision and F1 of a multi-label classifier.

    Raises:
        BadImage, DataError: as `measure_images`.
    """
    from rich.console import Console

    from vit.report.multi_label import label_table, write_multi_label_evaluation

    evaluation, samples = evaluate_labels(predictor, task)
    print_metrics(named_metrics(evaluation.metrics), {"images": f"{len(evaluation.rows):,}"}, task.title)
    Console().print(label_table(evaluation.class_scores()))
    if task.output is not None:
        write_multi_label_evaluation(task.output, evaluation, samples, predictor.preprocessing, task.title)
    return evaluation.to_dict(task.split)


def evaluate_labels(predictor: "MultiLabelPredictor", task: Measurement) -> "tuple[MultiLabelEvaluation, Split]":
    """The evaluation of a multi-label classifier, and the evaluated samples with the labels of the model.

    Raises:
        BadImage, DataError: as `evaluate_images`.
    """
    from vit.evaluation import evaluate_multi_label, matched_split
    from vit.inference.tta import averaged

    samples = matched_split(task.source, predictor.classes, task.split)
    with counted("evaluate", len(samples)) as progress:
        evaluation = evaluate_multi_label(
            averaged(predictor.model, task.tta), predictor.preprocessing, samples, predictor.classes,
            predictor.bundle.thresholds, task.batch_size, task.precision, task.data["on_bad_sample"], predictor.device,
            progress, predictor.bundle.calibration,
        )
    print_unreadable(evaluation.unreadable, len(samples))
    return evaluation, samples


def measure_texts(predictor: "TextPredictor", task: Measurement) -> dict:
    """Accuracy, loss and confusion matrix of a text classifier.

    Raises:
        BadText: a text is empty or too long.
        DataError: as `measure_images`.
    """
    evaluation, samples = evaluate_text_classes(predictor, task)
    print_classification(evaluation, task.title, "texts")
    if task.output is not None:
        from vit.report.evaluation import write_text_evaluation  # loads Matplotlib

        write_text_evaluation(task.output, evaluation, samples, task.title)
    return evaluation.to_dict(task.split, "texts")


def evaluate_text_classes(predictor: "TextPredictor", task: Measurement) -> "tuple[Evaluation, TextSplit]":
    """The evaluation of a text classifier, and the evaluated samples with the labels of the model.

    Raises:
        BadText, DataError: as `measure_texts`.
    """
    from vit.evaluation import matched_split
    from vit.evaluation.text_classification import evaluate_texts
    from vit.run.parts.data_source import truncates

    predictor.truncate = truncates(task.data)
    samples = matched_split(task.source, predictor.classes, task.split)
    with counted("evaluate", len(samples)) as progress:
        return evaluate_texts(predictor, samples, task.batch_size, progress), samples


def measure_seq2seq(predictor: "Seq2SeqPredictor", task: Measurement) -> dict:
    """Text metrics of a translator or image-to-text model.

    Raises:
        BadImage, BadText: a source cannot be read.
        ValueError: there is no such split.
    """
    from vit.evaluation import bleu_signature
    from vit.report.seq2seq import write_seq2seq_evaluation

    evaluation, samples = evaluate_generated(predictor, task)
    facts = {"BLEU signature": bleu_signature(), "pairs": f"{len(evaluation.rows):,}"}
    print_metrics(evaluation.metrics, facts, task.title)
    if task.output is not None:
        write_seq2seq_evaluation(task.output, evaluation, samples, predictor.preprocessing)
    return evaluation.to_dict(task.split)


def evaluate_generated(predictor: "Seq2SeqPredictor", task: Measurement) -> "tuple[Seq2SeqEvaluation, PairSplit]":
    """The evaluation of a translator or image-to-text model, and the evaluated samples.

    Raises:
        BadImage, BadText, ValueError: as `measure_seq2seq`.
    """
    from vit.evaluation.seq2seq import evaluate_seq2seq
    from vit.run.parts.data_source import truncates

    samples, predictor.truncate = task.samples(), truncates(task.data)
    with counted("evaluate", len(samples)) as progress:
        evaluation = evaluate_seq2seq(predictor, samples, task.batch_size, task.data["on_bad_sample"], progress)
    print_unreadable(evaluation.unreadable, len(samples))
    return evaluation, samples


def measure_masked_words(predictor: "MaskedTextPredictor", task: Measurement) -> dict:
    """Loss and accuracies of a masked language model, with the same masks and pairs as in the test after training.

    Raises:
        ValueError: there is no such split.
    """
    from vit.data import MaskedDataset
    from vit.evaluation.masked_tokens import evaluate_masked_tokens

    seed, max_len = seed_of_masks(predictor.bundle), predictor.model.config.max_len
    ratio, trained = task.data["mask_ratio"], predictor.bundle.extra.get("mask_ratio")
    if trained not in (None, ratio):
        print_without_effect(f"{ratio:g} of the tokens are masked, but {trained:g} were in the training of "
                             f"{predictor.bundle.path}; for the same, add data.mask_ratio={trained:g}")
    dataset = MaskedDataset(task.samples(), predictor.tokenizer, max_len, ratio, seed)
    with counted("evaluate", len(dataset)) as progress:
        metrics = evaluate_masked_tokens(predictor.model, dataset, task.batch_size, task.precision, progress=progress,
                                         device=predictor.device,
                                         weights=predictor.bundle.extra.get("loss_weights", (1.0, 1.0)))
    print_metrics(metrics, {"sentence pairs": f"{len(dataset):,}"}, task.title)
    return {f"{task.split}/{name}": value for name, value in metrics.items()} | {"pairs": len(dataset)}


def seed_of_masks(bundle: "Bundle") -> int:
    """The seed of the masks and pairs in the test after training. Models of earlier versions do not record it, but
    their runs do; without either it is 0, which is printed.
    """
    from vit.run.records.folder import CONFIG
    from vit.run.records.reading import read_stored

    if "seed" in bundle.extra:
        return bundle.extra["seed"]
    file = bundle.path.parent / CONFIG
    run = read_stored(file) if file.is_file() else {}
    if isinstance(run.get("task"), dict) and run["task"].get("name") == "masked_text" and "seed" in run:
        return run["seed"]
    print_without_effect(f"neither {bundle.path} nor a run folder around it records the seed of its masks and sentence "
                         "pairs; those of seed 0 are evaluated, which need not be those of the test after training")
    return 0


def measure_reconstruction(bundle: "Bundle", task: Measurement, device: str | None) -> dict:
    """The metrics of a masked autoencoder, with the same masks as in the test after training.

    Raises:
        ValueError: the data has no images, or no such split.
    """
    from vit.data import Source, TextSplit
    from vit.evaluation.reconstruction import evaluate_reconstruction

    if not isinstance(task.source, Source) or isinstance(task.source.splits["train"], TextSplit):
        raise ValueError(f"{task.source.name} holds no images, but {bundle.path} is for images; choose another data "
                         "set, such as data=folder")
    samples = task.samples()
    with counted("evaluate", len(samples)) as progress:
        metrics, unreadable = evaluate_reconstruction(
            bundle.model, bundle.preprocessing, samples, task.batch_size, task.precision, task.data["on_bad_sample"],
            device, progress,
        )
    print_unreadable(unreadable, len(samples))
    images = len(samples) - len(unreadable)
    print_metrics({"loss per masked patch": metrics["loss"]}, {"images": f"{images:,}"}, task.title)
    named = {f"{task.split}/{name}": value for name, value in metrics.items()}
    return {**named, "images": images, "unreadable": [str(error) for error in unreadable]}
