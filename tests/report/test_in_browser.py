"""A report in headless Chromium, where there is one: every picture loads, nothing is too wide, no script fails."""

import json
import re
import shutil
import subprocess
from html import unescape

import numpy as np
import pytest

from tests.data.test_near_copies import CHANGES, drawing
from tests.report.test_model_report import model, photos, written  # noqa: F401  fixtures
from tests.report.test_runs_table import DIGITS, PHOTOS
from vit.cli import main
from vit.report.attention.maps import TokenMaps
from vit.report.attention.page import tokens_page
from vit.report.pages.html_parts import heading, paragraph, table
from vit.report.pages.model_report import STYLE
from vit.report.pages.page import html_page
from vit.report.pages.runs_table import runs_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDTHS = (1280, 400)
HARNESS = """<!doctype html><meta charset=utf-8><pre id=found></pre>{frames}<script>
addEventListener("load", () => {{
  const found = {{}};
  for (const frame of document.querySelectorAll("iframe")) {{
    const page = frame.contentDocument, root = page.documentElement, images = [...page.images];
    const regions = [...page.querySelectorAll("[tabindex], a")];
    found[frame.width] = {{
      scroll: root.scrollWidth - root.clientWidth,
      pictures: images.length,
      broken: images.filter(image => !image.naturalWidth || !image.clientWidth).length,
      outside: [...page.querySelectorAll("main > *, section > *")].filter(
        each => each.getBoundingClientRect().right > root.clientWidth + 1).length,
      unreachable: regions.filter(each => {{ each.focus(); return page.activeElement !== each; }}).length,
      small: [...page.querySelectorAll("td, p, dd, figcaption")].filter(
        each => parseFloat(frame.contentWindow.getComputedStyle(each).fontSize) < 12).length,
      sideways: [...page.querySelectorAll(".scroll")].filter(each => each.scrollWidth > each.clientWidth + 1).length,
      narrow: [...page.querySelectorAll("td:first-child, figcaption")].filter(each => each.clientWidth < 100).length,
    }};
  }}
  document.getElementById("found").textContent = JSON.stringify(found);
}});
</script>"""


pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


def browse(page, tmp_path):
    """What the harness finds at each width, after the check that no script fails."""
    harness = tmp_path / "harness.html"
    harness.write_text(HARNESS.format(frames="".join(
        f'<iframe src="file://{page}" width={width} height=900></iframe>' for width in WIDTHS)))
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
         f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=10000",
         "--dump-dom", f"file://{harness}"], capture_output=True, text=True, timeout=60)
    assert not re.findall(r".*CONSOLE.*", done.stderr)
    return json.loads(unescape(re.search(r"<pre id=\"found\">(.*?)</pre>", done.stdout, re.S)[1]))


def test_a_report_in_a_browser(written, tmp_path):  # noqa: F811
    found = browse(written[0], tmp_path)
    for width in WIDTHS:
        seen = found[str(width)]
        assert seen.pop("pictures") > 20
        seen.pop("narrow"), seen.pop("sideways")  # short cells; wide tables of a narrow screen
        assert set(seen.values()) == {0}, f"at {width} pixels: {seen}"


def test_a_list_of_runs_in_a_browser(tmp_path):
    page = tmp_path / "runs.html"
    page.write_text(runs_page([DIGITS, PHOTOS], "Runs"), encoding="utf-8")
    for width, seen in browse(page, tmp_path).items():
        seen.pop("sideways")
        assert set(seen.values()) == {0}, f"at {width} pixels: {seen}"


def test_a_table_of_long_texts_in_a_browser(tmp_path):
    page = tmp_path / "texts.html"
    rows = [("12", "twelve", "[" * 300, "900%"), ("c" * 200, "a word " * 40, "a", "0%")]
    page.write_text(html_page("Texts", table(("source", "reference", "generated", "errors"), rows, "Worst texts", (3,)),
                              style=STYLE), encoding="utf-8")
    assert browse(page, tmp_path)["1280"]["sideways"] == 0


def test_tokens_of_an_attention_page_are_buttons(tmp_path):
    """So that they are reached by keyboard; the map is described by the text above it."""
    maps = TokenMaps({"0": np.ones((1, 3, 3)) / 3}, ["<b>", "猫", "قطة"], ["<b>", "猫", "قطة"])
    page = tokens_page(tmp_path / "page.html", {"text": maps})
    done = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
                           f"--user-data-dir={tmp_path / 'profile'}", f"file://{page}"],
                          capture_output=True, text=True, timeout=60)
    assert re.findall(r"<button[^>]*>(.*?)</button>", done.stdout) == ["&lt;b&gt;", "猫", "قطة"]
    assert "&lt;b&gt; attends most to &lt;b&gt;\u200e: 0.3333" in done.stdout and 'role="img"' in done.stdout


def test_long_names_in_headings_in_a_browser(tmp_path):
    page = tmp_path / "names.html"
    page.write_text(html_page("n" * 200, heading("x" * 200) + paragraph("y" * 200), style=STYLE), encoding="utf-8")
    for width, seen in browse(page, tmp_path).items():
        assert set(seen.values()) == {0}, f"at {width} pixels: {seen}"


def test_a_long_name_above_attention_in_a_browser(tmp_path):
    maps = TokenMaps({"0": np.ones((1, 2, 2)) / 2}, ["a", "b"], ["a", "b"])
    page = tokens_page(tmp_path / "page.html", {"text": maps}, f"photo.jpg → {'x' * 200}")
    for width, seen in browse(page, tmp_path).items():
        assert set(seen.values()) == {0}, f"at {width} pixels: {seen}"


def test_near_copies_in_a_browser(tmp_path):
    page, root = tmp_path / "copies.html", tmp_path / "photos"
    for split, change in (("train", lambda image: image), ("test", CHANGES["mirrored"])):
        for number in range(12):
            folder = root / split / ("cat", "dog")[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            change(drawing(number, (96 + 90 * number, 80))).save(folder / f"{'long_name_' * 9}{number}.png")
    assert main(["audit", "data=folder", f"data.root={root}", "--near-copies", "--html", str(page)]) == 0
    for width, seen in browse(page, tmp_path).items():
        assert seen.pop("pictures") == 24 and set(seen.values()) == {0}, f"at {width} pixels: {seen}"
