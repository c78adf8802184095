"""Data that changed between the start of a run and its resuming, its test, or `vit evaluate`."""

import json
import shutil
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import vit
from tests.run.conftest import SMALL
from tests.run.test_resume import StopAfter, assert_same
from vit.__main__ import main
from vit.data import DataError
from vit.data.splits.recorded import NEW
from vit.run.config.composing import ConfigError
from vit.run.jobs import Job
from vit.run.records.reading import stored_config
from vit.run.records.splits import DataRecord, read_record, write_record

QUICK = ["precision=32-true", "logger=csv", "report=false", "calibrate=none", "recipe.epochs=3", "recipe.batch_size=16",
         "data.audit_seconds=1", *SMALL]


def photos(root, classes, each=25, first=0):
    """Coloured noise: every image has its own content."""
    for c, name in enumerate(classes):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(first, first + each):
            pixels = np.random.default_rng([c, i]).integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i:03}.png")
    return root


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    root = photos(folder / "photos", ["cat", "dog"])
    run = vit.train(["data=folder", f"data.root={root}", *QUICK, f"run_dir={folder / 'run'}"])
    return run.path, root


@pytest.fixture
def stopped(finished, tmp_path, monkeypatch):
    root = tmp_path / "photos"
    shutil.copytree(finished[1], root)
    with monkeypatch.context() as patch:
        StopAfter(patch, 4, signal.SIGINT)
        with pytest.raises(SystemExit):
            vit.train(["data=folder", f"data.root={root}", *QUICK, f"run_dir={tmp_path / 'run'}"])
    return tmp_path / "run", root


def test_a_photo_added_between_stop_and_resume_changes_no_bit(stopped, finished, capsys):
    run, root = stopped
    photos(root, ["cat", "dog"], each=5, first=100)
    shutil.move(root, root.with_name("moved"))
    vit.train([f"resume={run}", f"data.root={root.with_name('moved')}"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "10 samples were not in the data when training began and are left out: cat/100.png" in printed
    assert_same(run, finished[0])
    metrics, whole = (json.loads((path / "metrics.json").read_text()) for path in (run, finished[0]))
    assert metrics["skipped_images"] == whole["skipped_images"] == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda root: (root / "cat").rename(root / "elk"), r"new: \['elk'\], gone: \['cat'\]"),
        (lambda root: photos(root, ["ant"]), r"its 3 classes are not the 2 .*new: \['ant'\]"),
        (lambda root: (root / "cat" / "003.png").unlink(), r"1 of the 50 .*cat/003.png \(missing\); restore them"),
        (lambda root: photos(root, ["dog", "cat"], 2), r"4 of the 50 samples .*cat/00\d.png \(has other content\)"),
        (lambda root: (root / "cat" / "001.png").rename(root / "dog" / "x.png"), r"cat/001.png \(missing\)"),
    ],
)
def test_changed_data_cannot_be_trained_on(stopped, change, text):
    run, root = stopped
    change(root)
    with pytest.raises(DataError, match=text):
        vit.train([f"resume={run}"])


def test_a_change_before_the_test_is_an_error_and_the_run_resumes_when_it_is_undone(finished, tmp_path, monkeypatch):
    root = tmp_path / "photos"
    shutil.copytree(finished[1], root)
    name = read_record(finished[0]).splits["test"][0].name
    content = (root / name).read_bytes()
    save = vit.run.jobs.classification.ImageClassificationJob.save

    def changing(*arguments):
        save(*arguments)
        (root / name).write_bytes(content + b"x")

    with monkeypatch.context() as patch:
        patch.setattr("vit.run.jobs.classification.ImageClassificationJob.save", changing)
        with pytest.raises(DataError, match=rf"{name} \(has other content\)"):
            vit.train(["data=folder", f"data.root={root}", *QUICK, f"run_dir={tmp_path / 'run'}"])
    (root / name).write_bytes(content)
    vit.train([f"resume={tmp_path / 'run'}"])
    assert_same(tmp_path / "run", finished[0])


def evaluated(run, tmp_path, *overrides):
    assert main(["evaluate", str(run), *overrides, "--json", str(tmp_path / "found.json")]) == 0
    return json.loads((tmp_path / "found.json").read_text())


@pytest.fixture
def grown(finished, tmp_path):
    """A copy of a finished run and of its photos, with more photos; the run's data has moved."""
    shutil.copytree(finished[0], tmp_path / "run")
    shutil.copytree(finished[1], tmp_path / "photos")
    photos(tmp_path / "photos", ["cat", "dog"], each=40, first=100)
    return tmp_path / "run", tmp_path / "photos"


def test_evaluate_measures_the_recorded_test_images(grown, finished, tmp_path):
    run, root = grown
    before = evaluated(finished[0], tmp_path)
    assert evaluated(run, tmp_path, f"data.root={root}") == before
    assert evaluated(run, tmp_path, "data=folder", f"data.root={root}") == before
    assert evaluated(run / "model", tmp_path, f"data.root={root}")["images"] == len(read_record(run).splits["test"])


def test_evaluate_by_a_bundle_alone_never_measures_training_images(grown, tmp_path):
    """Away from its run folder a bundle has no record: the rule alone keeps training images out of the test."""
    from vit.data import folder

    run, root = grown
    trained = {entry.name for key in ("train", "val") for entry in read_record(run).splits[key]}
    assert not trained & set(folder(root).splits["test"].names)


def test_evaluate_of_changed_data_and_other_splits(grown, tmp_path, capsys):
    run, root = grown
    name = read_record(run).splits["test"][0].name
    content = (root / name).read_bytes()
    (root / name).unlink()
    assert main(["evaluate", str(run), f"data.root={root}"]) == 1
    assert f"{name} (missing)" in " ".join(capsys.readouterr().err.split())
    (root / name).write_bytes(content)
    assert main(["evaluate", str(run), f"data.root={root}", "data.split_seed=3"]) == 2
    assert "data.split_seed=3 would evaluate on training samples" in " ".join(capsys.readouterr().err.split())
    gone = read_record(run).splits["train"][0].name
    (root / gone).unlink()  # of the training images nothing is measured
    evaluated(run, tmp_path, f"data.root={root}")


def test_training_images_under_other_names_are_counted(grown, tmp_path, caplog):
    run, root = grown
    entry = read_record(run).splits["train"][0]
    other = photos(tmp_path / "other" / "test", ["cat", "dog"], each=4, first=500)
    photos(tmp_path / "other" / "train", ["cat", "dog"], each=2, first=600)
    (other / "cat" / "copy.png").write_bytes((root / entry.name).read_bytes())
    evaluated(run, tmp_path, "data=folder", f"data.root={tmp_path / 'other'}")
    assert "1 of the 9 samples of other, test, has the same content as training samples of the model" in caplog.text


@pytest.mark.parametrize(("text", "message"), [
    ("[data, model]", "is not a config, but list"), ("data: {name: digits}", "is incomplete: it has no model"),
])
def test_a_file_that_is_no_whole_config_is_named(tmp_path, text, message):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=f"config.yaml {message}"):
        stored_config(tmp_path / "config.yaml")


def test_runs_of_older_versions_keep_their_splits(grown, finished, tmp_path):
    """Their splits depended on positions, and their records have no fingerprints."""
    run, root = grown
    record = read_record(run)
    whole = [entry[:2] for rows in record.splits.values() for entry in rows]
    old = {"train": whole[10:], "val": whole[:5], "test": whole[5:10]}
    for key, rows in old.items():
        (run / "splits" / f"{key}.tsv").write_text("".join(f"{name}\t{label}\n" for name, label in rows))
    (run / "manifest.json").unlink()
    found = evaluated(run, tmp_path, f"data.root={root}")
    assert found["images"] == 5


@pytest.mark.parametrize(("damage", "message"), [
    (lambda file: file.write_bytes(file.read_bytes()[:-20]), r"test.tsv is not the file that .*restore it"),
    (lambda file: file.write_bytes(b""), "test.tsv is not the file that this run wrote"),
    (lambda file: file.write_bytes(file.with_name("val.tsv").read_bytes()), "test.tsv is not the file"),
    (lambda file: file.unlink(), r"test.tsv is missing, so that its samples are unknown; restore the file"),
    (lambda file: (file.unlink(), file.mkdir()), r"test.tsv is missing"),
    (lambda file: (file.unlink(), file.symlink_to("nowhere")), r"test.tsv is missing"),
], ids=["cut", "empty", "another", "removed", "folder", "dangling"])
def test_damaged_lists_of_samples_are_never_measured_on(grown, tmp_path, capsys, damage, message):
    """The accuracy would be that of other samples, or of validation."""
    run, root = grown
    damage(run / "splits" / "test.tsv")
    with pytest.raises(ConfigError, match=message):
        read_record(run)
    assert main(["evaluate", str(run), f"data.root={root}"]) in (1, 2)
    assert "test.tsv" in capsys.readouterr().err


def test_a_run_whose_lists_of_samples_were_all_removed_is_evaluated(grown, finished, tmp_path, caplog):
    """As before a publication, in which file names may be private."""
    run, root = grown
    shutil.rmtree(run / "splits")
    assert read_record(run).splits == {}


def test_a_run_without_a_record_of_its_splits_has_those_of_its_data(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("vit.run.records.splits.log.propagate", True)
    source = object()
    assert DataRecord(tmp_path, {}, [], {}, {}).apply(source) is source
    assert f"{tmp_path} has no record of its splits" in caplog.text


def test_the_location_of_the_data_is_that_without_links(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "photos").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    data = {"_target_": "folder", "root": str(tmp_path / "photos")}
    record = DataRecord(tmp_path, data, [], {}, {})
    for root in ("photos", "link", "photos/../link"):
        assert record.is_at({**data, "root": str(tmp_path / root)})
    monkeypatch.chdir(tmp_path)
    assert record.is_at({**data, "root": "link"})
    for other in ({"root": str(tmp_path)}, {"_target_": "table"}, {"path": "photos"}, {"repo": "a/b"}):
        assert not record.is_at({**data, **other})


def test_names_of_any_characters_are_recorded(tmp_path):
    from vit.data import PairSource, PairSplit
    from vit.data.sample_names import PackedStrings
    from vit.run.records.folder import RunFolder

    odd = ["a\tb", "c\nd", "e\\t", "ü\udce4", " x ", ""]
    texts, names = PackedStrings(odd), PackedStrings([f"{i}{name}" for i, name in enumerate(odd)])
    split = PairSplit(texts, names, texts)
    folder = RunFolder(tmp_path)
    write_record(folder, PairSource("odd", {"train": split}), [("l\tm", "bad\nreason")])
    folder.write("config.yaml", {"data": {}})
    record = read_record(tmp_path)
    assert record.left_out == {"l\tm": "bad\nreason"}
    assert [entry.label for entry in record.splits["train"]] == odd
    assert [entry.name for entry in record.splits["train"]] == list(split.names)
    assert all(len(entry.fingerprint) == 16 for entry in record.splits["train"])


def test_runs_without_the_key_strip_keep_the_white_space_around_their_texts(tmp_path):
    from vit.run.config.composing import compose, resolve
    from vit.run.parts.data_source import build_source
    from vit.run.records.folder import RunFolder

    table = tmp_path / "t.tsv"
    table.write_text("en\tde\n" + "".join(f" a {i}\tb {i} \n" for i in range(20)))
    now = resolve(compose(["data=parallel", f"data.root={table}"]))["data"]
    old = {key: value for key, value in now.items() if key != "strip"}
    assert all(target == target.strip() for target in build_source(now).splits["train"].targets)
    folder = RunFolder(tmp_path)
    write_record(folder, build_source(old), [])
    folder.write("config.yaml", {"data": old})
    record = read_record(tmp_path)
    with pytest.raises(DataError, match="20 of the 20 samples"):
        record.apply(build_source(now))
    found = record.apply(build_source(record.with_own_reading(now)))
    assert list(found.splits["val"].targets) == [entry.label for entry in record.splits["val"]]
    folder.write("config.yaml", {"data": now})
    assert read_record(tmp_path).with_own_reading(now) == now


REFUSED = ["seed=1", "recipe.batch_size=10", "data.split_seed=1", "data.balance=loss", "recipe.accumulate=2",
           "data.fractions=[0.6,0.2,0.2]", "model.dropout=0.5", "precision=bf16-mixed",
           "callbacks.monitor=val/loss"]


@pytest.mark.parametrize("override", REFUSED)
def test_what_would_draw_other_numbers_is_refused(stopped, override):
    key = override.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"this command changes {key} from .*add allow_change={key}"):
        vit.train([f"resume={stopped[0]}", override])


def test_what_is_allowed_to_change(stopped, capsys):
    run, _ = stopped
    with pytest.raises(ConfigError, match="add allow_change=seed,data.split_seed$"):
        vit.train([f"resume={run}", "seed=1", "data.split_seed=1", "recipe.epochs=2"])
    before = read_record(run).splits
    vit.train([f"resume={run}", "seed=1", "data.split_seed=1", "recipe.epochs=2", "trainer.log_every_n_steps=3",
               "allow_change=seed,data.split_seed"])
    printed = capsys.readouterr().out
    assert "changed on resuming: seed from 0 to 1" in printed and "recipe.epochs from 3 to 2" in printed
    assert read_record(run).splits != before


def test_samples_that_are_new_in_a_resumed_run_are_not_left_out_for_a_fault():
    left_out = [("a.tsv line 2", "de is empty"), ("a.tsv line 3", NEW)]
    assert Job.omitted(SimpleNamespace(source=SimpleNamespace(left_out=left_out))) == left_out[:1]
