"""A report in headless Chromium, where there is one: every picture loads, nothing is too wide, no script fails."""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest

from tests.report.test_model_report import model, photos, written  # noqa: F401  fixtures

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
    }};
  }}
  document.getElementById("found").textContent = JSON.stringify(found);
}});
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_report_in_a_browser(written, tmp_path):  # noqa: F811
    page = written[0]
    harness = tmp_path / "harness.html"
    harness.write_text(HARNESS.format(frames="".join(
        f'<iframe src="file://{page}" width={width} height=900></iframe>' for width in WIDTHS)))
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
         f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=10000",
         "--dump-dom", f"file://{harness}"], capture_output=True, text=True, timeout=60)
    assert not re.findall(r".*CONSOLE.*", done.stderr)
    found = json.loads(unescape(re.search(r"<pre id=\"found\">(.*?)</pre>", done.stdout, re.S)[1]))
    for width in WIDTHS:
        seen = found[str(width)]
        assert seen.pop("pictures") > 20
        assert set(seen.values()) == {0}, f"at {width} pixels: {seen}"
