"""The pictures of commands in the guides: there, small, and beside their commands."""

import importlib.util
import re

import pytest
from PIL import Image

from tests.forking import ROOT

spec = importlib.util.spec_from_file_location("screenshots", ROOT / "docs" / "screenshots.py")
screenshots = importlib.util.module_from_spec(spec)
spec.loader.exec_module(screenshots)
GUIDES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "guides").glob("*.md")}


@pytest.mark.parametrize("name", screenshots.PICTURES)
def test_a_picture_is_in_the_guide_of_its_command(name):
    command = screenshots.PICTURES[name].command.split()[0]
    shown = [text for text in GUIDES.values() if re.search(rf"!\[[^\]]+\]\(\.\./images/commands/{name}\.png\)", text)]
    assert len(shown) == 1 and f"python -m vit {command} " in shown[0]
    path = screenshots.FOLDER / f"{name}.png"
    assert path.stat().st_size < 170_000
    with Image.open(path) as image:
        assert image.width == screenshots.PICTURES[name].width and image.height > 100


def test_each_picture_has_a_command():
    assert {path.stem for path in screenshots.FOLDER.iterdir()} == set(screenshots.PICTURES)


def test_the_output_of_a_command_is_text():
    picture = screenshots.Picture("compare a b", lines=2)
    page = screenshots.terminal("first\nsecond <b>\n" + "x" * 200 + "\n\n", picture)
    assert "first" not in page and "second &lt;b&gt;" in page and f"{'x' * (screenshots.COLUMNS - 1)}…" in page
