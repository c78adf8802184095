"""Attention to browse: one HTML file with everything in it, to choose layer, head and who looks."""

import base64
import io
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vit.files.strict_json import json_text
from vit.report.maps import ImageMaps, TokenMaps

TEMPLATE = Path(__file__).with_name("attention_page.html")


def tokens_page(path: str | PathLike[str], views: Mapping[str, TokenMaps], heading: str = "Attention") -> Path:
    """Texts: several kinds of attention by name, such as "encoder" and "translation to source"."""
    return _write(path, heading, [{"name": name, **_view(maps)} for name, maps in views.items()])


def image_page(path: str | PathLike[str], maps: ImageMaps, shown: Sequence[str] | None = None,
               heading: str = "Attention") -> Path:
    """An image: how the answer, the class token and every patch look at the patches, in each layer and by rollout.

    Args:
        shown: names of the layers to show, all by default.
    """
    view = {"name": "image", **_view(image_tokens(maps, shown)), "grid": maps.grid, "patches": 1 + len(maps.first)}
    return _write(path, heading, [view], maps.image)


def reading_page(path: str | PathLike[str], image: np.ndarray, grid: tuple[int, int], cross: TokenMaps,
                 others: Mapping[str, TokenMaps], heading: str = "Attention") -> Path:
    """An image that became a text: where each token was read, beside other kinds of attention between tokens.

    Args:
        cross: the tokens' weights over the patches alone.
    """
    views = [{"name": "text to image", **_view(cross), "grid": grid}]
    views += [{"name": name, **_view(maps)} for name, maps in others.items()]
    return _write(path, heading, views, image)


def image_tokens(maps: ImageMaps, shown: Sequence[str] | None = None) -> TokenMaps:
    """Rows for the answer and for every token, columns for the patches, and the rollout as one more layer."""
    rows, columns = maps.grid
    patches = [f"row {i}, column {j}" for i in range(rows) for j in range(columns)]
    answers = {name: heads.reshape(len(heads), 1, -1) for name, heads in maps.answers().items()}
    layers = {name: np.concatenate([answers[name], weights[:, :, len(maps.first):]], axis=1)
              for name, weights in maps.layers.items() if shown is None or name in shown}
    flow = np.concatenate([maps.rollout().reshape(1, -1), maps.flow()[:, len(maps.first):]])
    return TokenMaps({**layers, "rollout": flow[None]}, ["answer", *maps.first, *patches], patches)


def _view(maps: TokenMaps) -> dict[str, Any]:
    layers = [{"name": name, "heads": len(weights), **pack(weights)} for name, weights in maps.layers.items()]
    return {"queries": list(maps.queries), "keys": list(maps.keys), "layers": layers, "grid": None, "patches": -1}


def pack(weights: np.ndarray) -> dict[str, Any]:
    """Weights (H,N,S) as one byte each, 255 being the largest of its row, and the largest ones (H*N,)."""
    tops = weights.max(axis=-1)
    parts = np.round(255 * weights / np.maximum(tops, 1e-30)[..., None]).astype(np.uint8)
    return {"weights": base64.b64encode(parts.tobytes()).decode(),
            "tops": [float(f"{top:.4g}") for top in tops.ravel().tolist()]}


def _write(path: str | PathLike[str], heading: str, views: list[dict[str, Any]],
           image: np.ndarray | None = None) -> Path:
    data = json_text({"heading": heading, "views": views, "image": None if image is None else _picture(image)}, None)
    data = data.replace("<", "\\u003c")  # a token may be called </script>
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TEMPLATE.read_text(encoding="utf-8").replace("DATA", data, 1), encoding="utf-8")
    return path


def _picture(image: np.ndarray) -> str:
    """uint8 (H,W,C) -> the address of a PNG that is its own content"""
    stream = io.BytesIO()
    Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).save(stream, "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
