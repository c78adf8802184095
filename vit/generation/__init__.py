"""First floor: an encoder-decoder writes. Greedy and beam search, sampling, ensembles and views of images; nothing is
computed twice.

Nothing here knows a tokenizer: ids come and ids go. A model is anything with `start` and `advance`, as
`vit.models.EncoderDecoder` has them; the logits that it gives are overwritten. Letters in shapes as in `vit.nn`, and W
lines: the beams of one row.
"""

from vit.generation.generate import generate
from vit.generation.settings import Generation, Hypothesis
from vit.generation.uncached import Uncached

__all__ = ["Generation", "Hypothesis", "Uncached", "generate"]
