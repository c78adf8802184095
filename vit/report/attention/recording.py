"""Recording the attention of a saved model for one input."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from vit.data.images.preprocessing import ImageLike, Preprocessing
from vit.data.text.tokenizers import BOS, EOS, Tokenizer
from vit.generation.length_penalty import length_divisor
from vit.inference import MaskedTextPredictor, Predictor, Seq2SeqPredictor, TextPredictor, forward
from vit.inference.images import accept_size, autocast
from vit.nn import Attention, AttentionPool, ClassMean, Mean, PatchEmbed, ScorePool, attention_maps
from vit.report.attention.maps import ImageMaps, TokenMaps, recorded_layers
from vit.report.attention.similarity import Similarity, recorded_blocks, stack_similarities

AnyPredictor = Predictor | TextPredictor | Seq2SeqPredictor | MaskedTextPredictor
NamedMaps = dict[str, TokenMaps]  # kind of attention -> its maps; the first one is the main one


def has_attention(model: nn.Module) -> bool:
    """Whether a block has attention, which a pooling alone is not."""
    return any(isinstance(layer, Attention) for part in ("encoder", "decoder") if hasattr(model, part)
               for layer in getattr(model, part).modules())


def has_scores(model: nn.Module) -> bool:
    """Whether a block has attention, or the pooling scores the tokens of a text."""
    return has_attention(model) or isinstance(getattr(model, "pool", None), ScorePool)


def image_attention(predictor: Predictor, image: ImageLike, name: str = "", side: int = 480) -> ImageMaps:
    """Attention of an image classifier.

    Args:
        name: name of an image in memory, for errors.
        side: the image is shown at its own resolution up to this number of pixels.

    Raises:
        BadImage: the image cannot be read.
    """
    pixels = predictor.preprocessing.image(image, name)  # (C,H,W) uint8
    picture = predictor.preprocessing.preview(image, name, side)
    return image_maps(predictor.model, predictor.preprocessing, pixels, picture, predictor.precision)[0]


def image_maps(
    model: nn.Module, preprocessing: Preprocessing, pixels: Tensor, picture: np.ndarray, precision: str = "32-true"
) -> tuple[ImageMaps, Tensor]:
    """uint8 (C,H,W) -> the attention of an image classifier, and its logits (1,classes)

    Args:
        picture: uint8 (height,width,C), the pixels at any resolution, to be shown below the maps.
    """
    accept_size(model, preprocessing, pixels)
    with attention_maps(model) as recorded, pooled_tokens(model) as pooled:
        logits = forward(model, preprocessing, pixels[None], precision)
    grid, pooling = model.embed.size(pixels[None]), pooling_weights(model.pool, recorded, *pooled)
    return ImageMaps(picture, recorded_layers(recorded), grid, prefix_names(model.embed), pooling), logits


def prefix_names(embed: PatchEmbed) -> list[str]:
    """Names of the tokens before the patches."""
    tokens = {"class token": embed.cls_token, "distillation token": embed.dist_token}
    named = [name for name, token in tokens.items() if token is not None]
    return named + [f"register {i}" for i in range(1, 1 + embed.prefix - len(named))]


@contextmanager
def pooled_tokens(model: nn.Module) -> Iterator[list[Tensor | None]]:
    """Within the context, a forward pass of a classifier fills the list with the input of its pooling: tokens (B,N,D)
    and their mask (B,N) or None.
    """
    tokens: list[Tensor | None] = []
    handle = model.pool.register_forward_pre_hook(lambda _, inputs: tokens.__setitem__(slice(None), inputs))
    try:
        yield tokens
    finally:
        handle.remove()


def pooling_weights(
    pool: nn.Module, recorded: Mapping[str, Sequence[Tensor]], x: Tensor, mask: Tensor | None = None
) -> np.ndarray:
    """tokens (1,N,D) and their mask (1,N) -> the share (N,) of each one in the pooled vector

    Attention pooling is averaged over its heads; the class token is one half of a `ClassMean`.

    Args:
        recorded: what `vit.nn.attention_maps` recorded.
    """
    shares = torch.zeros(x.shape[1])
    if isinstance(pool, ScorePool):
        shares = pool.weights(x, mask)[0]
    elif isinstance(pool, AttentionPool):
        shares[pool.prefix :] = recorded["pool.attn"][-1][0].float().mean(dim=0)[0]  # (1,H,1,S) -> (S,)
    elif isinstance(pool, ClassMean):
        shares[pool.mean.prefix :] = 0.5 / (len(shares) - pool.mean.prefix)
        shares[0] += 0.5
    elif isinstance(pool, Mean):
        shares[pool.prefix :] = 1.0 if mask is None else mask[0, pool.prefix :].float()
        shares /= shares.sum()
    else:
        shares[0] = 1.0
    return shares.detach().cpu().numpy()


def text_attention(predictor: TextPredictor, texts: Sequence[str]) -> TokenMaps:
    """Attention of a text classifier for one text, or for the two texts of a pair.

    Raises:
        BadText: a text is longer than the model's limit.
    """
    batch = predictor.batch(tuple(texts), "the text")
    with torch.inference_mode(), autocast(predictor.device, predictor.precision):
        return text_maps(predictor.model, predictor.tokenizer, batch)[0]


def text_maps(model: nn.Module, tokenizer: Tokenizer, batch: Mapping[str, Tensor]) -> tuple[TokenMaps, Tensor]:
    """A batch of one text, as from `TextInputs.batch` -> the attention of a text classifier, and its logits (1,classes)
    """
    with attention_maps(model) as recorded, pooled_tokens(model) as pooled:
        logits = model(batch["source"], batch["source_mask"], batch["segment"])
    tokens, pooling = tokenizer.tokens(batch["source"][0].tolist()), pooling_weights(model.pool, recorded, *pooled)
    return TokenMaps(recorded_layers(recorded), tokens, tokens, pooling), logits.float()


def masked_text_attention(predictor: MaskedTextPredictor, text: str) -> TokenMaps:
    """Attention of a masked language model; a tab separates the two texts of a pair, masks are not necessary.

    Raises:
        BadText: the text is longer than the model's limit.
    """
    encoded = predictor.encode(text)
    with torch.inference_mode(), attention_maps(predictor.model) as recorded:
        predictor.model(*predictor.batch([encoded]))
    tokens = predictor.tokenizer.tokens(encoded.ids)
    return TokenMaps(recorded_layers(recorded), tokens, tokens)


def token_similarity(predictor: AnyPredictor, source: str) -> dict[str, Similarity]:
    """How similar tokens are after each block, and to what they were before it: of the encoder, and of the decoder for
    its generated text. The source is a text or the path of an image.

    Raises:
        BadImage: the image cannot be read.
        BadText: the text is longer than the model's limit.
    """
    with recorded_blocks(predictor.model) as recorded:
        if isinstance(predictor, Seq2SeqPredictor):
            seq2seq_attention(predictor, source)
        elif isinstance(predictor, MaskedTextPredictor):
            masked_text_attention(predictor, source)
        elif isinstance(predictor, TextPredictor):
            text_attention(predictor, source.split("\t"))
        else:
            image_attention(predictor, source)
    return stack_similarities(recorded)


@dataclass(frozen=True)
class Seq2SeqAttention:
    """A generated text with its attention; for an image source also the pixels (H,W,C) and the patch grid.

    Args:
        probability: probability of the text, eos included; None if its score is combined with a CTC score.
        prefix: number of tokens before the patches.
    """

    text: str
    maps: NamedMaps
    probability: float | None = None
    image: np.ndarray | None = None
    grid: tuple[int, int] = (0, 0)
    prefix: int = 0

    def cross(self) -> "Seq2SeqAttention":
        """The cross-attention alone."""
        return replace(self, maps={name: maps for name, maps in self.maps.items() if name == "target to source"})


def seq2seq_attention(predictor: Seq2SeqPredictor, source: str) -> Seq2SeqAttention:
    """Attention of an encoder-decoder for its best generated text; the source is a text or the path of an image.

    Raises:
        BadImage: the image cannot be read.
        BadText: the text is longer than the model's limit.
    """
    encoded = predictor.encode(source, source if predictor.is_image_to_text else "the text")
    inputs, mask = (x.to(predictor.device) for x in predictor.collate([encoded]))
    best, settings = predictor.generate(inputs, mask)[0][0], predictor.settings
    length = len(best.ids) - len(settings.prefix) + best.ended
    divisor = length_divisor(length, settings.length_penalty, settings.length_penalty_form)
    probability = None if settings.ctc else math.exp(best.score * divisor)
    target = [BOS, *best.ids, *([EOS] if best.ended else [])]
    sources = None if predictor.is_image_to_text else predictor.bundle.tokenizers["source"]
    attention = pair_attention(predictor.model, inputs, mask, torch.tensor([target], device=predictor.device), encoded,
                               predictor.tokenizer.decode(best.ids), sources, predictor.tokenizer)
    return replace(attention, probability=probability)


def pair_attention(
    model: nn.Module, source: Tensor, source_mask: Tensor | None, target: Tensor, encoded: Tensor, text: str,
    source_tokenizer: Tokenizer | None, target_tokenizer: Tokenizer,
) -> Seq2SeqAttention:
    """Attention of an encoder-decoder for a given target: source (1,S) or (1,C,H,W), mask (1,S), target ids (1,T).

    Args:
        encoded: the source as it was read: ids (S,), or uint8 pixels (C,H,W).
        text: the text of the result.
        source_tokenizer: None for images of text.
    """
    names, embed = target_tokenizer.tokens(target[0].tolist()), model.embed
    if not isinstance(embed, PatchEmbed):
        source_names = source_tokenizer.tokens(encoded.tolist())
        return Seq2SeqAttention(text, teacher_forced_attention(model, source, source_mask, target, source_names, names))
    rows, columns = embed.size(source)
    source_names = [*prefix_names(embed), *(f"row {i}, column {j}" for i in range(rows) for j in range(columns))]
    maps = teacher_forced_attention(model, source, source_mask, target, source_names, names)
    pixels = encoded.permute(1, 2, 0).numpy()
    return Seq2SeqAttention(text, maps, image=pixels, grid=(rows, columns), prefix=embed.prefix)


def teacher_forced_attention(
    model: nn.Module, source: Tensor, source_mask: Tensor | None, target: Tensor, source_tokens: Sequence[str],
    target_tokens: Sequence[str],
) -> NamedMaps:
    """Attention of an encoder-decoder for one given text: source (1,S) or (1,C,H,W), mask (1,S), target ids (1,T).

    A row of the decoder is named after the token that it predicts, not after its input token.

    Args:
        target_tokens: a name per target id, BOS and EOS included.
    """
    with torch.no_grad(), attention_maps(model) as recorded:
        model(source, target[:, :-1], source_mask)
    inputs, predicted = list(target_tokens[:-1]), list(target_tokens[1:])
    kinds = {
        "target to source": (recorded_layers(recorded, "decoder", "cross_attn"), predicted, list(source_tokens)),
        "source": (recorded_layers(recorded, "encoder"), list(source_tokens), list(source_tokens)),
        "target": (recorded_layers(recorded, "decoder"), predicted, inputs),
    }
    return {name: TokenMaps(*maps, is_cross=name == "target to source") for name, maps in kinds.items()
            if maps[0]}  # other layers have no maps


def position_vectors(model: nn.Module) -> tuple[np.ndarray, tuple[int, ...]]:
    """Vectors of the positions (N,D) and their grid, without class token and registers.

    A rotary embedding (arXiv 2104.09864) is represented by the cosines and sines of its angles: the cosine between two
    such vectors is the factor by which the rotation scales the dot product of two equal tokens, averaged over blocks
    and heads if each has its own angles.

    Raises:
        ValueError: the model has no position embedding.
    """
    table = getattr(model.embed, "pos_embed", None)
    if table is not None:
        table = table[0]
    elif model.encoder.rotary is not None:
        angles = model.encoder.rotary()
        parts = [part for each in (angles if isinstance(angles, tuple) else [angles]) for part in (each.cos, each.sin)]
        table = torch.cat([part.movedim(-2, 0).flatten(1) for part in parts], dim=1)  # (N,K) or (H,N,K) -> (N,...)
    else:
        raise ValueError("the model has no position embedding; train one with model.positions=learned, sincos or "
                         "rotary")
    grid = getattr(model.embed, "grid", (len(table),))
    return table[len(table) - int(np.prod(grid)):].detach().float().cpu().numpy(), grid
