"""The progress bar of commands, on a terminal and without one."""

import io

from rich.console import Console

from vit.run.console import progress_bar


def shown(terminal):
    out = io.StringIO()
    with progress_bar(Console(file=out, force_terminal=terminal, width=80)) as bar:
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
