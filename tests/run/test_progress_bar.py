"""The progress bar of commands, on a terminal and without one."""

import io

import pytest
from rich.console import Console

from tests.run.conftest import write_photos
from vit.run.console import progress_bar, stage_bar
from vit.run.parts.data_source import build_source
from vit.training.monitoring.progress import lines_of


def shown(terminal, kind="xterm"):
    out = io.StringIO()
    with progress_bar(Console(file=out, force_terminal=terminal, width=80, _environ={"TERM": kind})) as bar:
        now = 0.0
        bar.get_time = lambda: now
        task = bar.add_task("test", total=100)
        for _ in range(3):
            now += 1.0
            bar.advance(task, 20)
        bar.refresh()
    return out.getvalue()


def test_a_bar_shows_progress_rate_and_remaining_time():
    text = shown(True)
    assert "60/100" in text and "20/s" in text and "0:00:02" in text


def test_nothing_is_shown_off_a_terminal():
    assert shown(False).strip() == ""


def test_a_terminal_that_cannot_move_its_cursor_has_no_bar_and_no_blank_lines():
    """As in Emacs, and in some logs of continuous integration."""
    assert shown(True, "dumb") == ""


def test_a_stage_does_not_have_the_rate_of_the_stage_before():
    """Headers are read a hundred times as fast as images are decoded."""
    now = 0.0
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, get_time=lambda: now, _environ={"TERM": "xterm"})
    with stage_bar(console, "images") as update:
        for done in (100, 200, 300):
            now += 0.01
            update("headers", done, 300)
        now += 1.0
        update("decodes", 100, 300)
    last = out.getvalue()[out.getvalue().rindex("decodes"):]
    assert "100/300" in last and "/s" not in last


def test_stages_without_a_description_are_shown_from_the_first_one_on():
    """What a data set prints itself before, such as the progress of its download, remains readable."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, _environ={"TERM": "xterm"})
    with stage_bar(console) as update:
        assert out.getvalue() == ""
        update("folders", 20, None)
        update("folders", 40, None)
    assert "folders" in out.getvalue() and "40/?" in out.getvalue()
    with stage_bar(console, "images"):
        assert "images" in out.getvalue()


def test_the_line_of_an_epoch_is_broken_between_its_numbers():
    parts = ["epoch 1/3", "2,698 images/s", "loss 1.8247", "val/loss 1.0962", "val/accuracy 0.7056", "0:01 left"]
    assert lines_of(parts, None) == lines_of(parts, 200) == "  ".join(parts)
    lines = lines_of(parts, 60).splitlines()
    assert lines == ["epoch 1/3  2,698 images/s  loss 1.8247  val/loss 1.0962", "  val/accuracy 0.7056  0:01 left"]


@pytest.mark.parametrize("name", ["folder", "unlabelled_images"])
def test_a_data_set_reports_its_progress_if_its_function_does(name, tmp_path):
    root, seen = write_photos(tmp_path / "photos", {"a": 8, "b": 8}), []
    node = {"_target_": f"vit.data.{name}", "root": str(root), "fractions": [0.5, 0.5, 0.0]}
    source = build_source(node, progress=lambda *each: seen.append(each))
    assert seen[0] == ("folders", 1, None) and sum(map(len, source.splits.values())) == 16
    digits = build_source({"_target_": "vit.data.digits"}, progress=lambda *each: seen.clear())
    assert seen and len(digits.splits["train"]) > 1000
