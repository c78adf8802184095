"""`vit bench` on the command line: arguments, errors before any measurement, interrupts, and the baseline."""

import json
from pathlib import Path

import pytest
import torch

from vit.benchmarking import steps
from vit.cli import main
from vit.cli.training.bench import build_settings, print_ignored
from vit.cli.training.bench_options import SearchOptions, TimingOptions, parse_arguments

ROOT = Path(__file__).parents[2]
SMALL = ["data.image_size=16", "data.patch_size=8", "model.dim=32", "model.num_heads=2", "model.depth=1",
         "model.num_classes=5"]
QUICK = ["--precision", "32-true", "--batch", "2", "--rounds", "2", "--clock", "processor"]


@pytest.fixture(autouse=True)
def short_calls(monkeypatch):
    monkeypatch.setattr(steps, "MIN_SECONDS", 1e-3)


def test_names_after_against_are_peers():
    request = parse_arguments(["torchvision", "step", "model=small", "vit-pytorch"], ["timm"])
    assert request.peers == ("timm", "torchvision", "vit-pytorch")
    assert request.benchmarks == ("step",) and request.overrides == ("model=small",)
    assert parse_arguments(["torchvision"], ["timm,vit-pytorch"]).peers == ("timm", "vit-pytorch", "torchvision")
    assert parse_arguments([], []).benchmarks == ("step", "inference")


def test_options_that_no_benchmark_reads_are_named(capsys):
    print_ignored(parse_arguments(["step", "model=small"], []), SearchOptions(beam=3, tokens=8))
    assert capsys.readouterr().err.splitlines() == ["--beam has no effect on step; it is for generation",
                                                    "--tokens has no effect on step; it is for generation"]
    print_ignored(parse_arguments(["loader", "model.dim=64", "data=folder"], []), SearchOptions())
    assert capsys.readouterr().err == "model.dim=64 has no effect on loader, which has no model\n"
    print_ignored(parse_arguments(["generation"], []), SearchOptions("marian-base", 3))
    assert not capsys.readouterr().err


def test_a_table_and_json(tmp_path, capsys):
    file = tmp_path / "speed.json"
    assert main(["bench", "step", *SMALL, *QUICK, "--against", "timm", "vit-pytorch", "--json", str(file)]) == 0
    printed, report = capsys.readouterr(), json.loads(file.read_text())
    assert "vit-pytorch" in printed.out and "matrix rate" in printed.out and "processor clock" in printed.out
    assert f"wrote 1 cases to {file}" in printed.err and report["complete"] is True
    (key, against_timm), _ = report["ratios"].items()
    assert key == ("step: model 1 blocks of 32, 2 heads, patches of 8x8, images of 16x16, mode eager, "
                   "precision 32-true, batch 2 against timm") and against_timm > 0
    check_baseline(file, report, tmp_path, capsys)


def check_baseline(file, report, folder, capsys):
    """A report is its own baseline; a ratio that was a hundred times as high has fallen."""
    higher = folder / "higher.json"
    higher.write_text(json.dumps({**report, "ratios": {key: 100 * ratio for key, ratio in report["ratios"].items()}}))
    command = ["bench", "step", *SMALL, *QUICK, "--against", "timm"]
    assert main([*command, "--baseline", str(higher)]) == 1
    assert "below the baseline's" in capsys.readouterr().out
    assert main([*command, "--baseline", str(file), "--tolerance", "1"]) == 0
    assert "1 of 1 ratios are within 100% of the baseline" in capsys.readouterr().out


@pytest.mark.parametrize(("slow", "precisions"), [(False, ("32-true", "bf16-mixed")), (True, ("32-true",))])
def test_an_emulated_precision_is_measured_on_request_only(monkeypatch, capsys, slow, precisions):
    monkeypatch.setattr("vit.low_precision.is_slow", lambda precision, device: slow)
    assert build_settings(TimingOptions(device="cpu"), ()).precisions == precisions
    assert ("bf16-mixed is left out (a linear layer in" in capsys.readouterr().err) is slow
    assert build_settings(TimingOptions(precision="bf16", device="cpu"), ()).precisions == ("bf16-mixed",)


def test_another_gpu_is_the_one_that_timing_waits_for(monkeypatch):
    """And whose memory is measured: those functions are about the current device."""
    chosen = []
    monkeypatch.setattr("vit.inference.best_device", torch.device)
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    for device in ("cpu", "cuda", "cuda:1"):
        assert build_settings(TimingOptions(device=device), ()).device == device
    assert chosen == [torch.device("cuda", 1)]


def test_an_interrupt_prints_what_was_measured(tmp_path, capsys, monkeypatch):
    """Ctrl-C in the second precision: the first one is complete."""
    train_step, measured = steps.train_step, []

    def interrupted(*arguments):
        measured.append(arguments[-1])
        if arguments[-1] == "bf16-mixed":
            raise KeyboardInterrupt
        train_step(*arguments)

    monkeypatch.setattr(steps, "train_step", interrupted)
    file = tmp_path / "speed.json"
    command = ["bench", "step", *SMALL, "--precision", "32-true,bf16-mixed", *QUICK[2:], "--against", "timm",
               "--json", str(file), "--baseline"]
    (tmp_path / "before.json").write_text(json.dumps({"format": 1, "clock": "processor", "ratios": {"a": 1.0}}))
    assert main([*command, str(tmp_path / "before.json")]) == 130
    printed, report = capsys.readouterr(), json.loads(file.read_text())
    assert report["complete"] is False and [case["setting"]["precision"] for case in report["cases"]] == ["32-true"]
    assert "32-true" in printed.out and "interrupted" in printed.err and measured[-1] == "bf16-mixed"


def test_what_was_measured_is_printed_before_an_error(tmp_path, capsys):
    """The folder of photos is empty, which only the second benchmark finds."""
    command = ["bench", "step", "predict", "data=folder", f"data.root={tmp_path}", "model=tiny", *SMALL, *QUICK]
    assert main(command) == 1
    printed = capsys.readouterr()
    assert "images/s" in printed.out and f"{tmp_path} has no image" in printed.err


@pytest.mark.parametrize(("arguments", "code", "message"), [
    (["stepp"], 2, "did you mean step?"),
    (["timm"], 2, "write --against timm"),
    (["--against", ""], 2, "--against : must be one of timm"),
    (["--against", "tim"], 2, "must be one of timm, torchvision, transformers, vit-pytorch, ctranslate2"),
    (["--batch", "²"], 2, "--batch ²: must be numbers of images"),
    (["--mode", ","], 2, "--mode ',': must be one or more names"),
    (["--precision", ""], 2, "--precision '': must be one or more names"),
    (["generation", "--config-dir", "."], 2, "--config-dir: generation has models of its own"),
    (["--batch", "1,x"], 2, "--batch 1,x: must be numbers of images"),
    (["--batch", "9" * 20], 2, f"--batch {'9' * 20}: must be numbers of images"),
    (["--precision", "int8"], 2, "precision is 'int8'"),
    (["--precision", "64-true"], 2, "--precision 64-true: must be of 32-true, bf16-mixed, 16-mixed"),
    (["--mode", "fast"], 2, "mode fast is not one of eager, compiled, reduce-overhead, max-autotune"),
    (["loader", "--mode", "compiled"], 2, "--mode compiled: loader has only eager"),
    (["generation", "--mode", "reduce-overhead"], 2, "--mode reduce-overhead: generation has only eager, compiled"),
    (["predict", "--precision", "bf16-residual"], 2, "--precision bf16-residual: only step and inference have it"),
    (["--device", "cuda"], 1, "--device cuda cannot be used"),
    (["--device", "meta", "--clock", "processor"], 1, "the processor clock does not measure the time of meta"),
    (["generation", "model=small"], 2, "generation has models of its own; choose one with --shape"),
    (["generation", "--shape", "large"], 2, "shape large is not one of multi30k, marian-base"),
    (["loader", "data=digits"], 1, "use data=folder data.root=PHOTOS"),
    (["predict", "data=folder", "data.root=/nowhere"], 1, "data.root=/nowhere is not a folder"),
    (["step", "model.dimm=3"], 2, "nearest: dim"),
    (["step", "model=tiny", "data.image_size=30", "data.patch_size=8"], 2, "not divisible"),
    (["step", "model=timm", "model.name=resnet18"], 1, "model=resnet18 is of kind timm"),
    (["train", "--clock", "processor"], 1, "use the wall clock"),
    (["--json", "/nowhere/speed.json"], 1, "/nowhere is not a folder"),
    (["--baseline", "/nowhere/before.json"], 1, "/nowhere/before.json: No such file"),
])
def test_errors_come_before_any_measurement(arguments, code, message, capsys):
    assert main(["bench", *arguments]) == code
    printed = capsys.readouterr()
    assert message in printed.err and printed.out == ""


def test_the_committed_baseline_is_one():
    from vit.benchmarking import read_baseline

    baseline = read_baseline(ROOT / "benchmarks" / "baseline.json")
    assert baseline["complete"] and str(ROOT) not in json.dumps(baseline)
