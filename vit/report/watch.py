"""`vit attention`: a saved model watched while it answers, and what it looked at as pictures or a page."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vit.data import TextInputs
from vit.data.text.tokenizers import BOS, EOS
from vit.inference import Predictor, TextPredictor, Writer, forward
from vit.nn import AttentionPool, Mean, PatchEmbed, attention_maps
from vit.report.attention import image_picture, reading_picture, tokens_picture
from vit.report.attention_page import image_page, reading_page, tokens_page
from vit.report.maps import ImageMaps, TokenMaps, chosen_layers, recorded_layers
from vit.report.positions import positions_picture

ENDINGS = (".png", ".svg", ".pdf", ".html")
TextMaps = dict[str, TokenMaps]  # kinds of attention by name, the one that tells most first


def watch(answering: Predictor | TextPredictor | Writer, source: str | None, output: str | PathLike[str],
          layers: Sequence[int] = (), positions: bool = False) -> list[Path]:
    """Write what the model looks at in its answer to the source, and return the files.

    Args:
        source: an image's path or a text, as the model takes them. None where only the positions are wanted.
        output: the ending decides: .html for a page to browse, .png, .svg or .pdf for pictures.
        layers: numbers of the layers to show, from the end where negative; all by default.
        positions: also the similarity of position encodings, or only that where there is no source.

    Raises:
        ValueError: the model is none of this house, or the output no kind of file it could be.
    """
    output = Path(output)
    if output.suffix not in ENDINGS:
        raise ValueError(f"{output} must end with {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    if not hasattr(answering.model, "embed"):
        raise ValueError(f"{answering.bundle.path} is a model of kind {answering.model.config.kind!r}, whose attention "
                         "cannot be seen here; take a vit_... model")
    written = [] if source is None else write_seen(answering, source, output, layers)
    if positions:
        place = output if source is None else output.with_name(f"{output.stem}-positions{output.suffix}")
        place = place.with_suffix(".png") if place.suffix == ".html" else place
        written.append(positions_picture(place, *position_table(answering.model)))
    return written


def write_seen(answering: Predictor | TextPredictor | Writer, source: str, output: Path,
               layers: Sequence[int]) -> list[Path]:
    """What a model of any kind looks at, in its own way."""
    if isinstance(answering, Writer):
        seen = watch_writer(answering, source)
        if seen.image is not None:
            return [write_reading(output, seen, layers, f"{Path(source).name}: {seen.text}")]
        return write_texts(output, seen.views, layers, seen.text)
    if isinstance(answering, TextPredictor):
        return write_texts(output, {"text": watch_text(answering, source)}, layers, source)
    return [write_image(output, watch_image(answering, source), layers, Path(source).name)]


def watch_image(predictor: Predictor, image: str | PathLike[str]) -> ImageMaps:
    """What an image classifier looks at.

    Raises:
        BadImage: the image cannot be read.
    """
    pixels, embed = predictor.preprocessing.image(image), predictor.model.embed  # (C,H,W) uint8
    with attention_maps(predictor.model) as recorded:
        forward(predictor.model, predictor.preprocessing, pixels[None], predictor.precision)
    pooled = how_pooled(predictor.model.pool, recorded)
    shown = predictor.preprocessing.preview(image)
    return ImageMaps(shown, recorded_layers(recorded), embed.grid, first_names(embed), pooled)


def first_names(embed: PatchEmbed) -> list[str]:
    """The tokens before the patches."""
    tokens = {"class token": embed.cls_token, "distillation token": embed.dist_token}
    named = [name for name, token in tokens.items() if token is not None]
    return named + [f"register {i}" for i in range(1, 1 + embed.prefix - len(named))]


def how_pooled(pool: nn.Module, recorded: dict[str, list[Tensor]]) -> str | np.ndarray:
    """ "class", "mean", or the weights that an attention pooling gave the patches."""
    if isinstance(pool, AttentionPool):
        return recorded["pool.attn"][-1][0].float().mean(dim=0)[0].cpu().numpy()  # (1,H,1,patches) -> (patches,)
    return "mean" if isinstance(pool, Mean) else "class"


def watch_text(predictor: TextPredictor, text: str) -> TokenMaps:
    """What a text classifier looks at; the two texts of a pair have a tab between them."""
    texts = tuple(text.split("\t"))
    with attention_maps(predictor.model) as recorded:
        predictor.logits([texts], ["the text"])
    inputs = TextInputs(predictor.tokenizer, [[each] for each in texts], predictor.model.config.max_len)
    tokens = predictor.tokenizer.tokens(inputs.batch(np.arange(1))["source"][0].tolist())
    return TokenMaps(recorded_layers(recorded), tokens, tokens)


@dataclass(frozen=True)
class Seen:
    """A text with what was looked at for it; of an image that was read also its pixels (H,W,C) and grid of patches."""

    text: str
    views: TextMaps
    image: np.ndarray | None = None
    grid: tuple[int, int] = (0, 0)
    prefix: int = 0


def watch_writer(writer: Writer, source: str) -> Seen:
    """What a model looks at while it writes its best text for a line, or for the image at a path."""
    ready = writer.ready(source, source if writer.reads_images else "the text")
    inputs, mask = (x.to(writer.device) for x in writer.collated([ready]))
    best = writer.generate(inputs, mask)[0][0]
    target = [BOS, *best.ids, *([EOS] if best.ended else [])]
    text, names = writer.tokenizer.decode(best.ids), writer.tokenizer.tokens(target)
    embed, ids = writer.model.embed, torch.tensor([target], device=writer.device)
    if not isinstance(embed, PatchEmbed):
        read = writer.bundle.tokenizers["source"].tokens(ready.tolist())
        return Seen(text, watch_writing(writer.model, inputs, mask, ids, read, names))
    rows, columns = embed.size(inputs)
    read = [*first_names(embed), *(f"row {i}, column {j}" for i in range(rows) for j in range(columns))]
    views = watch_writing(writer.model, inputs, mask, ids, read, names)
    return Seen(text, views, ready.permute(1, 2, 0).numpy(), (rows, columns), embed.prefix)


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


def write_reading(output: Path, seen: Seen, layers: Sequence[int] = (), heading: str = "Attention") -> Path:
    """An image that became a text: a page, or for each token the mean over layers and heads."""
    cross = seen.views["target to source"]
    chosen = chosen_layers(cross.layers, layers).items()
    cross = TokenMaps({name: weights[:, :, seen.prefix :] for name, weights in chosen}, cross.queries,
                      cross.keys[seen.prefix :])
    if output.suffix == ".html":
        own = seen.views["target"]
        own = replace(own, layers=chosen_layers(own.layers, layers))
        return reading_page(output, seen.image, seen.grid, cross, {"target": own}, heading)
    return reading_picture(output, seen.image, cross, seen.grid, heading)


def position_table(model: nn.Module) -> tuple[np.ndarray, tuple[int, ...]]:
    """Vectors of the positions (N,D) and their grid, without class token and registers.

    Rotary positions count as the cosines and sines that they turn by: the cosine between two such vectors is what the
    turning alone leaves of the product of two equal tokens, in the mean over blocks and heads where each has its own.
    """
    table = getattr(model.embed, "pos_embed", None)
    if table is not None:
        table = table[0]
    elif model.encoder.rotary is not None:
        turns = model.encoder.rotary()
        parts = [part for turn in (turns if isinstance(turns, tuple) else [turns]) for part in (turn.cos, turn.sin)]
        table = torch.cat([part.movedim(-2, 0).flatten(1) for part in parts], dim=1)  # (N,K) or (H,N,K) -> (N,...)
    else:
        raise ValueError("the model has no position encodings; positions=learned, sincos or rotary would give it some")
    grid = getattr(model.embed, "grid", (len(table),))
    return table[len(table) - int(np.prod(grid)):].detach().float().cpu().numpy(), grid

