"""What to label next: of unlabelled images or texts, those from which a classifier would learn most."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from vit.data import BadImage
from vit.data.quality.near_copies import find_pairs, thumbnail
from vit.evaluation.labelling.selection import choose_diverse, directions, most_uncertain, residuals, uncertainty
from vit.evaluation.progress import Progress
from vit.inference import BadInput, Predictor, TextPredictor, named_images
from vit.inference.calibrated import captured_features
from vit.inference.image_inputs import Images
from vit.messages import ArgumentError, number_of

POOL = 10  # candidates per chosen sample: the most uncertain ones
MIN_POOL = 200


@dataclass(frozen=True)
class ChosenSample:
    """A sample to label next.

    Args:
        source: the path of an image, or the text itself.
        labels, probabilities: the predicted labels; empty if no label of a multi-label model reaches its threshold.
        score: the uncertainty in [0,1].
        rank: from 1.
    """

    source: str
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    score: float
    rank: int


@dataclass(frozen=True)
class NextToLabel:
    """The result of a choice of samples to label.

    Args:
        samples: number of readable inputs.
        near_copies: number of candidates that were left out as near copies.
        unreadable: inputs that cannot be read.
    """

    chosen: list[ChosenSample]
    samples: int
    near_copies: int
    unreadable: list[BadInput]


@dataclass(frozen=True)
class UnlabelledOutputs:
    """The N readable inputs with their probabilities (N,classes) and features (N,D), the inputs of the model's head.

    If the features cannot be recorded, such as those of an ensemble, the probabilities replace them.
    """

    sources: list[str]
    probabilities: np.ndarray
    features: np.ndarray
    unreadable: list[BadInput]


def next_to_label(
    predictor: Predictor | TextPredictor, inputs: Images | Iterable, count: int = 50, *, exclude: Collection[str] = (),
    seed: int = 0, batch_size: int = 64, progress: Progress | None = None,
) -> NextToLabel:
    """Choose up to `count` inputs to label next, by `vit.evaluation.labelling.selection`.

    The candidates are the most uncertain inputs. Among near copies, only the most uncertain one is a candidate.

    Args:
        inputs: a folder or paths of images, or a list of texts.
        count: fewer are chosen if there are not as many candidates.
        exclude: paths or texts that are labelled already.
        progress: is called with 1 after each prediction.

    Raises:
        ValueError: `count` is below 1, no input is left or readable, or none of `exclude` is an input.
    """
    if count < 1:
        raise ArgumentError(f"count={count} must be at least 1")
    texts = isinstance(predictor, TextPredictor)
    left = remaining(list(inputs) if texts else [file for _, file in named_images(inputs)], exclude)
    outputs = predict_all(predictor, left, batch_size, progress)
    if not outputs.sources:
        raise ValueError(f"none of the {len(left)} inputs can be read: {outputs.unreadable[0]}")
    bundle = predictor.bundle
    thresholds = np.array(bundle.thresholds) if bundle.thresholds else None
    scores = uncertainty(outputs.probabilities, thresholds)
    candidates = most_uncertain(scores, max(POOL * count, MIN_POOL))
    copies: set[int] = set()
    if not texts:
        copies = repeated([outputs.sources[i] for i in candidates], predictor.preprocessing.decode)
    distinct = np.delete(candidates, sorted(copies))
    chosen = distinct[choose_diverse(directions(outputs.features)[distinct],
                                     residuals(outputs.probabilities[distinct], thresholds), count, seed)]
    return NextToLabel([described(outputs, int(i), float(scores[i]), rank, bundle.classes, thresholds)
                        for rank, i in enumerate(chosen, 1)], len(outputs.sources), len(copies), outputs.unreadable)


def remaining(inputs: Sequence, exclude: Collection[str]) -> list:
    """The inputs that are not labelled already.

    Raises:
        ValueError: none is left, or none of those to exclude is among the inputs.
    """
    labelled = set(exclude)
    names = ["\t".join(each) if isinstance(each, tuple) else str(each) for each in inputs]
    left = [each for each, name in zip(inputs, names, strict=True) if name not in labelled]
    if exclude and len(left) == len(inputs):
        raise ValueError(f"none of the {number_of(len(exclude), 'sample')} to exclude is among the {len(inputs)} "
                         f"inputs, such as {sorted(exclude)[0]}; pass the inputs in the same way as for the earlier "
                         "choice")
    if not left:
        raise ValueError(f"0 of {len(inputs)} inputs are left to choose from, with {len(exclude)} excluded; add inputs")
    return left


def predict_all(
    predictor: Predictor | TextPredictor, inputs: Iterable, batch_size: int, progress: Progress | None
) -> UnlabelledOutputs:
    """The outputs for all inputs. The probabilities are those of `predict`, calibrated if the model is."""
    classes = {name: c for c, name in enumerate(predictor.bundle.classes)}
    sources, rows, unreadable = [], [], []
    with captured_features(predictor.model) as captured:
        for each in predictor.stream(inputs, len(classes), batch_size):
            if progress:
                progress(1)
            if isinstance(each, BadInput):
                unreadable.append(each)
                continue
            row = np.zeros(len(classes))
            row[[classes[name] for name in each.names]] = each.probabilities
            sources.append(each.source)
            rows.append(row)
    probabilities = np.array(rows).reshape(-1, len(classes))
    features = np.concatenate([part.numpy() for part in captured]) if captured else probabilities
    features = features if len(features) == len(rows) else probabilities  # a fast predictor repeats forward passes
    return UnlabelledOutputs(sources, probabilities, features, unreadable)


def repeated(paths: Sequence[str], decode: Callable[[Path, str], Image.Image]) -> set[int]:
    """The indices of images that are near copies of an earlier one.

    Descriptors are normalised over these images, so copies among fewer than about 20 images may not be found.
    """
    rows, pixels = [], []
    for i, path in enumerate(paths):
        try:
            pixels.append(thumbnail(decode(Path(path), path)))
            rows.append(i)
        except (BadImage, OSError):  # the file has changed since its prediction
            continue
    pairs = find_pairs(np.stack(pixels)) if pixels else []
    left_out: set[int] = set()
    for one, other in sorted((rows[i], rows[j]) for i, j, _ in pairs):
        if one not in left_out:
            left_out.add(other)
    return left_out


def described(
    outputs: UnlabelledOutputs, i: int, score: float, rank: int, classes: Sequence[str], thresholds: np.ndarray | None
) -> ChosenSample:
    """A chosen sample with its predicted labels, most probable first."""
    row = outputs.probabilities[i]
    order = np.argsort(-row, kind="stable")
    best = order[:1] if thresholds is None else [c for c in order if row[c] >= thresholds[c]]
    names, probabilities = tuple(classes[c] for c in best), tuple(float(row[c]) for c in best)
    return ChosenSample(outputs.sources[i], names, probabilities, score, rank)
