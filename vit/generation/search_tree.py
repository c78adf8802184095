"""The tree of all hypotheses that a search has considered for one source."""

from dataclasses import dataclass, field
from enum import StrEnum

from vit.generation.hypotheses import Hypothesis
from vit.generation.settings import Generation


class Outcome(StrEnum):
    """The outcome of a hypothesis in a search."""

    extended = "extended"  # one of the beams of the next step
    ended = "ended"  # collected with eos
    cut = "cut"  # collected without eos, at the maximum length
    dropped = "dropped"


COLLECTED = (Outcome.ended, Outcome.cut)


@dataclass(frozen=True)
class Node:
    """A hypothesis: its last token, the sum of its log-probabilities, and what the search did with it.

    Args:
        parent: index of the node that it extends; None for the root, which is the prefix.
        step: number of generated tokens.
    """

    parent: int | None
    token: int | None
    total: float
    step: int
    outcome: Outcome


@dataclass
class SearchTree:
    """The hypotheses of a search for one source, as `generate(..., record=trees)` appends them to a list.

    A beam search ranks the 2 * beam best continuations of each step, and greedy search the five best. Nodes are in the
    order of the search: step by step, the best of each step first.
    """

    settings: Generation
    nodes: list[Node] = field(default_factory=lambda: [Node(None, None, 0.0, 0, Outcome.extended)])
    beams: list[int] = field(default_factory=lambda: [0])  # nodes that the next step extends

    def add_step(self, continuations: list[tuple[int, int, float, Outcome]]) -> None:
        """Add the continuations of a step: index of the beam, token, sum of the log-probabilities, and outcome."""
        step, beams = self.nodes[self.beams[0]].step + 1, []
        for beam, token, total, outcome in continuations:
            if outcome is Outcome.extended:
                beams.append(len(self.nodes))
            self.nodes.append(Node(self.beams[beam], token, total, step, outcome))
        self.beams = beams or self.beams

    def path(self, index: int) -> list[int]:
        """Indices of the nodes from the root, which is left out, to a node."""
        indices = []
        while index:
            indices.append(index)
            index = self.nodes[index].parent
        return indices[::-1]

    def text(self, index: int) -> tuple[int, ...]:
        """The ids of a node with the prefix, without eos."""
        tokens = tuple(self.nodes[i].token for i in self.path(index))
        return self.settings.prefix + (tokens[:-1] if self.nodes[index].outcome is Outcome.ended else tokens)

    def score(self, index: int) -> float:
        """The score of a node: the sum of its log-probabilities with the length penalty."""
        return self.settings.score(self.nodes[index].total, max(self.nodes[index].step, 1))

    def collected(self) -> list[int]:
        """Indices of the texts that ended or were cut, best score first; `generate` returns the first `n_best`."""
        indices = [i for i, node in enumerate(self.nodes) if node.outcome in COLLECTED]
        return sorted(indices, key=lambda i: -self.score(i))

    def children(self) -> list[list[int]]:
        """Indices of the children of every node, best first."""
        indices = [[] for _ in self.nodes]
        for index, node in enumerate(self.nodes[1:], 1):
            indices[node.parent].append(index)
        return indices

    def find(self, hypothesis: Hypothesis) -> int | None:
        """The node of a text; None if the search has not found it, such as one that only the CTC output proposed."""
        for index, node in enumerate(self.nodes):
            if (node.outcome is Outcome.ended) == hypothesis.ended and self.text(index) == hypothesis.ids:
                return index
        return None
