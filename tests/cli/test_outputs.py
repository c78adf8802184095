"""Outputs of commands are checked before the computation, and an option without effect is named."""

import gc
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import vit
from tests.inference.tiny_models import save_masked
from vit.bundle import save_bundle
from vit.cli import main
from vit.cli.file_checks import check_not_an_input, files_of_model
from vit.data import Preprocessing
from vit.files.outputs import write_output

predict = importlib.import_module("vit.cli.prediction.predict")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A classifier of digits that is not calibrated."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    network = vit.create_model("vit_tiny", image_size=8, patch_size=4, num_classes=10, depth=1)
    save_bundle(folder, network, list("0123456789"), Preprocessing(size=8), extra={"data": ["data=digits"]})
    return folder


@pytest.mark.parametrize("command", [
    ["evaluate", "{model}", "--output", "{file}"],
    ["evaluate", "{model}", "--output", "{file}/new"],
    ["calibrate", "{model}", "--output", "{file}/new"],
    ["next", "{model}", "{photos}", "--output", "{file}/new"],
])
def test_a_folder_that_cannot_be_made_is_reported_before_the_computation(model, tmp_path, capfd, command):
    file = tmp_path / "file"
    file.write_text("")
    assert main([each.format(model=model, file=file, photos=tmp_path) for each in command]) == 1
    printed = capfd.readouterr()
    assert f"{file} is not a folder; choose another one" in printed.err and not printed.out


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_permission_is_reported_before_the_computation(model, tmp_path, capfd):
    (tmp_path / "locked").mkdir(mode=0o555)
    assert main(["evaluate", str(model), "--output", str(tmp_path / "locked" / "new")]) == 1
    assert "no permission for" in capfd.readouterr().err


def test_an_output_that_a_masked_language_model_does_not_write_is_named(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("vit.cli.evaluation.measurements.measure", lambda predictor, task: {})
    folder = save_masked(tmp_path / "masked")
    command = ["evaluate", str(folder), "data=digits", "--output", str(tmp_path / "new")]
    assert main(command) == 0
    assert "--output writes nothing" in capfd.readouterr().err


@pytest.mark.parametrize("command", [
    ["probe", "{model}", "--save", "{file}.npz", "--json", "{folder}/./file.npz"],
    ["audit", "--json", "{file}", "--near-copies", "--html", "{file}"],
    ["audit", "--labels", "{model}", "--csv", "{file}", "--html", "{file}"],
])
def test_two_outputs_are_two_files(model, tmp_path, capfd, command):
    assert main([each.format(model=model, folder=tmp_path, file=tmp_path / "file") for each in command]) == 1
    assert "choose another path for one of them" in capfd.readouterr().err and not list(tmp_path.iterdir())


def test_outputs_may_be_one_device(model, capfd):
    assert main(["probe", str(model), "x=1", "--save", "/dev/null", "--json", "/dev/null"]) == 2
    assert "features are saved as" in capfd.readouterr().err


@pytest.mark.parametrize(("command", "message"), [
    (["probe", "{model}", "{photos}", "--save", "{photos}/f.npz", "--json", "{photos}/f.json"],
     "--json has no effect"),
    (["probe", "{model}", "{photos}", "--save", "{photos}/f.npz", "--k", "3"], "--k has no effect"),
    (["audit", "--device", "nope"], "--device has no effect"),
    (["attention", "{model}", "--positions", "--layer", "0", "-o", "{photos}/f.png"], "--layer has no effect"),
    (["explain", "{model}", "--tokens", "4"], "--tokens has no effect"),
    (["audit", "--labels", "{model}", "--seconds", "3"], "--seconds has no effect"),
])
def test_an_option_without_effect_is_named(model, tmp_path, capfd, command, message):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    main([each.format(model=model, photos=tmp_path) for each in command])
    assert message in capfd.readouterr().err and not (tmp_path / "f.json").exists()


@pytest.mark.parametrize("command", [
    ["predict", "{model}", "{photo}"],
    ["next", "{model}", "{folder}", "-o", "{folder}/next"],
    ["evaluate", "{model}", "data=digits"],
    ["calibrate", "{model}", "data=digits", "-o", "{folder}/new"],
    ["report", "{model}", "data=digits", "-o", "{folder}/report.html"],
])
def test_a_classifier_without_its_head_predicts_no_classes(tmp_path, capfd, command):
    network = vit.create_model("vit_tiny", image_size=8, patch_size=4, num_classes=0, depth=1)
    save_bundle(tmp_path / "model", network, [], Preprocessing(size=8))
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    assert main([each.format(model=tmp_path / "model", folder=tmp_path, photo=tmp_path / "a.png")
                 for each in command]) == 1
    assert "has no head, so it predicts no classes; init_from=" in capfd.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is always full")
def test_a_full_disk_is_reported_with_the_file(model, tmp_path, capfd):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    for command in (["predict", str(model), str(tmp_path / "a.png"), "--output", "/dev/full"],
                    ["probe", str(model), "--k", "1", "--json", "/dev/full"]):
        assert main(command) == 1
        assert capfd.readouterr().err.endswith(f"error: {command[-2]} /dev/full: No space left on device\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is always full")
def test_a_full_disk_has_no_traceback_for_an_excel_table(model, tmp_path, capfd):
    pytest.importorskip("openpyxl")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "full.xlsx").symlink_to("/dev/full")
    assert main(["predict", str(model), str(tmp_path / "a.png"), "--output", str(tmp_path / "full.xlsx")]) == 1
    gc.collect()
    error = capfd.readouterr().err
    assert "full.xlsx: No space left on device" in error and "Traceback" not in error


def test_an_interrupt_is_reported_and_the_file_is_named_as_incomplete(model, tmp_path, capfd, monkeypatch):
    for name in "abc":
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.png")
    row = predict.error_row

    def interrupted(error):
        raise KeyboardInterrupt

    monkeypatch.setattr(predict, "error_row", interrupted)
    command = ["predict", str(model), *(str(tmp_path / f"{name}.png") for name in ("a", "none", "c")), "-o"]
    incomplete = tmp_path / "p.incomplete.json"
    for earlier in (None, "earlier"):
        if earlier:
            (tmp_path / "p.json").write_text(earlier)
        assert main([*command, str(tmp_path / "p.json")]) == 130
        printed = capfd.readouterr().err
        assert f"{incomplete} is incomplete: it has the first 1 row" in printed
        assert printed.endswith("error: interrupted\n")
        assert (f"{tmp_path}/p.json is the earlier file, unchanged" in printed) == bool(earlier)
        assert [each["file"] for each in json.loads(incomplete.read_text())] == [str(tmp_path / "a.png")]
    assert (tmp_path / "p.json").read_text() == "earlier"
    monkeypatch.setattr(predict, "error_row", row)
    assert main([*command, str(tmp_path / "p.json")]) == 3 and "incomplete" not in capfd.readouterr().err
    assert len(json.loads((tmp_path / "p.json").read_text())) == 3 and not incomplete.exists()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_stop_signal_ends_a_command_as_ctrl_c_does(model, tmp_path, capfd, monkeypatch, name):
    """`convert` leaves neither the file nor temporary ones, `predict` names the incomplete file."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    signum = signal.Signals[name]

    def stopped(*arguments, **options):
        signal.raise_signal(signum)

    monkeypatch.setattr("vit.exchange.convert.check_same", stopped)
    monkeypatch.setattr(predict, "error_row", stopped)
    before, handler = sorted(tmp_path.iterdir()), signal.getsignal(signum)
    command = ["convert", str(model), str(tmp_path / "new"), "--to", "bundle", "--num-classes", "3"]
    assert main(command) == 128 + signum and capfd.readouterr().err.endswith(f"\nerror: stopped by {name}\n")
    assert sorted(tmp_path.iterdir()) == before and signal.getsignal(signum) == handler
    assert main(["predict", str(model), str(tmp_path / "a.png"), "none", "-o", str(tmp_path / "p.csv")]) == 128 + signum
    printed = capfd.readouterr().err
    assert f"{tmp_path / 'p.incomplete.csv'} is incomplete: it has the first 1 row" in printed
    assert printed.endswith(f"error: stopped by {name}\n") and not (tmp_path / "p.csv").exists()
    assert str(tmp_path / "a.png") in (tmp_path / "p.incomplete.csv").read_text()


@pytest.mark.parametrize("part", ["make_context", "invoke"])
def test_an_interrupt_while_the_arguments_are_read_has_a_message_too(capfd, monkeypatch, part):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"typer.core.TyperGroup.{part}", interrupted)
    assert main(["models"]) == 130 and capfd.readouterr().err == "error: interrupted\n"


@pytest.mark.parametrize("command", [
    ["card", "{model}", "-o", "{file}.md"],
    ["explain", "{model}", "-o", "{file}.svg"],
    ["probe", "{model}", "{photos}", "--save", "{file}.npz"],
    ["probe", "{model}", "{photos}", "--save", "{file}.parquet"],
    ["attention", "{model}", "{photos}/a.png", "-o", "{file}.html"],
    ["attention", "{model}", "{photos}/a.png", "-o", "{file}.png"],
    ["attention", "{model}", "{photos}/a.png", "-o", "{file}.svg"],
    ["runs", "{photos}", "--csv", "{file}.csv"],
    ["runs", "{photos}", "--json", "{file}.json"],
])
def test_a_full_disk_leaves_the_earlier_file_unchanged(model, tmp_path, capfd, command):
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "photos" / "a.png")
    command = [each.format(model=model, photos=tmp_path / "photos", file=tmp_path / "out") for each in command]
    if command[0] == "card":
        command.append("--overwrite")
    file = Path(command[-1] if command[-1] != "--overwrite" else command[-2])
    file.write_text("earlier")
    file.chmod(0o600)
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))  # bytes; Python ignores SIGXFSZ
    try:
        code = main(command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 1 and file.read_text() == "earlier" and len(list(tmp_path.iterdir())) == 2
    assert main(command) == 0 and file.read_bytes() != b"earlier" and file.stat().st_mode & 0o777 == 0o600


def test_a_link_and_a_device_remain_what_they_are(model, tmp_path):
    (tmp_path / "link.md").symlink_to("real.md")
    assert main(["card", str(model), "-o", str(tmp_path / "link.md")]) == 0
    assert (tmp_path / "link.md").is_symlink() and (tmp_path / "real.md").stat().st_size
    write_output(tmp_path / "link.md", b"new")
    assert (tmp_path / "link.md").is_symlink() and (tmp_path / "real.md").read_bytes() == b"new"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_output(tmp_path / "pipe", lambda file: file.write(b"row"))
    assert os.read(reader, 10) == b"row" and (tmp_path / "pipe").is_fifo()
    os.close(reader)


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="a path of Linux and macOS")
@pytest.mark.parametrize("stdout", ["pipe", "file"])
def test_standard_output_is_a_file_by_its_path(tmp_path, stdout):
    program = "from vit.cli import main; main(['runs', '.', '--json', '/dev/stdout'])"
    command = [sys.executable, "-c", program]
    with open(tmp_path / "out", "wb") as file:
        done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE if stdout == "pipe" else file,
                              env=os.environ | {"PYTHONPATH": str(Path(vit.__file__).parents[1])})
    assert done.returncode == 0
    assert b'"runs": []' in (done.stdout or (tmp_path / "out").read_bytes())
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(("option", "command"), [
    ("--output", ["predict", "{model}", "{photo}", "-o", "{model}/config.json"]),
    ("--json", ["evaluate", "{model}", "--json", "{model}/config.json"]),
    ("--output", ["attention", "{model}", "{photo}", "-o", "{model}/config.json"]),
    ("--json", ["probe", "{model}", "data=table", "data.path={file}", "--json", "{model}/config.json"]),
    ("--json", ["probe", "{model}", "data=table", "data.path=t.csv", "data.root={root}", "--json", "{file}"]),
    ("--json", ["compare", "{model}", "{model}", "--json", "{model}/config.json"]),
    ("--json", ["audit", "data=table", "data.path=t.csv", "data.root={root}", "--json", "{file}"]),
    ("--json", ["evaluate", "{model}", "data=table", "data.path={file}", "--json", "{file}"]),
    ("--json", ["audit", "data=table", "data.path='{file}'", "--json", "{file}"]),
    ("--json", ["audit", "data=table", "data.root={photo.parent}", "data.path=t.csv", "--json", "{file}"]),
    ("--json", ["audit", "data=table", "data.path={photo.parent}", "data.train=t", "--json", "{file}"]),
    ("--html", ["audit", "data=table", "data.path={file}", "data.root={root}", "--near-copies", "--html", "{file}"]),
    ("--html", ["audit", "--labels", "{model}", "--html", "{model}/config.json"]),
    ("--json", ["audit", "data=table", "data.path={file}", "--model", "{model}", "--json", "{model}/config.json"]),
    ("--json", ["probe", "{model}", "--json", "{model}/config.json"]),
    ("--predictions", ["cross-validate", "data=table", "data.path={file}", "--predictions", "{file}"]),
])
def test_neither_the_table_of_the_data_nor_the_model_is_overwritten(
    model, tmp_path, monkeypatch, capfd, option, command
):
    monkeypatch.chdir(tmp_path)
    file, config = tmp_path / "t.csv", (model / "config.json").read_bytes()
    file.write_text("file,label\n")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    paths = {"model": model, "file": file, "photo": tmp_path / "a.png", "root": tmp_path}
    assert main([each.format(**paths) for each in command]) == 1
    error = capfd.readouterr().err
    assert f"{option} " in error and "would overwrite a" in error and "choose another file" in error
    assert file.read_text() == "file,label\n" and (model / "config.json").read_bytes() == config


@pytest.mark.parametrize("name", ["metrics.csv", "environment.json", "audit.json", "out_of_fold.csv"])
def test_no_record_of_a_run_is_overwritten(tmp_path, name):
    """Of the run whose folder is given as the model."""
    record = tmp_path / name
    record.write_text("recorded")
    with pytest.raises(ValueError, match="would overwrite an input"):
        check_not_an_input(record, files_of_model(tmp_path))


@pytest.mark.parametrize("command", [
    ["runs", "{run}", "--json", "{run}/metrics.json"],
    ["runs", "{run}", "--csv", "{run}/metrics.csv"],
    ["runs", "{run}", "--json", "{run}/manifest.json"],
    ["predict", "{model}", "{run}/a.png", "-o", "{run}/log.txt"],
    ["predict", "{model}", "{run}/a.png", "-o", "{run}/checkpoints/last.ckpt"],
    ["card", "{model}", "--overwrite", "-o", "{run}/metrics.json"],
    ["bench", "step", "--json", "{run}/metrics.json"],
    ["evaluate", "{model}", "--output", "{run}"],
])
def test_no_command_replaces_a_file_of_a_run(model, tmp_path, capsys, command):
    """Also where the run is not that of the model."""
    names = ("config.yaml", "metrics.json", "metrics.csv", "manifest.json", "log.txt", "predictions.csv",
             "checkpoints/last.ckpt")
    (tmp_path / "checkpoints").mkdir()
    for name in names:
        (tmp_path / name).write_text("recorded")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    assert main([each.format(model=model, run=tmp_path) for each in command]) in (1, 2)
    error = capsys.readouterr().err
    assert any(each in error for each in ("would overwrite a file of a model or run", "would be replaced",
                                          "not written as"))
    assert all((tmp_path / name).read_text() == "recorded" for name in names)


@pytest.mark.parametrize(("command", "message"), [
    (["runs", "{folder}", "--csv", "{folder}/a", "--json", "{folder}/a"], "--csv and --json both name"),
    (["runs", "{folder}", "--html", "{folder}/a.csv"], "--html {folder}/a.csv: the file is not written as .csv"),
    (["runs", "{folder}", "--json", "{folder}/a.html"], "--json {folder}/a.html: the file is not written as .html"),
    (["predict", "{model}", "x.png", "-o", "{folder}/a.png"], "--output {folder}/a.png: the file is not written as"),
    (["evaluate", "{model}", "--json", "{folder}/a.csv"], "--json {folder}/a.csv: the table is not written as .csv"),
    (["runs", "{folder}", "--json", "-"], "--json - stands for standard input only; write /dev/stdout"),
])
def test_an_output_of_another_kind_is_no_output(model, tmp_path, capsys, command, message):
    assert main([each.format(model=model, folder=tmp_path) for each in command]) in (1, 2)
    assert message.format(folder=tmp_path) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
