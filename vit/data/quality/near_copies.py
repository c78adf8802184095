"""Near copies in a data set: resized, recompressed, cropped, mirrored or brightened versions of one image.

Each image is described by the low frequencies of its discrete cosine transform, as in perceptual hashes, but as numbers
instead of bits: normalised per image, which removes brightness and contrast, and per frequency over the data set. A
mirrored image has the same numbers with the sign of the odd horizontal frequencies changed, and a cropped one is found
by comparing windows of the other image. Pairs with similar descriptors of 8x8 frequencies are compared again with 12x12
frequencies and finer windows.

For N images this costs 2 * 63 * 20 * N^2 operations in blocks (10 s on one core for 12,000 images, 25 times as long for
60,000) and about 5 kB of memory per image, most of it for a thumbnail of 64x64 pixels.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from vit.data.decoding.decode import BadImage
from vit.data.errors import printable
from vit.data.images.line_images import AnyPreprocessing, LinePreprocessing
from vit.data.images.packed import PackedPreprocessing
from vit.data.source import Source
from vit.data.system_limits import check_files_left
from vit.data.threads import StageProgress, map_in_threads, reported
from vit.messages import number_of

log = logging.getLogger("vit")

GRID = 64  # pixels of a thumbnail's side
MIN_DECODED_SIDE = 2 * GRID  # pixels of the shorter side of a JPEG that is decoded at a smaller scale
WINDOW = 0.9  # fraction of each side of the crops that are searched
COARSE, FINE = 8, 12  # frequencies per side
COARSE_OFFSETS, FINE_OFFSETS = 3, 9  # positions of a window per side
COARSE_LIMIT, FINE_LIMIT = 0.85, 0.92  # similarities from which a pair is a candidate, and a near copy
BLOCK = 2048  # images per block of the comparison
MAX_CANDIDATES = 200_000  # only so many of the most similar candidates are compared again
PIXELS = "pixels"  # `found_by` of a pair that was found by its frequencies
FLAT = 4.0  # images with a lower standard deviation of gray values have nothing to compare


@dataclass(frozen=True)
class NearCopy:
    """Two images that show the same.

    Args:
        one, other: (split, name, label) of the images.
        similarity: in [0.92, 1] if found by pixels, [0.9, 1] as a crop, [0.5, 1] by features.
        found_by: "pixels"; with a model also "crop" or "features".
    """

    one: tuple[str, str, str]
    other: tuple[str, str, str]
    similarity: float
    found_by: str = PIXELS

    @property
    def across_splits(self) -> bool:
        return self.one[0] != self.other[0]

    @property
    def across_classes(self) -> bool:
        return self.one[2] != self.other[2]


@dataclass(frozen=True)
class Thumbnails:
    """Small gray images.

    Args:
        pixels: (N,64,64) uint8
        positions: (split, index) of each image.
        sides: (N,) the shorter side of each image in pixels, as it was decoded.
    """

    pixels: np.ndarray
    positions: list[tuple[str, int]]
    sides: np.ndarray


def near_copies(
    source: Source, preprocessing: AnyPreprocessing, progress: StageProgress | None = None
) -> list[NearCopy]:
    """The pairs of near copies, those across splits first, then across classes, then by similarity. A warning is logged
    if there are too many similar images to compare them all.

    Unreadable images, and those of one colour, are not compared.
    """
    thumbnails = read_thumbnails(source, preprocessing, progress)
    return named_pairs(source, thumbnails.positions, {PIXELS: find_pairs(thumbnails.pixels, progress)})


def named_pairs(
    source: Source, positions: list[tuple[str, int]], found: Mapping[str, list[tuple[int, int, float]]]
) -> list[NearCopy]:
    """Pairs (i, j, similarity) of the images at `positions` with names and labels, each pair once, in the order of
    `near_copies`; those found in the same way are sorted by similarity.

    Args:
        found: the pairs that were found in each way, by the value of `NearCopy.found_by`.
    """
    pairs: dict[tuple[int, int], NearCopy] = {}
    for way, each in found.items():
        for i, j, similarity in each:
            ends = [(key, source.splits[key].names[row], source.label_text(key, row) if source.classes else "")
                    for key, row in (positions[i], positions[j])]
            pairs.setdefault((i, j), NearCopy(*ends, round(similarity, 4), way))
    ways = list(found)
    return sorted(pairs.values(), key=lambda pair: (not pair.across_splits, not pair.across_classes,
                                                    ways.index(pair.found_by), -pair.similarity))


def read_thumbnails(
    source: Source, preprocessing: AnyPreprocessing, progress: StageProgress | None = None
) -> Thumbnails:
    """The thumbnails of all images that can be decoded and are not of one colour. JPEGs that are far larger than a
    thumbnail are decoded at a smaller scale.
    """
    if isinstance(preprocessing, LinePreprocessing):
        plain = preprocessing.pixels
    else:  # `PackedPreprocessing` does not allow `draft`
        plain = preprocessing.of_one_size() if isinstance(preprocessing, PackedPreprocessing) else preprocessing
    draft = plain.replace(draft=True)
    pixels, positions, sides = [], [], []
    every = [(key, i) for key, split in source.splits.items() for i in range(len(split))]

    def read(position: tuple[str, int]) -> tuple[np.ndarray, int] | None:
        """The thumbnail of an image and its shorter side; None if it cannot be decoded."""
        key, i = position
        split = source.splits[key]
        try:
            image = draft.decode(split.read(i), split.names[i],
                                 lambda width, height: MIN_DECODED_SIDE / min(width, height))
        except (BadImage, OSError) as error:
            check_files_left(error)
            return None
        return thumbnail(image), min(image.size)

    results = zip(every, map_in_threads(read, every), strict=True)
    for position, result in reported(results, "reads", len(every), progress):
        if result is not None and result[0].std() >= FLAT:
            pixels.append(result[0])
            positions.append(position)
            sides.append(result[1])
    stacked = np.stack(pixels) if pixels else np.zeros((0, GRID, GRID), np.uint8)
    return Thumbnails(stacked, positions, np.array(sides, np.int64))


def thumbnail(image: Image.Image) -> np.ndarray:
    """An image → gray (64,64) uint8"""
    method = Image.Resampling.BOX if min(image.size) >= GRID else Image.Resampling.BILINEAR
    return np.asarray(image.convert("L").resize((GRID, GRID), method))


def find_pairs(pixels: np.ndarray, progress: StageProgress | None = None) -> list[tuple[int, int, float]]:
    """thumbnails (N,64,64) → (i, j, similarity) of each pair of near copies, i < j"""
    if len(pixels) < 2:
        return []
    rows, columns = _candidates(pixels, progress)
    if not len(rows):
        return []
    space = Space(pixels, FINE)
    similarity = np.maximum(compare_windows(pixels, rows, columns, space, progress),
                            compare_windows(pixels, columns, rows, space, progress))
    similar = np.flatnonzero(similarity >= FINE_LIMIT)
    return [(int(rows[k]), int(columns[k]), float(min(similarity[k], 1))) for k in similar]


class Space:
    """Descriptors of thumbnails, normalised by mean and deviation over a data set."""

    def __init__(self, pixels: np.ndarray, frequencies: int):
        self.frequencies = frequencies
        self.whole = basis(0, GRID, frequencies)
        raw = np.concatenate([self.raw(pixels[start : start + BLOCK], self.whole, self.whole)
                              for start in range(0, len(pixels), BLOCK)])
        unit = _unit(raw)
        self.mean, deviation = unit.mean(0), unit.std(0)
        # the fine comparison weights all frequencies alike, the coarse one low frequencies more: crops change them less
        self.scale = np.maximum(deviation, 1e-4) ** (1.0 if frequencies == FINE else 0.5)
        odd = np.arange(frequencies * frequencies)[1:] % frequencies % 2
        self.mirror = np.where(odd, -1, 1).astype(np.float32)

    def raw(self, pixels: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """thumbnails (N,64,64) → (N,D) frequencies of a window, without the mean"""
        values = rows @ pixels.astype(np.float32) @ columns.T
        return values.reshape(len(pixels), -1)[:, 1:]

    def normalized(self, raw: np.ndarray) -> np.ndarray:
        """(...,D) → (...,D) of length 1"""
        return _unit((_unit(raw) - self.mean) / self.scale)


def basis(start: float, length: float, frequencies: int) -> np.ndarray:
    """The orthonormal cosines of DCT-II on the window [start, start + length) of 64 pixels, (frequencies,64) float32.

    A pixel at the border is weighted by the fraction of it that is within the window.
    """
    pixel = np.arange(GRID)
    covered = np.clip(np.minimum(pixel + 1, start + length) - np.maximum(pixel, start), 0, 1)
    position = np.clip((pixel + 0.5 - start) / length, 0, 1)
    waves = covered * np.cos(np.pi * np.arange(frequencies)[:, None] * position) / length
    waves[1:] *= np.sqrt(2)
    return waves.astype(np.float32)


def _windows(size: float, count: int, frequencies: int) -> list[np.ndarray]:
    length = size * GRID
    return [basis(offset, length, frequencies) for offset in np.linspace(0, GRID - length, count)]


def _unit(values: np.ndarray) -> np.ndarray:
    return values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-6)


def _candidates(pixels: np.ndarray, progress: StageProgress | None) -> tuple[np.ndarray, np.ndarray]:
    """The pairs i < j in which a variant of one image (whole or cropped, mirrored or not) is similar to the other."""
    space = Space(pixels, COARSE)
    windows = _windows(WINDOW, COARSE_OFFSETS, COARSE)
    pairs = [(space.whole, space.whole), *((rows, columns) for rows in windows for columns in windows)]
    starts = range(0, len(pixels), BLOCK)
    whole = _stacked(space.normalized(space.raw(pixels[s : s + BLOCK], *pairs[0])) for s in starts)
    similar = _MostSimilar(len(pixels))
    for number, (rows, columns) in enumerate(pairs):
        for start in starts:
            if progress:
                progress("compares", number * len(pixels) + start, len(pairs) * len(pixels))
            raw = space.raw(pixels[start : start + BLOCK], rows, columns)
            for variant in (raw, raw * space.mirror):
                similar.add(torch.from_numpy(space.normalized(variant).astype(np.float32)), whole, start)
    similar.merge()
    if progress:
        progress("compares", len(pairs) * len(pixels), len(pairs) * len(pixels))
    if similar.limit > COARSE_LIMIT:
        log.warning("more than %s pairs of images are similar: only those with a similarity of %.3f or more are "
                    "compared again, so near copies may be missing", f"{MAX_CANDIDATES:,}", similar.limit)
    return np.divmod(similar.codes, len(pixels))


def _stacked(parts: Iterator[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(list(parts)).astype(np.float32))


class _MostSimilar:
    """The most similar pairs i < j of `count` images, as codes i * count + j.

    When there are more than `MAX_CANDIDATES` pairs, the least similar ones are dropped and the limit of the similarity
    rises. Added pairs are collected first, since merging those of a block takes as long as sorting all pairs.
    """

    def __init__(self, count: int):
        self.count, self.limit = count, COARSE_LIMIT
        self.codes, self.similarities = np.zeros(0, np.int64), np.zeros(0, np.float32)
        self.added, self.number_added = [], 0  # (codes, similarities) of each block

    def add(self, variants: torch.Tensor, whole: torch.Tensor, start: int) -> None:
        """Adds the pairs of variants (B,D) of the images from `start` on with the whole images (N,D)."""
        for other in range(0, len(whole), BLOCK):
            similar = variants @ whole[other : other + BLOCK].T
            i, j = (similar >= self.limit).nonzero(as_tuple=True)
            values, one, two = similar[i, j].numpy(), i.numpy() + start, j.numpy() + other
            apart = one != two
            codes = np.minimum(one, two) * self.count + np.maximum(one, two)
            if apart.any():
                self.added.append((codes[apart], values[apart]))
                self.number_added += len(self.added[-1][0])
            if self.number_added >= MAX_CANDIDATES:
                self.merge()

    def merge(self) -> None:
        """Merges the added pairs with the earlier ones."""
        codes, values = map(np.concatenate, zip((self.codes, self.similarities), *self.added, strict=True))
        self.added, self.number_added = [], 0
        self.codes, inverse = np.unique(codes, return_inverse=True)
        self.similarities = np.full(len(self.codes), -1, np.float32)
        np.maximum.at(self.similarities, inverse, values)
        if len(self.codes) > MAX_CANDIDATES:
            largest = np.sort(np.argpartition(self.similarities, -MAX_CANDIDATES)[-MAX_CANDIDATES:])
            self.codes, self.similarities = self.codes[largest], self.similarities[largest]
            self.limit = float(self.similarities.min())


def compare_windows(
    pixels: np.ndarray, rows: np.ndarray, columns: np.ndarray, space: Space, progress: StageProgress | None,
    sizes: Sequence[tuple[float, int]] = ((WINDOW, FINE_OFFSETS),),
) -> np.ndarray:
    """The highest similarity (P,) of each of P pairs: of the first image, whole or a window of it, to the whole second
    image.

    Args:
        rows, columns: (P,) indices of the first and of the second images.
        sizes: (share of each side, positions per side) of the windows.
    """
    stacks = [np.stack(_windows(size, count, FINE)) for size, count in sizes]  # (W,K,64) each
    best = np.full(len(rows), -1.0)
    for start in range(0, len(rows), 128):
        if progress:
            progress("verifies", start, len(rows))
        part = slice(start, start + 128)
        image = pixels[rows[part]].astype(np.float32)
        target = space.normalized(space.raw(pixels[columns[part]], space.whole, space.whole))
        for variants in (space.raw(image, space.whole, space.whole)[:, None], *(_cut(image, each) for each in stacks)):
            for each in (variants, variants * space.mirror):
                similarity = np.einsum("nvd,nd->nv", space.normalized(each), target).max(1)
                best[part] = np.maximum(best[part], similarity)
    if progress:
        progress("verifies", len(rows), len(rows))
    return best


def _cut(image: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """thumbnails (n,64,64), windows (W,K,64) of one axis -> frequencies of all windows (n,W*W,D), without the mean"""
    down = np.einsum("okh,nhw->nokw", windows, image, optimize=True)
    return np.einsum("nokw,xlw->noxkl", down, windows, optimize=True).reshape(len(image), -1, FINE * FINE)[..., 1:]


def describe_pairs(pairs: Sequence[NearCopy], limit: int = 10) -> str:
    """Lines for the terminal: how many pairs there are, and the first ones."""
    splits, classes = sum(p.across_splits for p in pairs), sum(p.across_classes for p in pairs)
    lines = [f"near copies: {number_of(len(pairs), 'pair')}, {splits} across splits, {classes} across classes"
             + (f", the first {limit}:" if len(pairs) > limit else "")]
    for pair in pairs[:limit]:
        ends = " = ".join(f"{split}: {printable(name)}" + (f" ({printable(label)})" if label else "")
                          for split, name, label in (pair.one, pair.other))
        way = "" if pair.found_by == PIXELS else f"  ({pair.found_by})"
        lines.append(f"  {pair.similarity:.3f}  {ends}{way}")
    return "\n".join(lines)
