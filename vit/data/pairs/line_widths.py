"""The widths of line images, read from the headers of their files."""

import numpy as np

from vit.counters import permutation
from vit.data.decoding.decode import BadImage, open_image, upright_size
from vit.data.images.line_images import LinePreprocessing
from vit.data.pairs.source import PairSplit

USUAL_ASPECT = 16  # smallest limit of the ratio of width to height, so that later lines may be longer than in training
OUTLIER = 2.0  # times the 99th percentile


def line_size(split: PairSplit, i: int, preprocessing: LinePreprocessing) -> tuple[int, int]:
    """(width, height) of image i in pixels, upright; raises BadImage if it cannot be read."""
    location = split.location(i)
    if isinstance(location, np.ndarray):
        return location.shape[1], location.shape[0]
    with open_image(location, split.names[i], preprocessing.max_pixels) as image:
        # Pillow would decode a whole PNG to find EXIF after its pixels; those few PNGs get their size when decoded
        return upright_size(image, preprocessing.exif and (image.format != "PNG" or "exif" in image.info))


def fitting_width(split: PairSplit, preprocessing: LinePreprocessing, limit: int = 10_000) -> int:
    """A `max_width` at which the lines of a split are not squeezed, except those more than twice as long as 99 % of
    them; at least 16 times the height. Of larger splits, `limit` images are read.
    """
    rows = permutation(0, 0, len(split)).numpy()[:limit]
    widths = []
    for i in rows.tolist():
        try:
            widths.append(preprocessing.full_width(*line_size(split, i, preprocessing)))
        except BadImage:
            continue  # reported when the data set is built
    widest = min(max(widths), OUTLIER * float(np.percentile(widths, 99))) if widths else 0
    edge = preprocessing.patch_size[1]
    return -(-int(np.ceil(max(widest, USUAL_ASPECT * preprocessing.height))) // edge) * edge
