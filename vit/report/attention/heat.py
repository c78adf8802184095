"""Heat maps over images as small pictures, drawn without matplotlib."""

import numpy as np
from PIL import Image

STOPS = (0.0, 0.5, 1.0)  # positions of the colours, relative to the maximum of the map
COLOURS = np.array([[217, 98, 43, 0.0], [217, 98, 43, 0.55], [255, 224, 77, 0.9]])  # RGB and opacity
SIDE = 160  # a small image is enlarged so that its longer side has about as many pixels


def heat_picture(image: np.ndarray, values: np.ndarray) -> np.ndarray:
    """uint8 (height,width,C) darkened under a heat map (rows,columns) -> uint8 (height,width,3), each value over its
    patch; small images are enlarged
    """
    scale = _scale(image)
    grey = np.repeat(np.repeat(image.astype(np.float64).mean(axis=-1), scale, 0), scale, 1) * 0.6
    relative = values / max(float(values.max()), 1e-12)
    colours = np.stack([np.interp(relative, STOPS, COLOURS[:, i]) for i in range(4)], axis=-1)
    height, width = grey.shape
    rows, columns = (np.arange(size) * cells // size for size, cells in zip((height, width), values.shape, strict=True))
    heat = colours[rows][:, columns]
    mixed = grey[..., None] * (1 - heat[..., 3:]) + heat[..., :3] * heat[..., 3:]
    return mixed.round().clip(0, 255).astype(np.uint8)


def enlarged(image: np.ndarray) -> Image.Image:
    """uint8 (height,width,C), enlarged without interpolation if it is small."""
    shown = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
    return shown.resize((shown.width * _scale(image), shown.height * _scale(image)), Image.Resampling.NEAREST)


def _scale(image: np.ndarray) -> int:
    return max(1, round(SIDE / max(image.shape[:2])))
