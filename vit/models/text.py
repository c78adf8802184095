"""Classification of texts and of text pairs, with the same `Classifier` as for images."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from vit import nn as parts
from vit.models.build import build_head, build_norm, build_text_embed, build_text_encoder
from vit.models.classifier import Classifier
from vit.models.config import TextConfig
from vit.nn.init import init_weights


@dataclass(frozen=True, kw_only=True)
class TextClassifierConfig(TextConfig):
    """Configuration of a `TextClassifier`: JSON-serializable and validated.

    Args:
        num_classes: 0 for no head.
        pool: the first token ("class"), the first token after BERT's dense layer and tanh ("pooler"), "mean" or "sum"
            of the tokens that are not padding, or their mean weighted by learned scores ("attention").
        pool_hidden: inner width of the scores of attention pooling; 0 for linear scores.

    Raises:
        ValueError: a value is out of range, or values do not fit together.
    """

    kind: ClassVar[str] = "text_classifier"
    choices: ClassVar = {**TextConfig.choices, "pool": ("class", "pooler", "mean", "sum", "attention")}

    num_classes: int
    pool: str = "class"
    pool_hidden: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pool_hidden < 0:
            raise ValueError(f"pool_hidden is {self.pool_hidden}, but must not be negative; 0 for linear scores")


class TextClassifier(Classifier):
    """A text classifier: ids, mask and segments (B,N) -> logits (B,classes)."""

    def __init__(self, config: TextClassifierConfig) -> None:
        super().__init__(build_text_embed(config), build_text_encoder(config), build_pool(config), build_head(config))
        self.config = config
        init_weights(self, config.init_std, config.token_std, config.position_std)


def build_pool(config: TextClassifierConfig) -> nn.Module:
    """The pooling module; sum pooling is followed by a norm, because the sum grows with the length of the text."""
    if config.pool == "pooler":
        return parts.Pooler(config.dim, config.dropout)
    if config.pool == "attention":
        return parts.ScorePool(config.dim, config.pool_hidden)
    pools = {"class": parts.ClassToken, "mean": parts.Mean, "sum": parts.Sum}
    return pools[config.pool](norm=build_norm(config)(config.dim) if config.pool == "sum" else None)
