"""The metrics of each kind of model for `vit evaluate`: measured, printed, and written as report files."""

from typing import TYPE_CHECKING

from vit.cli.data.data_sets import calibration_split
from vit.cli.evaluation.evaluations import (
    IMAGE_TEXT,
    IMAGES,
    MULTI_LABEL,
    PLAIN_TEXT,
    TEXTS,
    Measurement,
    check_kind,
    evaluate_generated,
    evaluate_images,
    evaluate_text_classes,
)
from vit.cli.evaluation.printing import named_metrics, print_classification, print_metrics
from vit.cli.terminal import counted, print_unreadable, print_without_effect
from vit.messages import ArgumentError, number_of

if TYPE_CHECKING:
    from vit.bundle import Bundle
    from vit.cli.evaluation.evaluations import AnyPredictor
    from vit.evaluation.seq2seq import Seq2SeqEvaluation
    from vit.inference import MaskedTextPredictor, MultiLabelPredictor, Predictor, Seq2SeqPredictor, TextPredictor


def measure(predictor: "AnyPredictor", task: Measurement) -> dict:
    """The metrics of a predictor.

    Raises:
        ValueError: the data is not of the kind that the model reads, or `tta`, `classes` or `real_labels` is given for
            another model than a classifier of images.
    """
    kind = check_kind(predictor, task)
    if task.tta != 1 and kind not in (IMAGES, MULTI_LABEL):
        instead = "use task.decode.tta=N" if kind == IMAGE_TEXT else "leave it out"
        raise ArgumentError(f"--tta is for classifiers of images, but {predictor.bundle.path} is for {kind}; {instead}")
    for option, is_set in (("--classes data", task.classes == "data"), ("--real-labels", task.real_labels is not None)):
        if is_set and kind != IMAGES:
            raise ArgumentError(f"{option} is for classifiers with one class per image, but {predictor.bundle.path} is "
                                f"for {kind}; leave it out")
    predictor.precision = task.precision
    functions = {IMAGES: measure_images, MULTI_LABEL: measure_multi_label, TEXTS: measure_texts,
                 PLAIN_TEXT: measure_masked_tokens}
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


def measure_multi_label(predictor: "MultiLabelPredictor", task: Measurement) -> dict:
    """Average precision and F1 of a multi-label classifier.

    Raises:
        BadImage, DataError: as `evaluate_images`.
    """
    from vit.report.multi_label import label_table, write_multi_label_evaluation
    from vit.report.summary import print_table

    evaluation, samples = evaluate_images(predictor, task)
    print_metrics(named_metrics(evaluation.metrics), {"images": f"{len(evaluation.rows):,}"}, task.title)
    print_table(lambda narrow: label_table(evaluation.class_scores(), narrow=narrow))
    if task.output is not None:
        write_multi_label_evaluation(task.output, evaluation, samples, predictor.preprocessing, task.title)
    return evaluation.to_dict(task.split)


def measure_texts(predictor: "TextPredictor", task: Measurement) -> dict:
    """Accuracy, loss and confusion matrix of a text classifier.

    Raises:
        BadText, DataError: as `evaluate_text_classes`.
    """
    evaluation, samples = evaluate_text_classes(predictor, task)
    print_classification(evaluation, task.title, "texts")
    if task.output is not None:
        from vit.report.evaluation import write_text_evaluation  # loads Matplotlib

        write_text_evaluation(task.output, evaluation, samples, task.title)
    return evaluation.to_dict(task.split, "texts")


def measure_seq2seq(predictor: "Seq2SeqPredictor", task: Measurement) -> dict:
    """Text metrics of a translator or image-to-text model.

    Raises:
        BadImage, BadText, ValueError: as `evaluate_generated`.
    """
    from vit.evaluation import bleu_signature
    from vit.report.seq2seq import write_seq2seq_evaluation

    evaluation, samples = evaluate_generated(predictor, task)
    facts = {"BLEU signature": bleu_signature(evaluation.all_references), "pairs": f"{len(evaluation.rows):,}",
             **reference_facts(evaluation)}
    print_metrics(evaluation.metrics, facts, task.title)
    if task.output is not None:
        write_seq2seq_evaluation(task.output, evaluation, samples, predictor.preprocessing)
    return evaluation.to_dict(task.split)


def reference_facts(evaluation: "Seq2SeqEvaluation") -> dict[str, str]:
    """The number of references, if sources have several."""
    count = sum(map(len, evaluation.all_references))
    return {"references": f"{count:,}"} if evaluation.has_several_references else {}


def measure_masked_tokens(predictor: "MaskedTextPredictor", task: Measurement) -> dict:
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
