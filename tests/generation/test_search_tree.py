"""The tree of a search against what the search returns, brute force, and an independent run of each step."""

import itertools

import pytest
import torch

from tests.generation.test_generate import EOS, log_probabilities, model, score_of, sources
from vit.generation import Generation, Hypothesis, SearchTree, generate
from vit.generation.search_tree import COLLECTED, Outcome

SETTINGS = {
    "greedy": {},
    "beam": {"beam": 4, "n_best": 3},
    "short texts": {"beam": 3, "length_penalty": -0.7, "n_best": 2},
    "forced beginning": {"beam": 3, "prefix": (9, 7, 9)},
    "no repeats": {"beam": 3, "no_repeat_ngram": 2, "min_len": 3},
}


def recorded(made, inputs, settings: Generation) -> tuple[list[list[Hypothesis]], list[SearchTree]]:
    trees = []
    return generate(made, *inputs, settings, record=trees), trees


@pytest.mark.parametrize("name", SETTINGS)
def test_the_leaves_are_the_best_texts_and_recording_changes_nothing(name: str) -> None:
    made, settings = model(), Generation(**{"max_len": 9, **SETTINGS[name]})
    found, trees = recorded(made, sources(), settings)
    assert found == generate(made, *sources(), settings)
    for row, (hypotheses, tree) in enumerate(zip(found, trees, strict=True)):
        best = tree.collected()[: settings.n_best]
        assert [(tree.text(i), tree.score(i), tree.nodes[i].outcome is Outcome.ended) for i in best] == [
            (h.ids, h.score, h.ended) for h in hypotheses]
        assert [tree.find(h) for h in hypotheses] == best
        for index in tree.collected():
            leaf = Hypothesis(tree.text(index), tree.score(index), tree.nodes[index].outcome is Outcome.ended)
            assert abs(leaf.score - score_of(made, row, leaf, settings.length_penalty, len(settings.prefix))) < 1e-4


@pytest.mark.parametrize("beam", [1, 3])
def test_each_step_has_the_best_continuations_of_all_beams(beam: int) -> None:
    """Each step computed again from the model's probabilities: the best continuations, the first of which remain."""
    made = model()
    _, (tree, *_) = recorded(made, sources(1), Generation(beam=beam, max_len=5))
    beams, shown = [((), 0.0)], {1: 5, 3: 6}[beam]
    for step in range(1, 1 + max(node.step for node in tree.nodes)):
        every = []
        for text, total in beams:
            likely = log_probabilities(made, 0, text)[-1]
            every += [((*text, token), total + float(likely[token])) for token in range(2, len(likely))]
        every.sort(key=lambda each: -each[1])
        nodes = [index for index, node in enumerate(tree.nodes) if node.step == step]
        texts = [(*tree.text(tree.nodes[index].parent), tree.nodes[index].token) for index in nodes]
        assert texts == [text for text, _ in every[:shown]]
        assert [tree.nodes[index].total for index in nodes] == pytest.approx([total for _, total in every[:shown]],
                                                                             abs=1e-4)
        beams = [each for each in every if each[0][-1] != EOS][:beam]
        live = [tree.text(index) for index in nodes if tree.nodes[index].outcome is Outcome.extended]
        finished = step == 5 or beam == 1 and every[0][0][-1] == EOS
        assert live == ([] if finished else [text for text, _ in beams])


def test_a_tree_as_wide_as_all_texts_is_the_list_of_all_texts() -> None:
    """A vocabulary of padding, start, end and two letters, and texts of at most 4 tokens: 2 + 4 + 8 + 16 of them."""
    made, longest = model(vocab_size=5, sharp=0.5), 4
    source = torch.tensor([[3, 4, 4]])
    settings = Generation(beam=64, n_best=31, max_len=longest, length_penalty=0.6)
    (found,), (tree,) = recorded(made, (source, None), settings)
    expected = {}
    for length in range(longest + 1):
        for text in itertools.product((3, 4), repeat=length):
            whole = Hypothesis(text, 0.0, length < longest)
            table = log_probabilities(made, 0, text, source=(source, torch.ones(1, 3, dtype=torch.bool)))
            tokens = [*text, *([EOS] if whole.ended else [])]
            expected[text] = sum(float(table[i, token]) for i, token in enumerate(tokens)) / len(tokens) ** 0.6
    leaves = {tree.text(index): tree.score(index) for index in tree.collected()}
    assert leaves == pytest.approx(expected, abs=1e-5) and len(leaves) == 31
    assert [h.ids for h in found] == sorted(expected, key=lambda text: -expected[text])
    assert not [node for node in tree.nodes if node.outcome is Outcome.dropped]


def test_a_batch_has_the_trees_of_its_rows() -> None:
    made, settings = model(), Generation(beam=3, max_len=9)
    _, trees = recorded(made, sources(9), settings)
    source, mask = sources(9)
    for row in range(9):
        _, (alone,) = recorded(made, (source[row : row + 1, mask[row]], None), settings)
        nodes = [(node.parent, node.token, node.step, node.outcome) for node in trees[row].nodes]
        assert nodes == [(node.parent, node.token, node.step, node.outcome) for node in alone.nodes]


def test_sampling_has_no_tree_and_unknown_texts_no_node() -> None:
    with pytest.raises(ValueError, match="draws tokens; use sample=False"):
        recorded(model(), sources(1), Generation(sample=True))
    _, (tree,) = recorded(model(), sources(1), Generation(beam=2, max_len=3))
    assert tree.find(Hypothesis((149,) * 3, 0.0)) is None
    assert all(not tree.children()[i] for i, node in enumerate(tree.nodes) if node.outcome in COLLECTED)
