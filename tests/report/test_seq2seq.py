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
    assert different_parts(reference, reference[:-1] + "t") == ("…s end", "…s ent")
    assert different_parts(reference, reference[:-3]) == ("…its end", "…its ")
    assert different_parts(reference[:-3], reference) == ("…its ", "…its end")
    assert different_parts(reference, "b" + reference[1:]) == (reference, "b" + reference[1:])
