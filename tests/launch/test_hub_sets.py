"""A data set of the `datasets` library from words to answers, and again from what the model remembers of it."""

import json
from pathlib import Path

import datasets
import yaml

import vit
from tests.launch.conftest import QUICK, SMALL, write_photos
from vit.cli import main as vit_main


def test_a_saved_data_set_is_trained_on_and_evaluated_again(tmp_path, monkeypatch):
    photos = write_photos(tmp_path / "photos", {"zebra": 16, "ant": 14, "mule": 12})
    files = sorted(photos.rglob("*.png"))
    names = ["zebra", "ant", "mule"]
    rows = {"picture": [{"bytes": file.read_bytes(), "path": None} for file in files],
            "animal": [file.parent.name for file in files]}
    features = datasets.Features({"picture": datasets.Image(), "animal": datasets.ClassLabel(names=names)})
    datasets.Dataset.from_dict(rows, features).save_to_disk(tmp_path / "saved")
    monkeypatch.chdir(tmp_path)
    run = vit.train([*QUICK, *SMALL, "data=hub", "data.root=saved", "run_dir=run"])
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    assert config["classes"] == names and vit.load("run").classes == names
    listed = [line.split("\t") for line in Path("run/splits/test.tsv").read_text().splitlines()]
    assert len(listed) == 5 and all(files[int(name.split()[-1])].parent.name == label for name, label in listed)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert vit_main(["evaluate", str(tmp_path / "run"), "--json", "again.json"]) == 0
    again = json.loads(Path("again.json").read_text())
    assert again["test/loss"] == run.metrics["test/loss"] and again["test/accuracy"] == run.metrics["test/accuracy"]
    assert vit_main(["audit", "data=hub", f"data.root={tmp_path / 'saved'}", "--json", "audit.json"]) == 0
    counts = json.loads(Path("audit.json").read_text())["counts"].values()
    assert {name: sum(split[name] for split in counts) for name in names} == {"zebra": 16, "ant": 14, "mule": 12}
