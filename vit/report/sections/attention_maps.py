"""The section about attention: maps of images, and attention between the tokens of texts."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from vit.evaluation.attribution.grad_cam import grad_cam
from vit.evaluation.attribution.integrated_gradients import integrated_gradients
from vit.evaluation.attribution.relevance import class_relevance, has_relevance
from vit.evaluation.multi_label import MultiLabelEvaluation
from vit.inference.images import accept_size
from vit.messages import left_to_right, number_of, path_left_to_right
from vit.report.attention.heat import enlarged, heat_picture
from vit.report.attention.recording import has_attention, image_attention, text_attention
from vit.report.pages.embedded import figure_url, thumbnail_url
from vit.report.pages.html_parts import card, cards, drawing, heading, paragraph, shortened
from vit.report.sections.generated_texts import matrix_picture
from vit.report.sections.subject import Section, Subject, missing

KEY, TITLE = "attention", "Attention"
TITLES = {"rollout": "rollout over all layers", "patches": "evidence for {}", "class": "attention for {}",
          "head": "last layer, head {}", "grad_cam": "Grad-CAM of {}"}


def attention(subject: Subject) -> Section:
    """Attention maps of the most confident errors and of correct predictions, half each."""
    model = subject.predictor.model
    if not hasattr(model, "embed"):
        return missing(KEY, TITLE, f"the attention of models of kind {model.config.kind} cannot be recorded")
    if not has_attention(model):
        return missing(KEY, TITLE, "no layer of the model has attention")
    chosen = attention_samples(subject)
    html = paragraph("Rollout and heads show which patches the pooled output reads. The maps of a class show which "
                     "patches are evidence for it, by integrated gradients (arXiv 1703.01365), and its attention, "
                     "weighted by the gradient of its logit (arXiv 2103.15679).")
    for i in chosen:
        html += image_maps(subject, i)
    return Section(KEY, TITLE, html, {"samples": [named(subject, i) for i in chosen]})


def attention_samples(subject: Subject) -> list[int]:
    """Indices of the samples with maps; evenly spaced for several labels per image."""
    count = subject.attention_images
    if isinstance(subject.evaluation, MultiLabelEvaluation):
        size = len(subject.evaluation.rows)
        return [int(i) for i in np.linspace(0, size - 1, min(count, size)).astype(int)]
    wrong = subject.confident_errors(count // 2).tolist()
    right = np.flatnonzero(subject.right)
    spread = np.linspace(0, max(len(right) - 1, 0), min(count - len(wrong), len(right))).astype(int)
    return [int(i) for i in (*wrong, *right[spread])]


def named(subject: Subject, i: int) -> dict:
    """The i-th evaluated sample for JSON."""
    if isinstance(subject.evaluation, MultiLabelEvaluation):
        return {"file": subject.name(i)}
    return subject.values(i)


def explained_classes(subject: Subject, i: int) -> list[int]:
    """The predicted class and, if that is wrong, the true one; of a multi-label model the two most probable labels."""
    evaluation = subject.evaluation
    if isinstance(evaluation, MultiLabelEvaluation):
        return np.argsort(-evaluation.probabilities[i], kind="stable")[:2].tolist()
    return list(dict.fromkeys([int(evaluation.predictions[i, 0]), int(evaluation.labels[i])]))


def image_maps(subject: Subject, i: int) -> str:
    """The maps of one image, side by side."""
    predictor, name = subject.predictor, subject.name(i)
    sample = subject.samples.read(int(subject.evaluation.rows[i]))
    maps = image_attention(predictor, sample, name)
    shown = {TITLES["rollout"]: maps.pooled_rollout()}
    if has_relevance(predictor.model):
        pixels = predictor.preprocessing.image(sample, name)
        accept_size(predictor.model, predictor.preprocessing, pixels)
        inputs = predictor.preprocessing.normalize(pixels[None].to(predictor.device))
        shown |= dict(class_maps(subject, inputs, explained_classes(subject, i)))
    last = list(maps.pooled_layers().values())[-1]
    shown |= {TITLES["head"].format(j): head for j, head in enumerate(last)}
    pictures = [card(thumbnail_url(enlarged(maps.image)), f"{name}, the input of the model", ["image"])]
    pictures += [card(thumbnail_url(heat_picture(maps.image, values)), f"{name}: {what}, {peak(values)}", [what])
                 for what, values in shown.items()]
    return heading(sample_title(subject, i)) + cards(pictures)


def class_maps(subject: Subject, inputs: torch.Tensor, classes: list[int]) -> Iterator[tuple[str, np.ndarray]]:
    """The name and the map of each class."""
    model = subject.predictor.model
    contributions = partial(integrated_gradients, multi_label=isinstance(subject.evaluation, MultiLabelEvaluation))
    functions = {"patches": contributions, "class": class_relevance}
    functions |= {"grad_cam": grad_cam} if subject.grad_cam else {}
    for c in classes:
        for kind, function in functions.items():
            values = function(model, inputs, torch.tensor([c], device=inputs.device))[0]
            yield TITLES[kind].format(subject.evaluation.classes[c]), values.cpu().numpy()


def peak(values: np.ndarray) -> str:
    """The position of the maximum of a map, as text."""
    row, column = np.unravel_index(values.argmax(), values.shape)
    return f"highest in row {row + 1} of {values.shape[0]}, column {column + 1} of {values.shape[1]}"


def sample_title(subject: Subject, i: int) -> str:
    """The name of a sample and its prediction."""
    name = path_left_to_right(subject.name(i))
    if isinstance(subject.evaluation, MultiLabelEvaluation):
        return name
    true, predicted, probability = subject.prediction(i)
    return left_to_right(name, ": ", true, ", predicted ", predicted, f", {probability:.1%}")


def text_attention_maps(subject: Subject) -> Section:
    """The attention between the tokens of the most confident errors and of correct predictions."""
    if not has_attention(subject.predictor.model):
        return missing(KEY, TITLE, "no layer of the model has attention")
    chosen = attention_samples(subject)
    html = paragraph("Attention of each token (column) to the others (row), the mean of all layers and heads.")
    for i in chosen:
        maps = text_attention(subject.predictor, subject.texts(i))
        alt = f"Attention between the {number_of(len(maps.keys), 'token')} of {shortened(subject.text(i), 100)!r}"
        html += drawing(figure_url(matrix_picture, maps, sample_title(subject, i)), alt)
    return Section(KEY, TITLE, html, {"samples": [subject.values(i) for i in chosen]})
