"""Parts of the search by themselves: bounds, rows and tokens that are removed, and the constraints of CTC's texts."""

from types import SimpleNamespace

import pytest
import torch

from vit.data import ByteTokenizer
from vit.generation import Generation, Utf8
from vit.generation.active_rows import ActiveRows
from vit.generation.beam import drop_unused
from vit.generation.ctc import ctc_greedy, is_allowed
from vit.generation.length_penalty import highest_score, penalized


@pytest.mark.parametrize("form", ["power", "gnmt"])
@pytest.mark.parametrize("penalty", [-1.0, -0.3, 0.0, 0.6, 2.0])
@pytest.mark.parametrize(("shortest", "longest"), [(0, 9), (6, 9), (9, 9)])
def test_the_bound_is_the_best_score_of_any_length_that_a_text_can_still_have(
    penalty, shortest, longest, form
) -> None:
    for length in range(1, longest):
        ends = [n for n in range(length + 1, longest + 1) if n > shortest or n == longest]  # eos counts
        best = max(penalized(-3.0, n, penalty, form) for n in ends)
        assert highest_score(-3.0, length, penalty, shortest, longest, form) == pytest.approx(best)


def test_tokens_are_dropped_only_where_no_beam_of_the_row_attends_to_them() -> None:
    mask = torch.tensor([[[1, 0, 0, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]],
                         [[1, 1, 0, 0, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0, 1, 0]]]).bool()
    selected = []
    found = drop_unused(SimpleNamespace(select_tokens=selected.append), mask)
    (tokens,) = selected
    assert found.shape == (2, 2, 4) and tokens.shape == (2, 4)
    for row in range(2):
        for beam in range(2):
            assert tokens[row][found[row, beam]].tolist() == mask[row, beam].nonzero().flatten().tolist()
    full = torch.ones(1, 1, 8, dtype=torch.bool)
    assert drop_unused(None, full) is full


def test_finished_rows_are_removed_once_they_are_an_eighth_of_the_batch() -> None:
    active = ActiveRows(9)
    assert active.compact([False] * 9) is None
    assert active.compact([True] + [False] * 8) is None and active.rows == list(range(9))
    assert active.compact([True] + [False] * 7 + [True]) == [1, 2, 3, 4, 5, 6, 7] == active.rows
    assert active.compact([False] * 6 + [True]) == [0, 1, 2, 3, 4, 5] and active.rows == [1, 2, 3, 4, 5, 6]


def test_greedy_ctc_merges_repeats_and_reads_only_the_columns_of_the_image() -> None:
    likely = torch.tensor([[3, 3, 0, 3, 4, 4], [5, 0, 0, 6, 6, 6]])
    columns = torch.nn.functional.one_hot(likely, 7).float()
    assert ctc_greedy(columns, torch.tensor([6, 3]), pad=0) == [(3, 3, 4), (5,)]
    assert ctc_greedy(columns, torch.tensor([4, 4]), pad=0) == [(3, 3), (5, 6)]


def test_the_blank_of_greedy_ctc_is_the_padding_whatever_its_id() -> None:
    columns = torch.nn.functional.one_hot(torch.tensor([[0, 0, 6, 0, 4]]), 7).float()
    assert ctc_greedy(columns, torch.tensor([5]), pad=6) == [(0, 0, 4)]


def test_a_text_of_ctc_leaves_a_token_for_eos() -> None:
    settings = Generation(max_len=9, min_len=2, prefix=(5,))
    assert [is_allowed((5, *[6] * n), settings, 4) for n in range(6)] == [False, False, True, True, False, False]
    assert not is_allowed((6, 6, 6), settings, 4)


def test_a_text_is_valid_if_it_is_whole_characters_without_special_ids() -> None:
    tokenizer = ByteTokenizer()
    utf8 = Utf8(tokenizer.pieces, 2)
    ids = list(tokenizer.encode("a\u00e9\u20ac"))
    text = [each for each in ids if tokenizer.pieces[each]]
    assert utf8.is_valid(text) and utf8.is_valid([])
    assert not utf8.is_valid(text[:-1]) and not utf8.is_valid(text[2:])  # a part of a character
    assert not utf8.is_valid([2, *text]) and not utf8.is_valid([*text, -1])
    assert not utf8.is_valid([*text, len(tokenizer.pieces)])


def test_greedy_settings_keep_only_what_constrains_a_text() -> None:
    kept = {"max_len": 9, "min_len": 2, "no_repeat_ngram": 3, "length_penalty": 0.5}
    searched = Generation(**kept, beam=4, n_best=3)
    sampled = Generation(**kept, sample=True, n_best=3, temperature=2.0, top_k=5, top_p=0.9)
    assert searched.greedy == sampled.greedy == Generation(**kept)


def test_saved_settings_may_have_the_former_name_of_test_time_augmentation() -> None:
    assert Generation.from_dict({"views": 3, "beam": 2}) == Generation(tta=3, beam=2)
    with pytest.raises(ValueError, match="text generation has no setting 'beams'; it has beam, "):
        Generation.from_dict({"beams": 2})
