"""Near copies by the features of a model: rotated, recoloured and strongly cropped versions.

Features are centred and whitened over the data set (Jegou and Chum, ECCV 2012), with shrinkage: without it all photos
of one kind are similar to each other. Pairs with a cosine of `FEATURE_LIMIT` or more are near copies. Each image and
the one with the most similar features are also compared as crops of each other, by the frequencies of windows of 62 to
86 % of a side.

For N images with D features this costs 2 * D * N^2 operations in blocks, an eigendecomposition of (D,D), less than
10 ms per image for the crops, and 4 * D bytes of memory per image.
"""

import logging
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from vit.data.errors import DataError
from vit.data.images.line_images import AnyPreprocessing
from vit.data.quality.near_copies import (
    BLOCK,
    FINE,
    GRID,
    PIXELS,
    NearCopy,
    Space,
    compare_windows,
    find_pairs,
    named_pairs,
    read_thumbnails,
)
from vit.data.source import Source
from vit.data.threads import StageProgress
from vit.messages import number_of

log = logging.getLogger("vit")

FEWEST = 20  # images over which features are whitened
MIN_SIDE = 16  # pixels; smaller images are enlarged so much that their features and windows are all similar
SHRINKAGE = 0.1  # fraction of the mean variance that is added to each variance
FEATURE_LIMIT = 0.5  # cosine of whitened features from which a pair is a near copy
CROP_LIMIT, CROP_FEATURES = 0.9, 0.1  # similarity of a window from which it is a crop, and the least cosine of features
STEP = 1.6  # pixels of a thumbnail between windows
CROPS = tuple((size, int(np.ceil((1 - size) * GRID / STEP)) + 1) for size in (0.62, 0.66, 0.7, 0.74, 0.78, 0.82, 0.86))
MAX_PAIRS = 200_000  # the most similar ones are returned

Featurize = Callable[[list[tuple[str, int]]], np.ndarray]  # (split, index) of N images -> features (N,D)


def near_copies_by_model(
    source: Source, preprocessing: AnyPreprocessing, featurize: Featurize, progress: StageProgress | None = None
) -> list[NearCopy]:
    """`near_copies`, and those that only the features of a model show, of images with sides of `MIN_SIDE` or more.

    Raises:
        BadImage: an image cannot be read for the model.
        DataError: there are fewer than `FEWEST` such images, or as `find_feature_pairs`.
    """
    thumbnails = read_thumbnails(source, preprocessing, progress)
    large = np.flatnonzero(thumbnails.sides >= MIN_SIDE)
    if len(large) < FEWEST:
        raise DataError(f"near copies by features, which are relative to the data set, need {FEWEST} images that can "
                        f"be decoded, are not of one colour and have sides of {MIN_SIDE} pixels or more, but only "
                        f"{len(large)} of {number_of(len(thumbnails.sides), 'image')} are such; leave the model out")
    features = featurize([thumbnails.positions[i] for i in large])
    found = {PIXELS: find_pairs(thumbnails.pixels, progress)}
    for way, pairs in find_feature_pairs(features, thumbnails.pixels[large], progress).items():
        found[way] = [(int(large[i]), int(large[j]), similarity) for i, j, similarity in pairs]
    return named_pairs(source, thumbnails.positions, found)


def find_feature_pairs(
    features: np.ndarray, pixels: np.ndarray, progress: StageProgress | None = None
) -> dict[str, list[tuple[int, int, float]]]:
    """features (N,D), thumbnails (N,64,64) -> pairs (i, j, similarity), i < j, by "features" and by "crop"

    Raises:
        DataError: a feature is not finite.
    """
    if len(wrong := np.flatnonzero(~np.isfinite(features).all(axis=1))):
        raise DataError(f"{len(wrong)} of {len(features)} feature vectors have values that are not finite, the first "
                        f"one of image {wrong[0]}; choose another model")
    vectors = whitened(features)
    pairs, nearest, cosines = similar_pairs(vectors, progress)
    crops = crop_pairs(pixels, nearest, cosines >= CROP_FEATURES, progress)
    return {"crop": crops, "features": pairs}


def crop_pairs(
    pixels: np.ndarray, nearest: np.ndarray, chosen: np.ndarray, progress: StageProgress | None = None
) -> list[tuple[int, int, float]]:
    """thumbnails (N,64,64), another image for each (N,), which to compare (N,) bool -> pairs i < j that are crops"""
    one = np.arange(len(nearest))
    codes = np.unique(np.minimum(one, nearest)[chosen] * len(one) + np.maximum(one, nearest)[chosen])
    rows, columns = np.divmod(codes, len(one))
    if not len(rows):
        return []
    space = Space(pixels, FINE)
    similarity = np.maximum(compare_windows(pixels, rows, columns, space, progress, CROPS),
                            compare_windows(pixels, columns, rows, space, progress, CROPS))
    crops = np.flatnonzero(similarity >= CROP_LIMIT)
    return [(int(rows[k]), int(columns[k]), float(min(similarity[k], 1))) for k in crops]


def whitened(features: np.ndarray) -> Tensor:
    """(N,D) -> float32 (N,D) of length 1, in the axes of the covariance, each divided by its shrunk deviation"""
    x = torch.from_numpy(features).double()
    x = x - x.mean(dim=0)
    variances, axes = torch.linalg.eigh(x.T @ x / len(x))
    scale = (variances.clamp(min=0) + SHRINKAGE * variances.mean().clamp(min=1e-12)).sqrt()
    return torch.nn.functional.normalize(x @ axes / scale, dim=1).float()


def similar_pairs(
    vectors: Tensor, progress: StageProgress | None = None
) -> tuple[list[tuple[int, int, float]], np.ndarray, np.ndarray]:
    """vectors (N,D) of length 1 -> pairs i < j with a cosine of `FEATURE_LIMIT` or more, the most similar other vector
    of each (N,), and their cosine (N,)
    """
    count, limit = len(vectors), FEATURE_LIMIT
    nearest, cosines = torch.zeros(count, dtype=torch.long), torch.full((count,), -1.0)
    pairs = torch.zeros(2, 0, dtype=torch.long)  # tensors, since a block has up to BLOCK^2 pairs
    values = torch.zeros(0)
    for start in range(0, count, BLOCK):
        if progress:
            progress("compares features", start, count)
        rows = torch.arange(start, min(start + BLOCK, count))
        for other in range(0, count, BLOCK):
            similar = vectors[rows] @ vectors[other : other + BLOCK].T
            columns = torch.arange(other, other + similar.shape[1])
            similar[rows[:, None] == columns] = -1
            best, position = similar.max(dim=1)
            better = best > cosines[rows]
            cosines[rows[better]], nearest[rows[better]] = best[better], position[better] + other
            similar[rows[:, None] > columns] = -1
            # among equal cosines the first pairs are selected
            found = similar >= limit if len(values) < MAX_PAIRS else similar > limit
            i, j = found.nonzero(as_tuple=True)
            pairs = torch.cat([pairs, torch.stack([i + start, j + other])], dim=1)
            values = torch.cat([values, similar[i, j]])
            if len(values) > MAX_PAIRS:
                order = values.argsort(descending=True, stable=True)[:MAX_PAIRS]
                pairs, values = pairs[:, order], values[order]
                limit = values[-1].item()
    if progress:
        progress("compares features", count, count)
    if limit > FEATURE_LIMIT:
        log.warning("more than %s pairs have similar features: those with a cosine of %.3f or more are listed",
                    f"{MAX_PAIRS:,}", limit)
    return list(zip(*pairs.tolist(), values.clamp(max=1).tolist(), strict=True)), nearest.numpy(), cosines.numpy()
