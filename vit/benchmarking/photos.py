"""Synthetic photos, for measurements without a data set."""

from pathlib import Path

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 400, 534  # the mean size of photos in clothing_small
CLASSES = 4


def make_photos(root: Path, count: int = 200) -> Path:
    """JPEGs of noise at several scales, with smooth and rough regions as in photos: `root/class_0/0.jpg`, ..."""
    random = np.random.default_rng(0)
    for i in range(count):
        sizes = [(HEIGHT >> shift, WIDTH >> shift, 3) for shift in (7, 5, 3, 1)]
        layers = [enlarged(random.normal(0, 30 / 2**level, size)) for level, size in enumerate(sizes)]
        picture = Image.fromarray(np.clip(sum(layers) + 128, 0, 255).astype(np.uint8))
        path = root / f"class_{i % CLASSES}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, quality=90)
    return root


def enlarged(noise: np.ndarray) -> np.ndarray:
    channels = [Image.fromarray(noise[..., c].astype(np.float32)) for c in range(3)]
    return np.stack([c.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC) for c in channels], axis=-1)
