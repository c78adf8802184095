"""The list of runs in terminals of different widths."""

import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from rich.console import Console

from vit.report.figures.confusion import contrast
from vit.report.logged_values import Curve
from vit.report.pages.page import STYLE
from vit.report.pages.runs_table import runs_page, runs_table
from vit.run.records.listing import ListedRun

DIGITS = ListedRun("runs/digits/2026-11-25_13-44-10", "finished", "digits", "digits", "vit_tiny", "accuracy", 0.9876,
                   0.9812, 30, 30, 500_000, 65.2)
PHOTOS = ListedRun("runs/cifar10_speedrun/2026-11-24_09-00-00", "failed", "x", "folder:clothing_small",
                   "vit_base_patch16_clip_224", "accuracy", 0.5, None, 3, 30, 1, 7623.0,
                   remark="recipe.batch_size=64 is larger than the training set of 42 images")


def lines(width: int, *runs: ListedRun) -> list[str]:
    console = Console(width=width)
    with console.capture() as shown:
        console.print(runs_table(runs, "runs", width), crop=False)  # as the command does
    return [line.rstrip() for line in shown.get().splitlines()]


def test_a_wide_terminal_has_all_columns():
    shown = lines(140, DIGITS, PHOTOS)
    assert shown[1].split() == ["run", "state", "data", "model", "val", "test", "epochs", "time"]
    assert "vit_base_patch16_clip_224" in shown[4] and "2 h 07 min" in shown[4]
    assert shown[-1] == "val and test: accuracy"


def test_control_characters_are_neither_sent_to_the_terminal_nor_part_of_the_page():
    run = replace(PHOTOS, data="\x1b[31mred", model="\x9b31m", remark="\x1b]0;title\x07")
    for text in ("\n".join(lines(140, run)), runs_page([run], "runs")):
        assert r"\x1b[31mred" in text and r"\x9b31m" in text and r"\x1b]0;title\x07" in text
        assert not {"\x1b", "\x9b", "\x07"} & set(text)


@pytest.mark.parametrize("width", [65, 80, 100])
def test_names_stay_on_one_line_and_other_columns_are_left_out(width):
    shown = lines(width, DIGITS, PHOTOS)
    assert max(map(len, shown)) <= width
    assert shown[3].startswith(" digits/2026-11-25_13-44-10 ") and shown[3].endswith("0.9876  0.9812")
    assert any(line.startswith(" cifar10_speedrun/2026-11-24_09-00-00 ") for line in shown)
    headings, note = shown[1].split(), " ".join(shown).partition("also have ")[2]
    assert {"run", "state", "val", "test"} <= set(headings)
    assert {"data", "model", "epochs", "time"} - set(headings) == set(note.split(", "))


def test_a_name_that_does_not_fit_is_folded_and_numbers_stay_whole():
    shown = lines(50, PHOTOS)
    assert max(map(len, shown)) <= 50 and "0.5000" in shown[3] and "failed" in shown[3]
    assert "".join(line.split()[0] for line in shown[3:5]) == "cifar10_speedrun/2026-11-24_09-00-00"


@pytest.mark.parametrize("width", [24, 36, 40])
def test_numbers_are_whole_in_the_narrowest_terminals(width):
    """0.9812 was shown as 0.981, and with 24 characters as 0."""
    shown = lines(width, DIGITS)
    assert shown[3].endswith("0.9876  0.9812") and "finished" in shown[3]
    assert max(map(len, shown)) <= max(width, 38)


def test_short_names_leave_the_numbers_whole():
    run = ListedRun("runs/labels", "finished", "table", "table:labels.csv", "vit_tiny", "map", 0.3058, 0.3688, 1, 1, 1,
                    0.4, remark="")
    for width in (75, 78, 80):
        shown = lines(width, run)
        assert max(map(len, shown)) <= width and "…" not in "".join(shown).replace("table:label…", "")
        assert {"labels", "finished", "0.3058", "0.3688"} <= set(shown[3].split())


def test_values_that_are_not_numbers_are_left_out_of_the_curve_and_sorted_last():
    page = runs_page([replace(DIGITS, val=float("nan"), curve=(float("nan"), 0.25, float("inf"), 0.75))], "runs")
    assert 'points="30.0,21.0 90.0,1.0"' in page and "over 4 epochs, 0.2500 to 0.7500" in page
    assert 'data-value="nan"' not in page and "<svg" not in runs_page([replace(DIGITS, curve=(0.5, np.nan))], "runs")
    assert Curve(np.arange(2.0), np.full(2, np.nan)).best(highest=True) == 0


def test_the_table_of_the_page_is_reached_by_keyboard_and_its_headings_are_above_their_values():
    page = runs_page([DIGITS], "runs")
    assert "<div class=scroll tabindex=0 role=region aria-label=Runs>" in page
    for name in ("val", "test", "epochs", "time"):
        assert f"<th scope=col class=number><button type=button>{name}</button>" in page


@pytest.mark.parametrize("dark", [False, True])
def test_the_colours_of_the_states_have_contrast(dark):
    """At least 4.5, as WCAG 2 asks for of text."""
    light_rules, _, rest = STYLE.partition("@media screen and (prefers-color-scheme: dark) { .failed")
    colours = dict(re.findall(r"\.(\w+) { color: (#\w{6})", f".failed{rest}" if dark else light_rules))
    assert set(colours) == {"damaged", "running", "stopped", "finished"}
    for colour in colours.values():
        assert contrast(np.array(to_rgb(colour)), np.array(to_rgb("#14181d" if dark else "#ffffff"))) >= 4.5
