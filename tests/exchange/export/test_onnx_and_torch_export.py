"""`vit convert --to onnx` and `--to torch_export`: programs with the outputs of `vit predict` that run without vit."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import timm
import torch
from torch import nn

import vit
from tests.exchange.conftest import scramble
from tests.slow_values import quick_and_slow
from vit.bundle import LabelCalibration, save_bundle, save_ensemble
from vit.cli import main
from vit.data import PackedPreprocessing, Preprocessing
from vit.evaluation.calibration.fitting import Outputs, fit_calibration
from vit.exchange import SourceError
from vit.exchange.convert import convert
from vit.exchange.export import onnx_and_torch_export as programs

PHOTOS = Path(__file__).parents[2] / "data_files" / "clothing"
NAMES = ["cat", "dog", "emu", "fox", "é"]
TINY = {"image_size": (32, 16), "patch_size": 8, "dim": 32, "depth": 1, "num_heads": 4, "num_classes": 5}
PREPROCESSING = Preprocessing(size=(32, 16), mean=(0.2, 0.4, 0.6), std=(0.3, 0.2, 0.1))
ROTARY = "rotary positions, registers, attention pooling"
VARIANTS = {
    "plain": {"depth": 2},
    "relative positions, which add to the scores": {"positions": "relative"},
    ROTARY: {"positions": "rotary", "registers": 2, "pool": "attention"},
    "distillation token": {"dist_token": True},
    "one channel": {"in_chans": 1},
    "windows, compact stem, mean": {"attention": "local", "window": 1, "stem": "compact", "pool": "mean"},
    "Fourier transform": {"mixer": "fnet"},
}


def saved(folder: Path, calibration=None, thresholds=(), **options) -> Path:
    torch.manual_seed(0)
    model = scramble(vit.create_model("vit_tiny", **{**TINY, **options}))
    grey = options.get("in_chans") == 1
    preprocessing = PREPROCESSING.replace(mode="L", mean=(0.3,), std=(0.2,)) if grey else PREPROCESSING
    return save_bundle(folder, model, NAMES, preprocessing, calibration=calibration, thresholds=thresholds)


def calibration():
    """Of logits whose temperature is far from 1."""
    logits = torch.randn(200, 5, generator=torch.Generator().manual_seed(3)) * 20
    labels = torch.randint(5, (200,), generator=torch.Generator().manual_seed(4))
    found = Outputs(logits, labels, torch.zeros(200, 2), [str(i).encode() for i in range(200)])
    return fit_calibration(NAMES, found, found, "temperature")


def pixels_of(model: Path, photos: list[Path]) -> np.ndarray:
    preprocessing = vit.load(model).preprocessing
    return np.stack([preprocessing.image(photo).numpy() for photo in photos])


def run(program: Path, pixels: np.ndarray) -> np.ndarray:
    """The probabilities, by the library of the file ending."""
    if program.suffix == ".pt2":
        return torch.export.load(program).module()(torch.from_numpy(pixels))[0].detach().numpy()
    return onnxruntime.InferenceSession(program).run(["probabilities"], {"pixels": pixels})[0]


def predicted(model: Path, photos: list[Path]) -> np.ndarray:
    """(B,classes), of `vit predict`."""
    rows = [dict(zip(row.names, row.probabilities, strict=True)) for row in vit.load(model).predict(photos, top_k=5)]
    return np.array([[row[name] for name in NAMES] for row in rows])


@pytest.fixture(scope="module")
def photos() -> list[Path]:
    return sorted(PHOTOS.rglob("*.jpg"))[:3]


@pytest.mark.parametrize(("to", "variant"), quick_and_slow(
    [*(("onnx", variant) for variant in VARIANTS), ("torch_export", "plain"), ("torch_export", ROTARY)],
    ("onnx", "one channel"), ("onnx", ROTARY), ("torch_export", "plain"),
))
def test_a_program_has_the_probabilities_of_predict(to, variant, photos, tmp_path):
    model = saved(tmp_path / "model", **VARIANTS[variant])
    program = tmp_path / f"model{programs.ENDINGS[to][0]}"
    vit.convert(model, program, to=to)
    for batch in (photos, photos[:1]):
        assert run(program, pixels_of(model, batch)) == pytest.approx(predicted(model, batch), abs=1e-5)


@pytest.mark.parametrize("ending", ["onnx", "pt2"])
def test_the_calibration_is_part_of_the_program(ending, photos, tmp_path):
    record = calibration()
    assert record.temperature > 2
    model = saved(tmp_path / "model", calibration=record)
    program = tmp_path / f"model.{ending}"
    convert(model, program, {"onnx": "onnx", "pt2": "torch_export"}[ending])
    found = run(program, pixels_of(model, photos))
    assert found == pytest.approx(predicted(model, photos), abs=1e-5)
    assert abs(found - predicted(saved(tmp_path / "raw"), photos)).max() > 0.05


def test_an_ensemble_is_one_program(photos, tmp_path):
    """Each member has its own normalization and temperature."""
    members = [saved(tmp_path / "a", calibration=calibration()), saved(tmp_path / "b")]
    model = save_ensemble(tmp_path / "both", members)
    convert(model, tmp_path / "both.onnx", "onnx")
    assert run(tmp_path / "both.onnx", pixels_of(model, photos)) == pytest.approx(predicted(model, photos), abs=1e-5)


def test_an_ensemble_is_copied_and_otherwise_refused(photos, tmp_path):
    model = save_ensemble(tmp_path / "both", [saved(tmp_path / "a", calibration=calibration()), saved(tmp_path / "b")])
    assert convert(model, tmp_path / "copy").count("loaded") == 2 * len(vit.load(tmp_path / "a").model.state_dict())
    assert (predicted(tmp_path / "copy", photos) == predicted(model, photos)).all()
    for to, changes in (("timm", {}), ("transformers", {}), ("bundle", {"num_classes": 3})):
        with pytest.raises(SourceError, match="this is an ensemble"):
            convert(model, tmp_path / "other", to, **changes)


def test_what_onnx_lacks_is_a_named_error(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "trace", lambda program: torch.export.export(WithoutEquivalent(), (torch.ones(2),)))
    with pytest.raises(SourceError, match="ONNX has no equivalent .*torch_export keeps"):
        convert(saved(tmp_path / "model"), tmp_path / "model.onnx", "onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


class WithoutEquivalent(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


def test_a_changed_model_has_no_calibration(tmp_path):
    """The temperature was fitted to the outputs of another network."""
    model = saved(tmp_path / "model", calibration=calibration())
    convert(model, tmp_path / "larger.onnx", "onnx", image_size=(64, 32))
    session = onnxruntime.InferenceSession(tmp_path / "larger.onnx")
    assert session.get_inputs()[0].shape == ["batch", 3, 64, 32]
    assert session.get_modelmeta().custom_metadata_map["calibrated"] == "false"
    probabilities, logits = session.run(None, {"pixels": np.zeros((1, 3, 64, 32), np.uint8)})
    assert probabilities == pytest.approx(torch.from_numpy(logits).softmax(-1).numpy())


def test_several_labels_have_independent_probabilities_and_thresholds(photos, tmp_path):
    record = LabelCalibration(40, (0.5, 2.0, 1.0, 3.0, 0.8), (0.5, 0.4), (0.2, 0.1))
    thresholds = (0.2, 0.6, 0.5, 0.4, 0.3)
    model = saved(tmp_path / "model", calibration=record, thresholds=thresholds)
    convert(model, tmp_path / "model.onnx", "onnx")
    found = run(tmp_path / "model.onnx", pixels_of(model, photos))
    assert found == pytest.approx(predicted(model, photos), abs=1e-5)
    stated = onnxruntime.InferenceSession(tmp_path / "model.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(stated["thresholds"]) == pytest.approx(thresholds)
    above = [{n for n, p, t in zip(NAMES, row, thresholds, strict=True) if p >= t} for row in found]
    assert above == [set(row.names) for row in vit.load(model).predict(photos)]


def test_the_file_states_classes_and_preprocessing(tmp_path):
    model = saved(tmp_path / "model")
    convert(model, tmp_path / "model.onnx", "onnx")
    convert(model, tmp_path / "model.pt2", "torch_export")
    stated = onnxruntime.InferenceSession(tmp_path / "model.onnx").get_modelmeta().custom_metadata_map
    texts = dict.fromkeys(stated, "")
    torch.export.load(tmp_path / "model.pt2", extra_files=texts)
    assert texts == stated
    assert json.loads(stated["classes"]) == NAMES and json.loads(stated["calibrated"]) is False
    assert Preprocessing.from_dict(json.loads(stated["preprocessing"])) == PREPROCESSING


WITHOUT_VIT = """
import sys
sys.modules["vit"] = sys.modules["timm"] = None  # an import of either is an error
import numpy as np, onnxruntime, torch
pixels = np.load("pixels.npy")
np.save("a.npy", onnxruntime.InferenceSession("a.onnx").run(["probabilities"], {"pixels": pixels})[0])
np.save("b.npy", torch.export.load("b.pt2").module()(torch.from_numpy(pixels))[0].detach().numpy())
"""


@pytest.mark.slow
def test_a_network_of_timm_runs_without_vit_and_timm(tmp_path):
    """Convolutions and batch norm, in a process of its own."""
    torch.manual_seed(0)
    network = scramble(timm.create_model("test_efficientnet", num_classes=5))
    torch.save(network.state_dict(), tmp_path / "test_efficientnet.pth")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 160, 160), dtype=np.uint8)
    np.save(tmp_path / "pixels.npy", pixels)
    mean, std = (torch.tensor(network.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        expected = network((torch.from_numpy(pixels) / 255 - mean) / std).softmax(-1).numpy()
    for name, to in (("a.onnx", "onnx"), ("b.pt2", "torch_export")):
        assert main(["convert", str(tmp_path / "test_efficientnet.pth"), str(tmp_path / name), "--to", to]) == 0
    subprocess.run([sys.executable, "-c", WITHOUT_VIT], cwd=tmp_path, check=True)
    for name in ("a.npy", "b.npy"):
        assert np.load(tmp_path / name) == pytest.approx(expected, abs=1e-4)


class Wrong(programs.Program):
    """Computes something else than the model that it was made of."""

    def forward(self, pixels):
        probabilities, logits = super().forward(pixels)
        return probabilities, logits + 0.01 * logits.abs().max()


def test_another_result_is_not_saved(tmp_path, monkeypatch):
    model = saved(tmp_path / "model")
    write = programs.WRITERS["torch_export"]

    def write_another(path, program, stated):
        write(path, Wrong(program.model, PREPROCESSING, program.probabilities).eval(), stated)

    monkeypatch.setitem(programs.WRITERS, "torch_export", write_another)
    with pytest.raises(SourceError, match="has other outputs for 1 images"):
        convert(model, tmp_path / "model.pt2", "torch_export")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


class OnlyOneImage(nn.Module):
    """A network whose trace depends on the values of its input."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.layer = nn.Linear(1, 5)

    def forward(self, images):
        return self.layer(images.mean((1, 2, 3), keepdim=False)[:, None]) * (2 if float(images.sum()) > 0 else 3)


def test_the_log_of_the_program_is_as_before():
    before = logging.root.manager.disable
    with programs.quiet():
        assert logging.root.manager.disable == logging.WARNING
    assert logging.root.manager.disable == before


def test_what_cannot_be_traced_is_a_named_error(tmp_path):
    config = vit.create_model("vit_tiny", **TINY).config
    with pytest.raises(SourceError, match="torch.export cannot trace this model"):
        programs.trace(programs.Program(OnlyOneImage(config), PREPROCESSING, torch.sigmoid).eval())


def test_wrong_requests_are_errors_before_the_work(tmp_path, monkeypatch):
    model = saved(tmp_path / "model")
    with pytest.raises(SourceError, match=r"use one of \.onnx"):
        convert(model, tmp_path / "model.pt", "onnx")
    with pytest.raises(SourceError, match="no classes"):
        convert(model, tmp_path / "model.onnx", "onnx", num_classes=0)
    sizes = {key: TINY[key] for key in ("image_size", "patch_size", "dim", "depth", "num_heads")}
    masked = vit.create_model("mae_tiny", **sizes, decoder_dim=32, decoder_depth=1, decoder_num_heads=4)
    masked = save_bundle(tmp_path / "mae", masked, [], PREPROCESSING)
    with pytest.raises(SourceError, match="of kind mae"):
        convert(masked, tmp_path / "model.onnx", "onnx")
    with pytest.raises(SourceError, match=r"\(data.pack=true\); train a model with data.pack=false"):
        programs.image_program(vit.create_model("vit_tiny", **TINY), PackedPreprocessing((32, 16)), NAMES, (), None)
    monkeypatch.setattr(programs, "find_spec", lambda name: None)
    programs.check_libraries("torch_export")  # torch alone writes it
    with pytest.raises(SourceError, match=r"onnxruntime, which are not installed: pip install 'vitwright\[onnx\]'"):
        convert(model, tmp_path / "model.onnx", "onnx")


def test_weights_beyond_the_limit_of_a_file_are_an_error(tmp_path, monkeypatch):
    model = saved(tmp_path / "model")
    monkeypatch.setattr(programs, "LARGEST", 10_000)
    with pytest.raises(SourceError, match="at most 0.0 GB; use --to torch_export"):
        convert(model, tmp_path / "model.onnx", "onnx")
