"""A data set of the `datasets` library: training, prediction, and evaluation with the recorded overrides."""

import json
import os
from pathlib import Path

import datasets
import pytest
import yaml

import vit
from tests.exchange.hub_server import Hub
from tests.forking import Forks
from tests.run.conftest import QUICK, SMALL, write_photos
from vit.cli import main as vit_main

NAMES = ["zebra", "ant", "mule"]


def of_files(files):
    rows = {"picture": [{"bytes": file.read_bytes(), "path": None} for file in files],
            "animal": [file.parent.name for file in files]}
    features = datasets.Features({"picture": datasets.Image(), "animal": datasets.ClassLabel(names=NAMES)})
    return datasets.Dataset.from_dict(rows, features)


def test_a_saved_data_set_is_trained_on_and_evaluated_again(tmp_path, monkeypatch):
    photos = write_photos(tmp_path / "photos", {"zebra": 16, "ant": 14, "mule": 12})
    files = sorted(photos.rglob("*.png"))
    of_files(files).save_to_disk(tmp_path / "saved")
    monkeypatch.chdir(tmp_path)
    run = vit.train([*QUICK, *SMALL, "data=hub", "data.root=saved", "run_dir=run"])
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    assert config["classes"] == NAMES and vit.load("run").classes == NAMES
    listed = [line.split("\t")[:2] for line in Path("run/splits/test.tsv").read_text().splitlines()]
    assert 3 <= len(listed) <= 7 and all(files[int(name.split()[-1])].parent.name == label for name, label in listed)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert vit_main(["evaluate", str(tmp_path / "run"), "--json", "again.json"]) == 0
    again = json.loads(Path("again.json").read_text())
    assert again["test/loss"] == run.metrics["test/loss"] and again["test/accuracy"] == run.metrics["test/accuracy"]
    assert vit_main(["audit", "data=hub", f"data.root={tmp_path / 'saved'}", "--json", "audit.json"]) == 0
    counts = json.loads(Path("audit.json").read_text())["counts"].values()
    assert {name: sum(split[name] for split in counts) for name in NAMES} == {"zebra": 16, "ant": 14, "mule": 12}


@pytest.mark.slow
def test_a_data_set_of_the_hub_is_pinned_to_its_commit(tmp_path):
    """The run records the commit, so that its numbers are reproduced when the owner has changed the data set."""
    files = sorted(write_photos(tmp_path / "photos", {"zebra": 16, "ant": 14, "mule": 12}).rglob("*.png"))
    of_files(files).to_parquet(tmp_path / "a.parquet")
    of_files(files[::2]).to_parquet(tmp_path / "b.parquet")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    with Hub() as hub:
        settings = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1",
                    "HF_HUB_DISABLE_TELEMETRY": "1"}
        server = Forks(clean | settings)

        def command(*overrides):
            done = server.run("vit.cli:main", overrides, folder=tmp_path)
            assert done.code == 0, done.output
            return done.output

        commit = hub.commit("datasets/me/pets", {"data/train.parquet": (tmp_path / "a.parquet").read_bytes()})
        printed = command("train", *QUICK, *SMALL, "data=hub", "data.repo=me/pets", "run_dir=run")
        assert f"data.repo=me/pets is commit {commit}; set data.revision={commit} to load the same" in printed
        hub.commit("datasets/me/pets", {"data/train.parquet": (tmp_path / "b.parquet").read_bytes()})
        command("evaluate", "run", "--json", "again.json")
        server.close()
    metrics, again = (json.loads((tmp_path / name).read_text()) for name in ("run/metrics.json", "again.json"))
    assert again["test/loss"] == metrics["test/loss"] and again["images"] == 5
    assert vit_main(["card", str(tmp_path / "run")]) == 0
    card = (tmp_path / "run/model/README.md").read_text()
    assert f"revision `{commit}`" in card and "datasets:\n- me/pets" in card
