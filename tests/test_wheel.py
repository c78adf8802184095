"""The wheel is complete and works without the checkout, with a data set, model and recipe of the user's own."""

import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.forking import Forks
from tests.test_architecture import ROOT, modules

GUIDE = ROOT / "docs" / "guides" / "extending.md"
FILE = re.compile(r"^```(?:python|yaml)\n# (\S+\.(?:py|yaml))\n(.*?)^```", re.M | re.S)
COMMANDS = re.compile(r"^<!-- not-run: tests/test_wheel.py runs it -->\n```bash\n(.*?)^```", re.M | re.S)
SHORT = ["data.image_size=16", "recipe.epochs=1", "recipe.batch_size=8", "trainer.accelerator=cpu", "logger=csv",
         "report=false"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The folder of the unpacked wheel, and the names of its files."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder / "site")
        return folder / "site", set(archive.namelist())


def run(site, folder, *command):
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)


def test_it_contains_all_that_is_needed_to_run(wheel):
    _, names = wheel
    for path in [*modules(), ROOT / "vit" / "__init__.py"]:
        assert str(path.relative_to(ROOT)) in names
    for path in (ROOT / "conf").rglob("*.yaml"):
        assert f"vit/{path.relative_to(ROOT)}" in names
    assert "vit/py.typed" in names  # type checkers ignore the annotations of a package without it
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if not name.startswith("vit/") and ".dist-info/" not in name]


def test_it_runs_without_the_checkout(wheel, tmp_path):
    site, _ = wheel
    done = run(site, tmp_path, "-c", "import vit; print(vit.__file__)")
    assert Path(done.stdout.strip()).is_relative_to(site), done.stderr
    done = run(site, tmp_path, "-m", "vit", "train", "data=digits", "--cfg", "job")
    assert done.returncode == 0 and "_target_: vit.data.digits" in done.stdout, done.stderr


@pytest.fixture
def guide(tmp_path):
    """The files of the guide to configs of the user, and photos for its data set."""
    for name, content in FILE.findall(GUIDE.read_text(encoding="utf-8")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    random = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 3), ("test", 3)):
        (tmp_path / "photos" / split).mkdir(parents=True)
        for name in ("rose", "tulip"):
            for i in range(count):
                pixels = random.integers(0, 255, (20, 24, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / "photos" / split / f"{name}_{i:03d}.jpg")
    return tmp_path


@pytest.fixture(scope="module")
def commands(wheel):
    """commands(folder, *arguments): the output of `python -m vit ARGUMENTS` with the wheel, in a fork."""
    site, _ = wheel
    (site / "tests").symlink_to(ROOT / "tests")
    forks = Forks(root=site)

    def command(folder, *arguments):
        done = forks.run("vit.cli:main", arguments, folder=folder)
        assert done.code == 0, done.output
        return done.output

    printed = forks.run("builtins:exec", "import vit; print(vit.__file__)", folder=site).output
    assert Path(printed.strip()).is_relative_to(site)
    yield command
    forks.close()


def test_the_guide_to_a_data_set_model_and_recipe_of_the_user(commands, guide):
    lines = [line for block in COMMANDS.findall(GUIDE.read_text(encoding="utf-8")) for line in block.splitlines()]
    plain, resume, evaluate, chosen, *_, named = (line.removeprefix("python -m vit ") for line in lines)
    for line in (plain, named):
        assert "_target_: flowers.flowers" in commands(guide, *shlex.split(line), "--cfg", "job", "--resolve")
    printed = commands(guide, *shlex.split(chosen), *SHORT)
    assert "2 classes" in printed and "96 wide" in printed, printed
    (folder,) = (guide / "runs" / "flowers").iterdir()
    (folder / "metrics.json").unlink()  # as if it had been stopped before its end
    assert "resuming " in commands(guide, *shlex.split(resume.replace("TIME", folder.name)))
    assert "tulip        3" in commands(guide, *shlex.split(evaluate.replace("TIME", folder.name)))


@pytest.mark.slow
def test_the_guide_to_callbacks_and_loggers_of_the_user(commands, guide):
    lines = [line for block in COMMANDS.findall(GUIDE.read_text(encoding="utf-8")) for line in block.splitlines()]
    added, chosen = (shlex.split(line.removeprefix("python -m vit ")) for line in lines if "callbacks" in line)
    short = ["recipe.epochs=1", "model.depth=1", "trainer.accelerator=cpu", "report=false"]
    norms = []
    for name, command in (("added", added), ("chosen", chosen)):
        commands(guide, *command, *short, f"run_dir={name}")
        header, row = (guide / name / "metrics.csv").read_text().splitlines()
        norms.append(dict(zip(header.split(","), row.split(","), strict=True))["weights/norm"])
    assert norms[0] == norms[1] and float(norms[0]) > 0
    logged = [json.loads(line) for line in (guide / "metrics.jsonl").read_text().splitlines()]
    assert [str(each["weights/norm"]) for each in logged if "weights/norm" in each] == norms[:1]
    assert (guide / "chosen" / "tensorboard").is_dir()
    trusted = {"added": ["++callbacks.norm._target_=norms.WeightNorm"], "chosen": ["--config-dir", "my"]}
    for name, options in trusted.items():
        (guide / name / "metrics.json").unlink()  # as if it had been stopped before its end
        assert "resuming " in commands(guide, "train", *options, f"resume={name}")
