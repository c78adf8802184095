"""`vit attention`: a saved model watched while it answers, and what it looked at as pictures or a page."""

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vit.inference import Predictor, forward
from vit.nn import AttentionPool, Mean, PatchEmbed, attention_maps
from vit.report.attention import image_picture, reading_picture, tokens_picture
from vit.report.attention_page import image_page, reading_page, tokens_page
from vit.report.maps import ImageMaps, TokenMaps, chosen_layers, recorded_layers
from vit.report.positions import positions_picture

ENDINGS = (".png", ".svg", ".pdf", ".html")
TextMaps = dict[str, TokenMaps]  # kinds of attention by name, the one that tells most first


def watch(predictor: Predictor, source: str | None, output: str | PathLike[str], layers: Sequence[int] = (),
          positions: bool = False) -> list[Path]:
    """Write what the model looks at in its answer to the source, and return the files.

    Args:
        source: an image's path. None where only the positions are wanted.
        output: the ending decides: .html for a page to browse, .png, .svg or .pdf for a picture.
        layers: numbers of the layers to show, from the end where negative; all by default.
        positions: also the similarity of position encodings, or only that where there is no source.

    Raises:
        ValueError: the model is no Vision Transformer of this house, or the output no kind of file it could be.
    """
    output = Path(output)
    if output.suffix not in ENDINGS:
        raise ValueError(f"{output} must end with {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    embed = getattr(predictor.model, "embed", None)
    if not isinstance(embed, PatchEmbed):
        raise ValueError(f"{predictor.bundle.path} is a model of kind {predictor.model.config.kind!r}, whose attention "
                         "cannot be seen here; take a vit_... model")
    written = []
    if source is not None:
        maps = watch_image(predictor, source)
        written.append(write_image(output, maps, layers, Path(source).name))
    if positions:
        place = output if source is None else output.with_name(f"{output.stem}-positions{output.suffix}")
        place = place.with_suffix(".png") if place.suffix == ".html" else place
        written.append(positions_picture(place, *position_table(predictor.model)))
    return written


def watch_image(predictor: Predictor, image: str | PathLike[str]) -> ImageMaps:
    """What an image classifier looks at.

    Raises:
        BadImage: the image cannot be read.
    """
    pixels, embed = predictor.preprocessing.image(image), predictor.model.embed  # (C,H,W) uint8
    with attention_maps(predictor.model) as recorded:
        forward(predictor.model, predictor.preprocessing, pixels[None], predictor.precision)
    pooled = how_pooled(predictor.model.pool, recorded)
    return ImageMaps(pixels.permute(1, 2, 0).numpy(), recorded_layers(recorded), embed.grid, first_names(embed), pooled)


def first_names(embed: PatchEmbed) -> list[str]:
    """The tokens before the patches."""
    named = [] if embed.cls_token is None else ["class token"]
    return named + [f"register {i}" for i in range(1, 1 + embed.prefix - len(named))]


def how_pooled(pool: nn.Module, recorded: dict[str, list[Tensor]]) -> str | np.ndarray:
    """ "class", "mean", or the weights that an attention pooling gave the patches."""
    if isinstance(pool, AttentionPool):
        return recorded["pool.attn"][-1][0].float().mean(dim=0)[0].cpu().numpy()  # (1,H,1,patches) -> (patches,)
    return "mean" if isinstance(pool, Mean) else "class"


def watch_text(model: nn.Module, ids: Tensor, tokens: Sequence[str], mask: Tensor | None = None) -> TextMaps:
    """What an encoder-only model looks at in one text: ids (1,N), a name per token."""
    with torch.inference_mode(), attention_maps(model) as recorded:
        model.encode(ids, mask)
    return {"text": TokenMaps(recorded_layers(recorded), tokens, tokens)}


def watch_writing(model: nn.Module, source: Tensor, source_mask: Tensor | None, target: Tensor,
                  source_tokens: Sequence[str], target_tokens: Sequence[str]) -> TextMaps:
    """What an encoder-decoder looks at while it writes one text: source (1,S) or (1,C,H,W), target ids (1,T).

    A row of the decoder is named after the token that it writes, not after the one that it reads: so the last thing
    looked at and the word that came of it stand together.

    Args:
        target_tokens: a name per target id, the beginning and the end of the text among them.
    """
    with torch.inference_mode(), attention_maps(model) as recorded:
        model(source, target[:, :-1], source_mask)
    read, said = list(target_tokens[:-1]), list(target_tokens[1:])
    kinds = {
        "target to source": (recorded_layers(recorded, "decoder", "cross_attn"), said, list(source_tokens)),
        "source": (recorded_layers(recorded, "encoder"), list(source_tokens), list(source_tokens)),
        "target": (recorded_layers(recorded, "decoder"), said, read),
    }
    return {name: TokenMaps(*maps) for name, maps in kinds.items()}


def write_image(output: Path, maps: ImageMaps, layers: Sequence[int] = (), heading: str = "Attention") -> Path:
    """A page, or a picture of the chosen layers; the rollout is always that of all."""
    shown = list(chosen_layers(maps.layers, layers))
    if output.suffix == ".html":
        return image_page(output, maps, shown, heading)
    return image_picture(output, maps, shown, heading)


def write_texts(output: Path, views: TextMaps, layers: Sequence[int] = (), heading: str = "Attention") -> list[Path]:
    """A page with all kinds of attention, or a picture for each; the first one has the plain name."""
    views = {name: replace(maps, layers=chosen_layers(maps.layers, layers)) for name, maps in views.items()}
    if output.suffix == ".html":
        return [tokens_page(output, views, heading)]
    places = [output, *(output.with_name(f"{output.stem}-{name.replace(' ', '-')}{output.suffix}")
                        for name in list(views)[1:])]
    return [tokens_picture(place, maps, f"{heading}: {name}" if len(views) > 1 else heading)
            for place, (name, maps) in zip(places, views.items(), strict=True)]


def write_reading(output: Path, image: np.ndarray, grid: tuple[int, int], prefix: int, views: TextMaps,
                  heading: str = "Attention") -> Path:
    """An image that became a text: uint8 (H,W,C), and what `watch_writing` saw."""
    cross = views["target to source"]
    cross = TokenMaps({name: weights[:, :, prefix:] for name, weights in cross.layers.items()}, cross.queries,
                      cross.keys[prefix:])
    if output.suffix == ".html":
        return reading_page(output, image, grid, cross, {"target": views["target"]}, heading)
    return reading_picture(output, image, cross, grid, heading)


def position_table(model: nn.Module) -> tuple[np.ndarray, tuple[int, ...]]:
    """Vectors of the positions (N,D) and their grid, without class token and registers.

    Rotary positions count as the cosines and sines that they turn by: the cosine between two such vectors is what the
    turning alone leaves of the product of two equal tokens.
    """
    table = getattr(model.embed, "pos_embed", None)
    if table is not None:
        table = table[0]
    elif model.encoder.rotary is not None:
        table = torch.cat(list(model.encoder.rotary.table), dim=-1)  # (2,N,K/2) -> (N,K)
    else:
        raise ValueError("the model has no position encodings; positions=learned, sincos or rotary would give it some")
    grid = getattr(model.embed, "grid", (len(table),))
    return table[len(table) - int(np.prod(grid)):].detach().float().cpu().numpy(), grid

