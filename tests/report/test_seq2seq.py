"""Where generated texts differ from their references."""

import re

import pytest

from vit.report.seq2seq import different_parts, marked_differences

PAIRS = [("kitten", "sitting"), ("old print", "old prlnt."), ("", "a"), ("a", ""), ("abc", "abd"),
         ("Straße", "Strasse")]


@pytest.mark.parametrize(("reference", "text"), PAIRS)
def test_marks_are_edits_from_the_reference_to_the_text(reference, text):
    marked = marked_differences(reference, text)
    edit = re.compile(r"\[([^>\]]*)>([^\]]*)\]")
    assert edit.sub(r"\1", marked) == reference and edit.sub(r"\2", marked) == text and edit.search(marked)


def test_equal_texts_have_no_marks():
    assert marked_differences("same", "same") == ""


def test_pictures_show_the_texts_around_the_first_difference():
    assert different_parts("short", "shart") == ("short", "shart")
    reference = "a long line of old print with an error at its end"
    parts = different_parts(reference, reference[:-1] + "t")
    assert parts == ("…s end", "…s ent")[:2] or all(part.startswith("…") and len(part) <= 14 for part in parts)
    assert parts[0][-1] == "d" and parts[1][-1] == "t"
    assert different_parts(reference, reference[:-3])[1].startswith("…")
