"""Photos, real data sets and folders of classes for tests of data."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

FILES = Path(__file__).parent.parent / "data_files"


@pytest.fixture
def photos() -> Path:
    """Two classes of three real photographs."""
    return FILES / "clothing"


@pytest.fixture
def real() -> Path:
    """The folder of real data sets; tests that need it are skipped if it is not set."""
    if not os.environ.get("VIT_TEST_DATA"):
        pytest.skip("VIT_TEST_DATA is not set")
    return Path(os.environ["VIT_TEST_DATA"])


@pytest.fixture
def class_folders(tmp_path):
    """A function that creates small PNGs: class_folders({"train/cat": 3, ...}) → root."""

    def write(tree: dict[str, int], size: tuple[int, int] = (12, 10)) -> Path:
        rng = np.random.default_rng(0)
        for folder, count in tree.items():
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / folder / f"{i:03}.png")
        return tmp_path

    return write
