"""Every benchmark on tiny sizes: real programs of all libraries, and the report that they make."""

import copy
import importlib.util
import io
import json
import math
import re

import pytest
import torch
from rich.console import Console

import vit
from vit.benchmarking import (
    Search,
    Settings,
    bench_generation,
    bench_loader,
    bench_model,
    bench_prediction,
    bench_training_run,
    hardware,
    machine,
    make_photos,
    matrix_rates,
    result_tables,
    to_json,
)
from vit.benchmarking.hardware import default_size
from vit.benchmarking.results import Case
from vit.benchmarking.steps import fixed_batch, train_step
from vit.benchmarking.steps import program as program_of
from vit.benchmarking.tables import conditions
from vit.benchmarking.training_run import STEP, add_round, as_bare_step, bare_step, environment, new_case
from vit.bundle import load_bundle, save_bundle
from vit.data import Preprocessing
from vit.models import flops

PEERS = ("timm", "torchvision", "transformers", "vit-pytorch")
NUMBER = (int, float)
PROGRAM = {"ratio": (dict, type(None)), "seconds": (list,), "seconds_quartiles": (list, tuple),
           "share_of_matrix_rate": (*NUMBER, type(None))}
CASE = {"benchmark": (str,), "setting": (dict,), "key": (str,), "unit": (str,), "amount": (int,),
        "model_flops": (*NUMBER, type(None)), "matrix_rate": (*NUMBER, type(None)),
        "floor_seconds": (*NUMBER, type(None)), "programs": (dict,), "missing": (dict,)}
REPORT = {"format": (int,), "complete": (bool,), "clock": (str,), "convention": (str,), "machine": (dict,),
          "cases": (list,), "ratios": (dict,)}


def quiet(line):
    assert line


def build():
    torch.manual_seed(0)
    return vit.create_model("vit_tiny", image_size=16, patch_size=8, dim=32, num_heads=2, depth=1, num_classes=5)


def has_types(values, types):
    assert set(types) <= set(values)
    for key, kinds in types.items():
        assert isinstance(values[key], kinds), (key, values[key])


def checked_report(cases, settings):
    """The JSON of the cases, after checks that hold for every report."""
    report = json.loads(json.dumps(to_json(cases, settings, machine())))
    has_types(report, REPORT)
    for case in report["cases"]:
        has_types(case, CASE)
        assert "vit" in case["programs"]
        for program in case["programs"].values():
            has_types(program, PROGRAM)
            assert len(program["seconds"]) == settings.rounds and all(each > 0 for each in program["seconds"])
            assert program[f"{case['unit']}_per_second"] > 0
            if program["ratio"]:
                assert program["ratio"]["low"] <= program["ratio"]["median"] <= program["ratio"]["high"]
    printed = io.StringIO()
    Console(width=300, file=printed).print(result_tables(cases, settings, machine()))
    for case in report["cases"]:
        assert all(text in printed.getvalue() for text in [*case["programs"], *case["missing"].values()])
    return report


def test_the_hardware_counts_cores_and_threads():
    """The line below the tables, which states what a rate was measured on."""
    one = conditions(Settings(), {**machine(), "cores": 1, "threads": 1}, [])[0]
    two = conditions(Settings(), {**machine(), "cores": 2, "threads": 2}, [])[0]
    assert "1 core, 1 thread," in one and "2 cores, 2 threads," in two


@pytest.mark.parametrize(("kind", "forwards", "batches"), [("step", 3, (3,)), ("inference", 1, (1, 3))])
def test_models_are_measured_against_all_peers(kind, forwards, batches, monkeypatch):
    monkeypatch.setattr("vit.benchmarking.steps.MIN_SECONDS", 1e-3)
    settings, cases = Settings(PEERS, rounds=2, batches=batches, clock="processor"), []
    bench_model(kind, build, settings, cases, quiet)
    report = checked_report(cases, settings)
    measured = [(case["setting"]["precision"], case["setting"]["batch"]) for case in report["cases"]]
    assert measured == [(precision, batch) for precision in settings.precisions for batch in batches]
    assert len(report["ratios"]) == len(measured) * len(PEERS)
    for case in report["cases"]:
        assert case["missing"] == {} and set(case["programs"]) == {"vit", *PEERS}
        assert case["model_flops"] == forwards * flops(build()) * case["amount"]  # 2 or 6 x multiply-adds
        operations = {program["flops_per_image"] for program in case["programs"].values()}
        assert operations == {flops(build())}
        own = case["programs"]["vit"]
        rate = own["images_per_second"] * forwards * flops(build()) / case["matrix_rate"]
        assert math.isclose(own["share_of_matrix_rate"], rate, rel_tol=1e-6)


def test_rates_are_those_of_the_median_round():
    case = Case("step", {"batch": 6}, "images", 6, flops=100.0, matrix_rate=200.0, times={"vit": [2.0, 1.0, 30.0]})
    assert case.per_second("vit") == 6 / 2 and case.share("vit") == 100 / 2 / 200  # whatever one slow round takes


@pytest.mark.parametrize("name", ["vit", "timm"])
@pytest.mark.parametrize("kind", ["step", "inference"])
def test_a_step_changes_the_weights_and_inference_computes_the_logits(kind, name):
    torch.manual_seed(0)
    model = vit.create_model("vit_tiny", image_size=16, patch_size=8, dim=32, depth=1, num_heads=2, dropout=0.5)
    before, batch = copy.deepcopy(model).eval(), fixed_batch(model.config, 3, "cpu")
    found = program_of(name, model, batch, Case(kind, {"precision": "32-true", "mode": "eager"}, "images", 3))()
    changed = [not torch.equal(*pair) for pair in zip(model.parameters(), before.parameters(), strict=True)]
    assert all(changed) if kind == "step" else not any(changed)
    if kind == "inference":
        torch.testing.assert_close(found, before(batch[0]))


def test_a_step_clips_the_gradient_to_norm_1():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5))
    before = [each.detach().clone() for each in model.parameters()]
    images, labels = 100 * torch.randn(2, 3, 2, 2), torch.tensor([1, 2])
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    train_step(model, sgd, torch.nn.utils.clip_grad_norm_, images, labels, "32-true")
    moved = torch.cat([(a - b).flatten() for a, b in zip(model.parameters(), before, strict=True)])
    assert moved.norm().item() == pytest.approx(1, abs=1e-3)


def test_a_program_with_other_outputs_is_refused(monkeypatch):
    monkeypatch.setattr("vit.benchmarking.peers.to_timm", lambda state, config: shifted(state, config))

    def shifted(state, config):
        from vit.weights import to_timm

        return {name: tensor + 0.1 for name, tensor in to_timm(state, config).items()}

    with pytest.raises(ValueError, match="timm computes something else: with equal weights its logits differ by"):
        bench_model("inference", build, Settings(("timm",), ("32-true",), rounds=1), [], quiet)


def test_a_peer_that_is_missing_leaves_the_peers_after_it():
    settings, cases = Settings(("ctranslate2", "timm"), ("32-true",), ("eager",), (2,), rounds=1), []
    bench_model("inference", build, settings, cases, quiet)
    assert set(cases[0].times) == {"vit", "timm"} and set(cases[0].missing) == {"ctranslate2"}


@pytest.mark.slow
def test_compiled_models_report_the_time_of_compilation():
    settings, cases = Settings(("timm",), ("32-true",), ("compiled",), (2,), rounds=2), []
    bench_model("step", build, settings, cases, quiet)
    programs = checked_report(cases, settings)["cases"][0]["programs"]
    assert all(program["compile_seconds"] > 0 for program in programs.values())


def test_loaders_are_measured(tmp_path):
    settings, cases = Settings(("timm", "torchvision", "transformers"), rounds=2, batches=(4,)), []
    bench_loader(make_photos(tmp_path, 12), settings, cases, quiet, small_count=64)
    report = checked_report(cases, settings)
    assert [sorted(case["programs"]) for case in report["cases"]] == [["timm", "torchvision", "vit"]] * 2 + \
        [["torchvision", "vit"]] * 2
    assert report["cases"][0]["missing"] == {"transformers": "transformers has no loader of photos"}
    assert all(program["first_batch_seconds"] > 0 for case in report["cases"] for program in case["programs"].values())


def test_predictions_from_files_are_measured(tmp_path):
    settings, cases = Settings(("timm", "transformers", "vit-pytorch"), ("32-true",), rounds=1, batches=(4,)), []
    bench_prediction(build(), make_photos(tmp_path, 6), settings, cases, quiet)
    case = checked_report(cases, settings)["cases"][0]
    assert case["amount"] == 6 and set(case["programs"]) == {"vit", "timm", "transformers"}
    assert case["missing"] == {"vit-pytorch": "vit-pytorch does not predict from files"}
    assert all(program["same_results"] == 1 for program in case["programs"].values())
    assert all(program["first_batch_seconds"] > program["load_seconds"] > 0 for program in case["programs"].values())


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_generation_is_measured(mode):
    settings = Settings(("uncached", "transformers", "timm"), modes=(mode,), rounds=1, batches=(2,))
    cases = []
    bench_generation(Search(beam=2, tokens=4, source=5), settings, cases, quiet)
    case = checked_report(cases, settings)["cases"][0]
    assert case["setting"]["mode"] == mode
    assert set(case["programs"]) == {"vit", "uncached", "transformers"} and case["amount"] == 8
    assert case["missing"] == {"timm": "timm does not generate text"}
    assert all(program["same_results"] == 1 for program in case["programs"].values())


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ctranslate2") is None, reason="needs ctranslate2")
def test_ctranslate2_generates_the_same_texts():
    settings, cases = Settings(("ctranslate2",), rounds=1, batches=(2,)), []
    bench_generation(Search(beam=2, tokens=4, source=5), settings, cases, quiet)
    assert checked_report(cases, settings)["cases"][0]["programs"]["ctranslate2"]["same_results"] == 1


@pytest.mark.skipif(importlib.util.find_spec("ctranslate2") is None, reason="needs ctranslate2")
def test_another_process_is_not_measured_with_the_processor_clock():
    settings, cases = Settings(("ctranslate2",), rounds=1, clock="processor"), []
    bench_generation(Search(beam=1, tokens=2, source=3), settings, cases, quiet)
    assert "processor clock" in cases[0].missing["ctranslate2"] and set(cases[0].times) == {"vit"}


def test_peers_of_bf16_residual_compute_in_bf16_mixed(monkeypatch):
    made = []
    monkeypatch.setattr("vit.benchmarking.steps.set_autocast_residual", made.append)
    settings, cases = Settings(("timm",), ("bf16-residual",), ("eager",), (2,), rounds=1), []
    bench_model("step", build, settings, cases, quiet)
    assert cases[0].facts["timm"]["remark"] == "computes in bf16-mixed" and "remark" not in cases[0].facts["vit"]
    assert len(made) == 1 and type(made[0]).__name__ == "VisionTransformer" and len(cases[0].times["timm"]) == 1


def test_a_run_is_paired_with_its_bare_step(tmp_path):
    extra = {"evaluation": {"batch_size": 3, "precision": "32-true"}}
    preprocessing = Preprocessing((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
    bundle = load_bundle(save_bundle(tmp_path / "model", build(), list("abcde"), preprocessing, extra=extra))
    settings = Settings(rounds=2)
    case, step = new_case(["data=digits"], bundle, settings), bare_step(bundle)
    metrics = {"images_per_second": 30.0, "data_wait": 0.1, "first_step_seconds": 4.5, "command_seconds": 9.0,
               "peak_memory": 2**29, "parameters": 7}
    add_round(case, metrics, step)
    add_round(case, {**metrics, "images_per_second": 60.0}, step)
    assert case.times["vit"] == [0.1, 0.05] and case.per_second("vit") == pytest.approx(40.0)
    programs = checked_report([case], settings)["cases"][0]["programs"]
    assert set(programs) == {"vit", STEP} and programs["vit"]["loader_wait"] == 0.1


@pytest.mark.slow
def test_a_whole_run_is_measured():
    settings, cases = Settings(rounds=1), []
    bench_training_run(["recipe.epochs=1"], settings, cases, quiet)
    own = checked_report(cases, settings)["cases"][0]["programs"]["vit"]
    assert 0 <= own["loader_wait"] < 1 and own["first_step_seconds"] < own["command_seconds"]


def test_a_run_that_fails_is_named():
    with pytest.raises(RuntimeError, match=r"vit train data=nothing .* ended with code 2: .*no such data"):
        bench_training_run(["data=nothing"], Settings(rounds=1), [], quiet)


def test_a_run_has_the_device_and_the_batch_of_its_bare_step():
    assert as_bare_step(["data=digits"], "cuda:0") == ["trainer.accelerator=gpu", "trainer.devices=1",
                                                       "recipe.accumulate=1"]
    assert as_bare_step([], "cpu")[0] == "trainer.accelerator=cpu"
    for override in ("trainer.accelerator=gpu", "trainer.devices=2", "recipe.accumulate=2", "++trainer.devices=2"):
        with pytest.raises(ValueError, match=f"{re.escape(override)}: the run is compared with a step on one device"):
            bench_training_run([override], Settings(rounds=1), [], quiet)


def test_a_run_on_another_gpu_sees_only_that_one(monkeypatch):
    """Its process uses the first GPU that it sees."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 6")
    seen = {each: environment(each)["CUDA_VISIBLE_DEVICES"] for each in ("cpu", "cuda", "cuda:0", "cuda:1")}
    assert seen == {"cpu": "4, 6", "cuda": "4, 6", "cuda:0": "4, 6", "cuda:1": "6"}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert environment("cuda:1")["CUDA_VISIBLE_DEVICES"] == "1" and "CUDA_VISIBLE_DEVICES" not in environment("cuda:0")


def test_matrix_rates_are_positive():
    rates = matrix_rates(("32-true", "bf16-mixed"), rounds=1, size=64)
    assert set(rates) == {"32-true", "bf16-mixed"} and all(rate > 1e6 for rate in rates.values())


def test_slow_products_are_measured_with_smaller_matrices(monkeypatch):
    """A processor without instructions for bf16 takes seconds for 1024 rows."""
    monkeypatch.setattr(hardware, "MAX_SECONDS", math.inf)
    assert default_size("32-true", "cpu") == hardware.CPU_SIZE
    monkeypatch.setattr(hardware, "MAX_SECONDS", 0.0)
    assert default_size("32-true", "cpu") == hardware.CPU_SIZE // 8


@pytest.mark.parametrize(("values", "message"), [
    ({"clock": "sun"}, "clock='sun' is not one of wall, processor"),
    ({"modes": ("eager", "fast")}, "mode fast is not one of eager, compiled"),
    ({"rounds": 0}, "rounds=0"),
    ({"batches": (4, 0)}, "at least 1"),
    ({"clock": "processor", "device": "cuda"}, "the processor clock does not measure the time of cuda"),
])
def test_invalid_settings_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        Settings(**values)


@pytest.mark.parametrize("values", [{"shape": "big"}, {"beam": 0}, {"tokens": 0}, {"source": -1}])
def test_an_invalid_search_is_refused(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        Search(**values)


def test_rates_are_medians_of_the_rounds_and_ratios_are_paired():
    """A slow round of both programs changes nothing."""
    case = Case("step", {}, "images", 6, flops=120.0, matrix_rate=100.0)
    case.times = {"vit": [1.0, 2.0, 9.0], "timm": [3.0, 4.0, 18.0]}
    assert case.per_second("vit") == 3 and case.per_second("timm") == 1.5
    assert case.share("vit") == pytest.approx(0.6) and case.floor() == pytest.approx(1.2)
    assert case.ratio("vit") is None and case.ratio("timm").median == pytest.approx(2.0)
