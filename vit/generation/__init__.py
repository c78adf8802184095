"""Text generation with encoder-decoder models: greedy search, beam search, sampling, forced decoding, ensembles and
test-time augmentation.

Inputs and outputs are ids; tokenizers are not involved. A model is any module with `start` and `advance` as in
`vit.models.EncoderDecoder`; the logits that it returns are overwritten. Letters in shapes are those of `vit.nn`, and W
is the number of beams per row.
"""

from vit.generation.forced_decoding import score_targets
from vit.generation.generate import generate
from vit.generation.hypotheses import Hypothesis
from vit.generation.native import BuildError, Compiled, Unsupported
from vit.generation.search_tree import SearchTree
from vit.generation.settings import Generation
from vit.generation.uncached import Uncached
from vit.generation.utf8 import Utf8

__all__ = [
    "BuildError", "Compiled", "Generation", "Hypothesis", "SearchTree", "Uncached", "Unsupported", "Utf8", "generate",
    "score_targets",
]
