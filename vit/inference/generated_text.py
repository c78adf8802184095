"""Generated texts with their scores, and the tree of their search."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vit.generation import SearchTree
from vit.messages import agree, number_of


@dataclass(frozen=True)
class GeneratedText:
    """The generated texts for one source, best first, with their scores.

    Texts may be equal, since byte pairs can divide a text into tokens in several ways, and samples may be equal.

    Args:
        ended: whether each text has ended; False for one that was cut at the maximum length.
    """

    source: str
    texts: tuple[str, ...]
    scores: tuple[float, ...]
    ended: tuple[bool, ...] = ()

    @property
    def text(self) -> str:
        return self.texts[0]

    @property
    def score(self) -> float:
        return self.scores[0]

    @property
    def certainty(self) -> float:
        """exp(score): with the default length penalty of 1, the geometric mean of the token probabilities."""
        return math.exp(self.score)

    @property
    def is_cut(self) -> bool:
        """Whether the best text was cut at the maximum length."""
        return bool(self.ended) and not self.ended[0]


@dataclass(frozen=True)
class ScoredText:
    """A given text for one source, with its probability under the model.

    Args:
        score: as that of a generated text: the log-probability divided by the length penalty.
        tokens: the text of each token, `<eos>` included.
        log_probs: natural logarithm of the probability of each token.
    """

    source: str
    text: str
    score: float
    tokens: tuple[str, ...]
    log_probs: tuple[float, ...]

    @property
    def log_prob(self) -> float:
        """The log-probability of the text, in nats."""
        return sum(self.log_probs)


def cut_texts_message(names: Sequence[str], count: int, longest: int) -> str:
    """A message about the texts, out of `count`, that were cut at `longest` tokens; `names` are those of their sources.
    """
    return (f"{len(names)} of {number_of(count, 'generated text')} did not end within the maximum length of "
            f"{number_of(longest, 'token')} and {agree(len(names), 'is', 'are')} cut, such as that of {names[0]}")


@dataclass(frozen=True)
class RecordedSearch:
    """The generated texts for one source with the tree of their search.

    Args:
        tokens: text of the last token of each node of the tree, empty for the root.
        nodes: the node of each generated text, best first; None if the search has not found it.
    """

    generated: GeneratedText
    tree: SearchTree
    tokens: Sequence[str]
    nodes: Sequence[int | None]

    @property
    def chosen(self) -> frozenset[int]:
        """Indices of the nodes on the path to the best text; empty if the search has not found it."""
        return frozenset() if self.nodes[0] is None else frozenset([0, *self.tree.path(self.nodes[0])])
