"""The drawn search: rows of the nodes, the figure, and the lines for a terminal."""

import html
import re

import numpy as np
import pytest
import torch
from PIL import Image

from tests.generation.test_generate import model, sources
from vit.generation import Generation, generate
from vit.generation.search_tree import Outcome
from vit.inference import GeneratedText, RecordedSearch
from vit.report.figures.search_tree import node_rows, search_lines, write_search


@pytest.fixture(scope="module")
def search() -> RecordedSearch:
    trees: list = []
    settings = Generation(beam=3, n_best=2, max_len=6)
    found = generate(model(), *sources(1), settings, record=trees)[0]
    texts = tuple(" ".join(map(str, h.ids)) for h in found)
    tokens = ["", *(f"<{node.token}>" for node in trees[0].nodes[1:])]
    generated = GeneratedText("a $source$", texts, tuple(h.score for h in found))
    return RecordedSearch(generated, trees[0], tokens, [trees[0].find(h) for h in found])


def test_the_best_text_is_a_straight_line_and_no_two_nodes_overlap(search):
    rows, nodes = node_rows(search), search.tree.nodes
    assert {rows[index] for index in search.chosen} == {0.0} and len(search.chosen) > 2
    assert len({(node.step, row) for node, row in zip(nodes, rows, strict=True)}) == len(nodes)
    for step in range(1, 1 + max(node.step for node in nodes)):  # edges do not cross
        column = sorted((i for i, node in enumerate(nodes) if node.step == step), key=lambda i: rows[i])
        parents = [rows[nodes[i].parent] for i in column]
        assert parents == sorted(parents)


def test_the_figure_names_each_hypothesis_and_its_log_probability(search, tmp_path):
    text = write_search(tmp_path / "tree.svg", search).read_text()
    drawn = list(map(html.unescape, re.findall(r"<!-- (.*?) -->", text)))  # the texts, which are drawn as paths
    assert sorted(each for each in drawn if each.startswith("<")) == sorted(search.tokens[1:])
    assert {f"{node.total:.2f}" for node in search.tree.nodes[1:]} <= set(drawn)
    light, dark = (write_search(tmp_path / f"{name}.png", search, name == "dark") for name in ("light", "dark"))
    means = [np.asarray(Image.open(path).convert("L")).mean() for path in (light, dark)]
    assert means[0] > 230 and means[1] < 50
    with pytest.raises(ValueError, match=r"tree.html must end with .png, .svg or .pdf"):
        write_search(tmp_path / "tree.html", search)


def test_the_lines_hold_every_hypothesis_once(search):
    lines = [line.plain for line in search_lines(search)]
    nodes = search.tree.nodes[1:]
    live = [node for node in nodes if node.outcome is not Outcome.dropped]
    assert len(lines) == 2 + len(live)  # heading and root
    assert sum(line.count("<") for line in lines) == len(nodes)
    bold = [line.plain for line in search_lines(search) if any("blue" in str(span.style) for span in line.spans)]
    assert [re.findall(r"<\d+>", line)[0] for line in bold[1:]] == [search.tokens[i] for i in sorted(search.chosen)][1:]
    score = f"score {search.generated.score:.4f}, text 1"
    assert sum(score in line for line in bold) == 1
    assert not any(line.startswith(("├", "│")) for line in bold)  # the best text is at the left


def test_a_text_that_the_search_has_not_found_has_no_line(search):
    other = RecordedSearch(search.generated, search.tree, search.tokens, [None])
    assert other.chosen == frozenset() and len(list(search_lines(other))) == len(list(search_lines(search)))
    assert torch.isfinite(torch.tensor(node_rows(other))).all()
