"""Attention as one self-contained HTML file with a choice of layer, head and query token."""

import base64
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from vit.files.outputs import write_output
from vit.files.strict_json import json_text
from vit.report.attention.maps import ImageMaps, TokenMaps
from vit.report.pages.embedded import png_url

TEMPLATE = Path(__file__).with_name("page.html")


def tokens_page(path: str | PathLike[str], kinds: Mapping[str, TokenMaps], heading: str = "Attention") -> Path:
    """A page for texts: several kinds of attention by name, such as "encoder" and "translation to source"."""
    return _write_page(path, heading, [{"name": name, **_panel(maps)} for name, maps in kinds.items()])


def image_page(path: str | PathLike[str], maps: ImageMaps, shown: Sequence[str] | None = None,
               heading: str = "Attention") -> Path:
    """A page for an image: attention of the pooled output and of each token to the patches, per layer and by rollout.

    Args:
        shown: names of the layers to show, all by default.
    """
    panel = {"name": "image", **_panel(image_tokens(maps, shown)), "grid": maps.grid, "patches": 1 + len(maps.prefix)}
    return _write_page(path, heading, [panel], maps.image)


def image_to_text_page(path: str | PathLike[str], image: np.ndarray, grid: tuple[int, int], cross: TokenMaps,
                       others: Mapping[str, TokenMaps], heading: str = "Attention") -> Path:
    """A page for image-to-text: the cross-attention of each token on the image, and other attention between tokens.

    Args:
        cross: attention of the tokens to the patches alone.
    """
    panels = [{"name": "text to image", **_panel(cross), "grid": grid}]
    panels += [{"name": name, **_panel(maps)} for name, maps in others.items()]
    return _write_page(path, heading, panels, image)


def image_tokens(maps: ImageMaps, shown: Sequence[str] | None = None) -> TokenMaps:
    """Rows for the pooled output and each token, columns for the patches; the rollout is an additional layer."""
    rows, columns = maps.grid
    patches = [f"row {i}, column {j}" for i in range(rows) for j in range(columns)]
    pooled = {name: heads.reshape(len(heads), 1, -1) for name, heads in maps.pooled_layers().items()}
    layers = {name: np.concatenate([pooled[name], weights[:, :, len(maps.prefix):]], axis=1)
              for name, weights in maps.layers.items() if shown is None or name in shown}
    rollout = np.concatenate([maps.pooled_rollout().reshape(1, -1), maps.rollout()[:, len(maps.prefix):]])
    return TokenMaps({**layers, "rollout": rollout[None]}, ["pooled output", *maps.prefix, *patches], patches)


def _panel(maps: TokenMaps) -> dict[str, Any]:
    layers = [{"name": name, "heads": len(weights), **pack(weights)} for name, weights in maps.layers.items()]
    return {"queries": list(maps.queries), "keys": list(maps.keys), "layers": layers, "grid": None, "patches": -1}


def pack(weights: np.ndarray) -> dict[str, Any]:
    """Weights (H,N,S) as one byte each, scaled so that 255 is the row's maximum, and these maxima (H*N,)."""
    tops = weights.max(axis=-1)
    parts = np.round(255 * weights / np.maximum(tops, 1e-30)[..., None]).astype(np.uint8)
    return {"weights": base64.b64encode(parts.tobytes()).decode(),
            "tops": [float(f"{top:.4g}") for top in tops.ravel().tolist()]}


def _write_page(path: str | PathLike[str], heading: str, panels: list[dict[str, Any]],
                image: np.ndarray | None = None) -> Path:
    encoded = None if image is None else png_url(image)
    data = json_text({"heading": heading, "panels": panels, "image": encoded}, None)
    data = data.replace("<", "\\u003c")  # a token may be </script>
    path = Path(path)
    write_output(path, TEMPLATE.read_text(encoding="utf-8").replace("DATA", data, 1).encode())
    return path
