"""The part of the preprocessing of an image that is the same in every epoch, and whose result a cache stores.

Without a random crop this is the whole preprocessing. With one, the image is shrunk until a crop of average area has
the size of the model's input, so larger crops lose no pixels and smaller ones are enlarged. Random crops of shrunk
images differ from those of full-size images, therefore shrinking is part of the config, whether its result is in a
cache or not.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image

from vit.data.augment.random_crop import RandomResizedCrop, Sizing
from vit.data.images.preprocessing import Preprocessing
from vit.data.images.resampling import resize_box
from vit.data.splits.split import Split, read_sample

VERSION = 1  # increase it when the pixels change


@dataclass(frozen=True)
class Prepared:
    """`prepared(i)` → the pixels (H,W,C) uint8 of sample i before its random crop, or its final ones without `sizing`.

    `side` is the shorter side of shrunk images in pixels; "auto" follows the rule of this module.
    """

    split: Split
    preprocessing: Preprocessing
    sizing: Sizing | None
    side: int | str = "auto"
    decoder: str = "auto"
    resampling: str = "torch"

    def __len__(self) -> int:
        return len(self.split)

    def __call__(self, i: int) -> np.ndarray:
        """Raises BadImage if the image cannot be read."""
        name = self.split.names[i]
        raw = read_sample(self.split, i)
        if self.sizing is None:
            return np.ascontiguousarray(self.preprocessing.image(raw, name).permute(1, 2, 0).numpy())
        pixels = np.atleast_3d(self.preprocessing.pixels(raw, name, self._scale, self.decoder))
        height, width = pixels.shape[:2]
        scale = self._scale(width, height)
        if scale >= 1:
            return pixels
        size = max(1, round(height * scale)), max(1, round(width * scale))
        shrunk = resize_box(pixels, (0, 0, width, height), size, self.preprocessing.interpolation, self.resampling)
        return np.ascontiguousarray(shrunk.permute(1, 2, 0).numpy())

    @cached_property
    def min_size(self) -> tuple[int, int]:
        """The smallest (height, width) of a shrunk image."""
        height, width = self.preprocessing.size
        if self.side != "auto":
            factor = self.side / min(height, width)
        else:
            area = sum(self.sizing.scale) / 2 if isinstance(self.sizing, RandomResizedCrop) else 1.0
            factor = 1 / math.sqrt(area)
        return math.ceil(height * factor), math.ceil(width * factor)

    def identity(self) -> dict[str, Any]:
        """All that determines the pixels besides the images themselves."""
        values = {key: value for key, value in self.preprocessing.to_dict().items() if key not in ("mean", "std")}
        crop = None if self.sizing is None else {"least": self.min_size, "resampling": self.resampling}
        versions = {"version": VERSION, "pillow": Image.__version__, "torch": torch.__version__}
        return {**versions, "preprocessing": values, "crop": crop}

    def _scale(self, width: int, height: int) -> float:
        min_height, min_width = self.min_size
        return max(min_height / height, min_width / width)
