"""The commands: help, outputs, exit codes and the modules that they import."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import timm
import torch
import typer
from PIL import Image
from rich.text import Text
from safetensors.torch import save_file

import vit
from tests import commands
from vit.bundle import save_bundle
from vit.cli import app, main
from vit.cli.data.data_sets import recorded_overrides
from vit.data import Preprocessing, digits
from vit.evaluation import evaluate
from vit.report.tables import TABLES, open_table
from vit.run.processes.separate_process import PARENT

DIGITS = [str(i) for i in range(10)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    network = vit.create_model("vit_tiny", image_size=8, patch_size=4, num_classes=10, depth=1)
    torch.nn.init.normal_(network.head.weight, std=0.3)
    preprocessing = Preprocessing(size=(8, 8), resize="squash", mean=(0.3,) * 3, std=(0.35,) * 3)
    extra = {"data": ["data=digits"], "evaluation": {"batch_size": 50, "precision": "32-true"}}
    return save_bundle(tmp_path_factory.mktemp("run") / "model", network, DIGITS, preprocessing, extra=extra)


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(4):
        Image.fromarray(np.random.default_rng(i).integers(0, 255, (20, 30, 3), np.uint8)).save(folder / f"{i}.png")
    return folder


def test_help_is_printed_without_torch():
    code = ("import sys; from vit.cli import main; code = main(['--help']); "
            "sys.exit(code or len({'torch', 'numpy', 'matplotlib', 'hydra', 'PIL'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for command in ("train", "predict", "evaluate", "attention", "explain", "audit", "models"):
        assert command in done.stdout


@pytest.mark.parametrize("command", ["predict", "report", "next", "bench", "audit", "convert"])
def test_help_has_whole_names_and_paragraphs(capsys, monkeypatch, command):
    """At 55 columns two options were both `--length-pen…`; paragraphs were broken where the lines of the code end."""
    monkeypatch.setenv("COLUMNS", "55")
    assert main([command, "--help"]) == 0
    narrow = capsys.readouterr().out
    assert "…" not in narrow and max(map(len, narrow.splitlines())) <= 55
    monkeypatch.setenv("COLUMNS", "200")
    assert main([command, "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.partition("╭")[0].splitlines()]
    broken = [line for line, following in zip(lines, lines[1:], strict=False)
              if line and following and len(line) + len(following.split()[0]) < 195]
    assert not broken and "[[" not in lines[1]


def test_an_invalid_override_is_reported_without_torch():
    code = ("import sys; from vit.cli import main\n"
            "for command in (['audit'], ['evaluate', '.'], ['cross-validate'], ['compare-finetuning']):\n"
            "    assert [main([*command, override]) for override in ('data=Digits', 'photos')] == [2, 2]\n"
            "assert 'torch' not in sys.modules\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("data=Digits: no such data; did you mean digits?") == 4
    assert done.stderr.count("'photos' is not of the form key=value") == 4


def test_a_missing_path_is_reported_without_torch(tmp_path):
    (tmp_path / "photos").mkdir()
    arguments = [
        "train init_from=photso", "train resume=photso", "train distill=soft distill.teacher=photso",
        "train data=folder data.root=photso", "train data=digits data.corrections=photso",
        "train data=mnist data.root=~/photso",
        "train data=spelled_numbers model.vectors=photso", "cross-validate data=folder data.root=photso",
        "predict photso x.png", "evaluate photso", "evaluate photos data=folder data.root=photso", "report photso",
        "explain ./photso", "convert photso out --to timm", "compare photos photso", "next photos photso",
        "audit data=digits --model photso", "push photso owner/name",
    ]
    code = ("from vit.cli import main; import os, sys\n"
            "os.environ['HOME'] = os.getcwd()\n"
            f"codes = [main(each.split()) for each in {arguments}]\n"
            "assert 0 not in codes and 'torch' not in sys.modules, codes\n")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed = done.stderr.splitlines()
    assert len(printed) == len(arguments)
    assert all("did you mean" in each and "photos" in each for each in printed), done.stderr


@pytest.mark.parametrize(("script", "module"), [(commands.VIT, "typer"), (commands.TRAIN, "hydra")])
def test_an_interrupt_of_the_imports_has_no_traceback(script, module):
    code = ("import runpy, sys\n"
            "class Interrupting:\n"
            "    def find_spec(self, name, path, target=None):\n"
            "        if name == sys.argv[2]: raise KeyboardInterrupt\n"
            "sys.meta_path.insert(0, Interrupting())\n"
            "runpy.run_path(sys.argv[1], run_name='__main__')\n")
    done = subprocess.run([sys.executable, "-c", code, script, module], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


@pytest.mark.parametrize("module", ["typer", "hydra"])  # before and after the command handles interrupts
def test_a_run_that_has_not_begun_leaves_the_message_to_the_command_that_starts_it(module):
    code = ("import runpy, sys\n"
            "class Interrupting:\n"
            "    def find_spec(self, name, path, target=None):\n"
            f"        if name == {module!r}: raise KeyboardInterrupt\n"
            "sys.meta_path.insert(0, Interrupting())\n"
            f"runpy.run_path({commands.VIT!r}, run_name='__main__')\n")
    environment = {**os.environ, PARENT: str(os.getpid())}
    done = subprocess.run([sys.executable, "-c", code, "train"], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_commands_on_models_and_data_import_only_what_they_use(model, photos, tmp_path):
    """In one process, those that draw last. The import of Lightning, whose metrics import transformers and torchvision,
    takes longer than these commands do otherwise.
    """
    lines = [
        ["runs", "."], ["predict", model, photos], ["evaluate", model], ["calibrate", model, "--output", "calibrated"],
        ["audit", "data=digits", "--seconds", 0.1], ["next", model, photos, "--count", 2],
        ["report", model, "--output", "page.html", "--attention", 0]]
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text("name: digits\n")
    (tmp_path / "run/metrics.csv").write_text("epoch,step,val/accuracy\n0,9,0.5\n")
    code = ("import json, sys; from vit.cli import main\n"
            "heavy = {'pytorch_lightning', 'lightning_fabric', 'torchmetrics', 'transformers', 'torchvision', 'triton',"
            " 'matplotlib', 'torch'}\n"
            "for arguments in json.loads(sys.argv[1]):\n"
            "    assert main(arguments) == 0, arguments\n"
            "    print(arguments[0], *sorted(heavy & sys.modules.keys()), file=sys.stderr)\n")
    line = json.dumps([list(map(str, arguments)) for arguments in lines])
    done = subprocess.run([sys.executable, "-c", code, line], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = done.stderr.splitlines()
    assert {"runs", "predict torch", "evaluate torch", "calibrate torch", "audit torch"} <= set(printed), done.stderr
    assert printed[-1] == "report matplotlib torch" and "digits" in done.stdout


def test_predict_as_a_real_command(model, photos):
    (photos / "bad.jpg").write_bytes(b"no image")
    code, out, err = commands.run(commands.VIT, ["predict", model, photos, "--top-k", 3], photos)
    assert code == 3, err
    *rows, last = csv.DictReader(io.StringIO(out))
    assert last["file"].endswith("bad.jpg") and last["error"].startswith("cannot be opened") and not last["label"]
    expected = vit.load(model).predict([photos / f"{i}.png" for i in range(4)], top_k=3)
    assert [row["file"] for row in rows] == [prediction.source for prediction in expected]
    assert [(row["label"], row["label_2"], row["label_3"]) for row in rows] == [each.names for each in expected]
    assert float(rows[0]["probability_3"]) == pytest.approx(expected[0].probabilities[2], abs=1e-6)
    assert "1 of 5 files could not be read:" in err and "bad.jpg" in err


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_predict_writes_files_of_every_format(model, photos, tmp_path, capsys, form):
    output = tmp_path / f"predictions.{form}"
    assert main(["predict", str(model), str(photos), "-k", "2", "--format", form, "--output", str(output)]) == 0
    assert "wrote 4 predictions" in capsys.readouterr().err
    if form == "parquet":
        rows = pyarrow.parquet.read_table(output).to_pylist()
    elif form == "json":
        rows = json.loads(output.read_text())
    else:
        rows = list(csv.DictReader(output.open()))
    assert [Path(row["file"]).name for row in rows] == ["0.png", "1.png", "2.png", "3.png"]
    assert list(rows[0]) == ["file", "label", "probability", "label_2", "probability_2", "error"]
    assert not rows[0]["error"]


def test_predict_fails_where_nothing_could_be_read(model, tmp_path, capsys):
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    assert main(["predict", str(model), str(tmp_path / "bad.jpg"), str(tmp_path / "missing.png")]) == 1
    printed = capsys.readouterr()
    rows = csv.DictReader(printed.out.splitlines())
    assert [row["error"][:14] for row in rows] == ["cannot be open", "cannot be read"]
    assert "2 of 2 files could not be read:" in printed.err


def test_predict_accounts_for_every_file(model, photos, tmp_path, capsys):
    (photos / "notes.txt").write_text("x")
    (photos / ".hidden.png").write_bytes((photos / "0.png").read_bytes())
    (photos / "1.png").write_bytes(b"no image")
    (tmp_path / "more").mkdir()
    (photos / "2.png").rename(tmp_path / "more" / "2.png")
    (photos / "more").symlink_to(tmp_path / "more", target_is_directory=True)
    assert main(["predict", str(model), str(photos), "--format", "json"]) == 3
    printed = capsys.readouterr()
    assert [Path(row["file"]).name for row in json.loads(printed.out)] == ["0.png", "1.png", "3.png", "2.png"]
    assert "1 of 4 files could not be read:" in printed.err
    assert "left out 2 of 6 files: 1 hidden, 1 not an image (.txt), such as" in printed.err
    assert main(["predict", str(model), str(photos), "--strict"]) == 1
    predictions = vit.load(model).predict(photos, top_k=99, on_error="skip")
    assert len(predictions) == 3 and len(predictions.unreadable) == 1 and len(predictions.left_out) == 2
    assert len(predictions[0].names) == 10


def test_errors_in_all_first_rows_do_not_decide_the_columns_of_a_parquet_file(tmp_path):
    with open_table(tmp_path / "a.parquet", ["file", "label", "probability", "error"], TABLES["parquet"]) as rows:
        for i in range(1000):
            rows.write({"file": str(i), "error": "bad"})
        rows.write({"file": "x", "label": "a", "probability": 0.5})
    found = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert found[0]["label"] is None and found[1000] == {"file": "x", "label": "a", "probability": 0.5, "error": None}


def test_a_large_image_is_read_on_request(photos, tmp_path, capsys):
    network = vit.create_model("vit_tiny", image_size=8, patch_size=4, num_classes=2, depth=1)
    model = save_bundle(tmp_path / "model", network, ["a", "b"], Preprocessing(size=(8, 8), max_pixels=500))
    assert main(["predict", str(model), str(photos)]) == 1
    assert "30x20 pixels are more than max_pixels=500" in capsys.readouterr().err
    assert main(["predict", str(model), str(photos), "--max-pixels", "600"]) == 0


def test_predict_gives_at_most_as_many_predictions_as_there_are_classes(model, photos, capsys):
    assert main(["predict", str(model), str(photos / "0.png"), "-k", "99"]) == 0
    assert "label_10" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(("arguments", "code", "message"), [
    (["predict", "nowhere", "x.png"], 1, "nowhere: there is no such model"),
    (["predict", "{photos}", "{photos}"], 1, "holds no model"),
    (["predict", "{model}", "{model}"], 1, "has no image"),
    (["predict", "{model}", "{photos}", "--output", "{photos}"], 1, "is a folder"),
    (["predict", "{model}", "{photos}", "--output", "{photos}/no/where.csv"], 1, "is not a folder"),
    (["predict", "{model}", "{photos}", "--format", "parquet"], 2, "add --output"),
    (["predict", "{model}", "{photos}", "--format", "xml"], 2, "xml"),
    (["predict", "{model}", "{photos}", "--top-k", "0"], 2, "top-k"),
    (["predict", "{model}"], 2, "images"),
    (["pedict"], 2, "Did you mean"),
    (["predict", "{model}", "{photos}", "--top-k", "x"], 2, "--top-k x: must be a whole number"),
    (["predict", "{model}", "{photos}", "--batch-size", "9" * 20], 2, f"--batch-size {'9' * 20}: must be at most"),
    (["predict", "{model}", "{photos}", "--precision", "bf16"], 2, "did you mean bf16-mixed?"),
    (["predict", "{model}", "{photos}", "--set", "2"], 2, "--set 2 must be between 0 and 1"),
    (["predict", "{model}", ""], 2, "an argument is empty; pass a path"),
    (["predict", "", "{photos}"], 2, "an argument is empty; pass a path"),
    (["predict", "{model}", "{photos}", "-o", ""], 2, "--output: the path is empty"),
    (["predict", "{photos}", "{model}"], 2, "photos holds no model, but {model} does; the model is the first argument"),
    (["attention", "{photos}/0.png", "{model}"], 2, "0.png holds no model, but {model} does"),
    (["next", "{photos}", "{model}"], 2, "photos holds no model, but {model} does"),
    (["predict", "{model}", "{photos}", "--device", "gpu"], 1, "--device gpu is no device of torch; use cuda"),
    (["attention", "{model}", "{photos}/0.png", "-o", "a.txt"], 2, "--output a.txt must end with .png"),
    (["attention", "{model}", "--positions", "--similarity"], 2, "--similarity shows the tokens of one input"),
    (["attention", "{model}", "{photos}/0.png", "-o", "a.html", "--dark"], 2, "--dark is for figures"),
    (["convert", "{model}", "new", "--to", "timm", "--num-heads", "0"], 2, "--num-heads 0 must be"),
    (["calibrate", "{model}", "data=digits", "-o", "new", "--split", "train"], 2, "--split train: a model is more"),
    (["report", "{model}", "--severity", "3"], 2, "--severity belongs to --corruptions"),
    (["audit", "--limit", "3"], 2, "--csv and --limit belong to --labels"),
    (["compare", "{photos}", "{photos}/0.png"], 1, "0.png is a file; pass the folder"),
    (["probe", "{model}", "--k", ""], 2, "--k '': must be numbers of neighbours"),
    (["compare-finetuning", "--methods", "full,full"], 2, "--methods full,full: must be two or more different ones"),
    (["runs", "{photos}/0.png"], 1, "0.png is a file; pass the folder that holds the runs"),
    (["predict", "model", "photos", "--topk", "3"], 2, "No such option: --topk; did you mean --top-k? (vit predict"),
    (["models", "vit_colossal*"], 1, "no model name matches 'vit_colossal*'"),
    (["evaluate", "{model}", "data=digitz"], 2, "digits"),
    (["evaluate", "{model}", "--split", "tset"], 2, "'tset' is not one of train, val, test, all; did you mean test?"),
    (["report", "{model}", "--split", "validation"], 2, "is not one of train, val, test, all; did you mean val?"),
    (["calibrate", "{model}", "--split", "vall", "-o", "{model}/new"], 2, "'vall' is not one of train, val, test, all"),
    (["evaluate", "{model}", "--data", "digits"], 2, "No such option: --data; write data=digits, without dashes"),
    (["audit", "--data-dir={photos}"], 2, "--data-dir; write data=folder data.root={photos}, without dashes"),
    (["cross-validate", "--lr", "0.1"], 2, "No such option: --lr; write recipe.optimizer.lr=0.1, without dashes"),
])
def test_errors_are_one_line_and_a_code(model, photos, capsys, arguments, code, message):
    arguments = [argument.format(model=model, photos=photos) for argument in arguments]
    assert main(arguments) == code
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ") and message.format(photos=photos, model=model) in printed.err
    assert printed.err.count("\n") == 1 and "Traceback" not in printed.err
    assert not printed.out


def test_debug_shows_where_an_error_came_from(capsys, monkeypatch):
    with pytest.raises(FileNotFoundError):
        main(["predict", "nowhere", "x.png", "--debug"])
    monkeypatch.setenv("VIT_DEBUG", "1")
    with pytest.raises(FileNotFoundError):
        main(["predict", "nowhere", "x.png"])


def test_an_unexpected_error_names_its_kind(model, photos, capsys, monkeypatch):
    def broken(*args, **kwargs):
        raise KeyError("lost")

    monkeypatch.setattr("vit.inference.load", broken)
    assert main(["predict", str(model), str(photos)]) == 1
    assert "error: KeyError: 'lost' (add --debug for the traceback)" in capsys.readouterr().err


def test_a_closed_pipe_ends_without_a_message(model, photos):
    command = f"{sys.executable} -m vit predict {model} {photos} {photos} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout == "file,label,probability,error\n" and not done.stderr


def test_evaluate_gives_the_numbers_of_the_recorded_data_set_again(model, tmp_path, capsys):
    assert main(["evaluate", str(model), "--json", str(tmp_path / "n.json"), "--output", str(tmp_path / "out")]) == 0
    predictor = vit.load(model)
    expected = evaluate(predictor.model, predictor.preprocessing, digits().splits["test"], DIGITS, batch_size=50)
    numbers = json.loads((tmp_path / "n.json").read_text())
    for name, value in expected.metrics.items():
        assert numbers[f"test/{name}"] == value
        assert repr(value) in capsys.readouterr().out if name == "accuracy" else True
    assert numbers["confusion"] == expected.confusion.tolist() and numbers["images"] == 360
    assert {item.name for item in (tmp_path / "out").iterdir()} == {"predictions.csv", "confusion.png", "mistakes.png",
                                                                  "reliability.png"}


def test_a_data_set_of_the_command_replaces_the_recorded_one():
    extra = {"data": ["data=folder", "data.root=a"]}
    assert recorded_overrides(extra, []) == ["data=folder", "data.root=a"]
    assert recorded_overrides(extra, ["data.root=b"]) == ["data=folder", "data.root=a"]
    assert recorded_overrides(extra, ["data=digits"]) == []
    assert recorded_overrides({"data": []}, []) == []  # trained on the default set, without an override


def test_evaluate_needs_a_data_set_when_none_is_recorded(tmp_path, capsys):
    network = vit.create_model("vit_tiny", image_size=8, patch_size=4, num_classes=10, depth=1)
    folder = save_bundle(tmp_path / "model", network, DIGITS, Preprocessing(size=(8, 8)))
    assert main(["evaluate", str(folder)]) == 1
    assert "name a data set: data=folder" in capsys.readouterr().err
    assert main(["evaluate", str(folder), "data=digits", "--split", "val"]) == 0


def test_audit_prints_and_writes_what_it_found(tmp_path, capsys):
    for split in ("train", "test"):
        for name in ("left", "right"):
            (tmp_path / "set" / split / name).mkdir(parents=True)
            for i in range(8):
                pixels = np.random.default_rng([len(split), len(name), i]).integers(0, 255, (20, 30, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / "set" / split / name / f"{i}.png")
    arguments = ["audit", "data=folder", f"data.root={tmp_path / 'set'}", "--json", str(tmp_path / "audit.json")]
    assert main(arguments) == 0
    assert "32 images, 2 classes" in capsys.readouterr().out
    assert json.loads((tmp_path / "audit.json").read_text())["sizes"] == {"30x20": 32}
    (tmp_path / "set" / "train" / "left" / "bad.jpg").write_bytes(b"no image")
    assert main(arguments) == 1
    assert "bad.jpg" in capsys.readouterr().out


def test_audit_checks_the_images_of_an_image_to_text_set(tmp_path, capsys):
    rows = []
    for i in range(20):
        pixels = np.random.default_rng(i).integers(0, 255, (16, 24 + i, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
        rows.append(f"{i}.png,{i}")
    (tmp_path / "labels.csv").write_text("\n".join(["file,text", *rows]) + "\n")
    arguments = ["audit", "data=image_text", f"data.path={tmp_path / 'labels.csv'}"]
    arguments += ["--json", str(tmp_path / "audit.json")]
    assert main(arguments) == 0
    assert "20 images" in capsys.readouterr().out
    found = json.loads((tmp_path / "audit.json").read_text())
    assert found["complete"] and found["sizes"] == {f"{24 + i}x16": 1 for i in range(20)} and found["odd"] == {}
    (tmp_path / "3.png").write_bytes(b"no image")
    assert main(arguments) == 1
    assert "3.png" in capsys.readouterr().out


def test_audit_rejects_texts(capsys):
    assert main(["audit", "data=spelled_numbers"]) == 1
    printed = capsys.readouterr().err
    assert "data=spelled_numbers holds texts, but an audit checks images" in printed and "KeyError" not in printed


def test_models_are_listed(capsys):
    assert main(["models", "vit_small*"]) == 0
    names = capsys.readouterr().out.split()
    assert "vit_small_patch16_224" in names and all(name.startswith("vit_small") for name in names)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"vit {vit.__version__}\n"


def test_train_passes_all_arguments_on(monkeypatch):
    given = []
    monkeypatch.setattr("vit.run.main", lambda arguments: given.append(arguments))
    assert main(["train", "data=digits", "-m", "seed=0,1", "--help"]) == 0
    assert main(["--debug", "train", "data=digits"]) == 0
    assert given == [["data=digits", "-m", "seed=0,1", "--help"], ["data=digits", "--debug"]]


def test_missing_permission_is_reported_before_the_computation(model, photos, tmp_path, capsys):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (tmp_path / "locked").mkdir(mode=0o555)
    assert main(["predict", str(model), str(photos), "-o", str(tmp_path / "locked" / "a.csv")]) == 1
    assert "no permission" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["predict", "evaluate", "report", "calibrate", "attention", "probe", "next"])
def test_the_help_names_the_sources_of_a_model(command):
    parameters = {each.name: each for each in typer.main.get_command(app).commands[command].params}
    sources = ("run folder", "weights", "timm:NAME", "hub:OWNER/NAME")
    assert all(source in parameters["model"].help for source in sources)


def test_help_is_printed_as_it_is_written():
    root = typer.main.get_command(app)
    texts = [text for command in (root, *root.commands.values())
             for text in (command.help, *(getattr(each, "help", None) for each in command.params)) if text]
    assert len(texts) > 100
    assert [text for text in texts if Text.from_markup(text).plain != text] == []  # rich removes [report] as markup


def test_every_option_has_a_help():
    commands = typer.main.get_command(app).commands
    options = [(name, each) for name, command in commands.items() for each in command.params]
    assert [(name, each.name) for name, each in options if not each.hidden and not getattr(each, "help", None)] == []


@pytest.mark.parametrize("command", ["predict", "attention"])
def test_weights_of_another_library_are_a_model(command, tmp_path, capsys):
    network = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=8, num_classes=3)
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    Image.new("RGB", (20, 16)).save(tmp_path / "photo.png")
    output = tmp_path / ("labels.csv" if command == "predict" else "attention.png")
    assert main([command, str(tmp_path / "weights.safetensors"), str(tmp_path / "photo.png"), "-o", str(output)]) == 0
    assert output.is_file() and "does not state its preprocessing" in capsys.readouterr().err


def test_a_model_without_classes_has_attention_and_no_predictions(photos, tmp_path, capsys):
    network = vit.create_model("vit_tiny", image_size=8, patch_size=4, num_classes=0, depth=1)
    folder = str(save_bundle(tmp_path / "features", network, [], Preprocessing(size=(8, 8))))
    image = str(photos / "0.png")
    assert main(["predict", folder, image]) == 1
    assert f"error: {folder} has no head, so it predicts no classes; init_from=" in capsys.readouterr().err
    assert main(["attention", folder, image, "-o", str(tmp_path / "attention.png")]) == 0
    assert (tmp_path / "attention.png").is_file()


@pytest.mark.parametrize("name", ["program.onnx", "program.pt2"])
def test_a_converted_program_is_no_model(tmp_path, capsys, name):
    (tmp_path / name).write_bytes(b"PK\x03\x04 program")
    assert main(["predict", str(tmp_path / name), "x.png"]) == 1
    assert "has no layers that can be loaded; it runs without vit" in capsys.readouterr().err


def test_json_on_standard_output_is_alone(model, capfd):
    assert main(["evaluate", str(model), "--json", "/dev/stdout"]) == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out)["images"] == 360 and "accuracy" in printed.err


def test_numbers_of_metrics_are_not_folded_on_a_narrow_terminal():
    from rich.console import Console

    from vit.report.summary import summary_table

    console = Console(width=40, file=io.StringIO())
    console.print(summary_table({"calibration error, calibrated": "0.045714445305115282"}))
    assert "0.045714445305115282" in console.file.getvalue()
