"""A run whose data and folder have unusual names: trained from Python, evaluated, resumed by the printed command."""

import shlex
import subprocess

import numpy as np
from PIL import Image

import vit
from vit.cli import main
from vit.messages import override_for_shell
from vit.run.config.composing import compose, resolve
from vit.run.config.overrides import parse
from vit.run.multirun.comparison_plan import find_plan

SMALL = ["recipe.epochs=1", "recipe.batch_size=8", "precision=32-true", "logger=csv", "report=false", "calibrate=none",
         "data.image_size=16", "data.patch_size=8", "model.depth=1", "model.dim=16", "model.num_heads=2"]


def test_a_run_with_unusual_names(tmp_path, capfd):
    root, path = tmp_path / "it's, [odd] (1) é$HOME=a", tmp_path / "run & it's"
    for name in ("cat", f"dog: {'x' * 80}"):
        (root / name).mkdir(parents=True)
        for i in range(20):
            pixels = np.random.default_rng(i).integers(0, 256, (16, 16, 3), np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    run = vit.train([*SMALL, "data=folder", f"data.root={root}", f"run_dir={path}"])
    tested = (path / "splits" / "test.tsv").read_text(encoding="utf-8").splitlines()
    assert {file.stem[6:] for file in (path / "samples").iterdir()} == {"cat", f"dog__{'x' * 75}"}
    assert run.path == path and run.metrics["test/images"] == len(tested) > 0
    printed = next(line for line in capfd.readouterr().out.splitlines() if "Next:" in line).partition("Next: ")[2]
    assert subprocess.run(["bash", "-c", printed]).returncode == 0
    assert main(["evaluate", str(path)]) == 0  # on the data that the run recorded
    assert main(["audit", "data=folder", f"data.root={root}"]) == 0


def test_a_comparison_with_unusual_names(tmp_path):
    overrides = ["compare={a: ['model=tiny'], b: ['model=small']}", f"run_dir={tmp_path}/it's (1)"]
    folder, plan = find_plan(resolve(compose(overrides)), overrides)
    assert folder == tmp_path / "it's (1)" and list(plan["runs"]) == ["a", "b"]
    (override,) = parse(shlex.split(override_for_shell("resume", folder)))
    assert override.value() == str(folder)
