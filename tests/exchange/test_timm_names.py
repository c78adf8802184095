"""`timm:NAME` and every other form of a timm network give the same network through every interface."""

from types import SimpleNamespace

import pytest
import timm
import torch

import vit
from tests.exchange.conftest import CLOSE, scramble
from tests.slow_values import quick_and_slow
from vit.bundle import load_bundle
from vit.exchange import SourceError, read_checkpoint
from vit.exchange.convert import convert
from vit.models import TimmConfig, model_from_config
from vit.run.config.composing import ConfigError
from vit.run.parts.distillation import load_teacher
from vit.run.parts.init_from import load_initial, load_initial_weights
from vit.run.parts.networks import build_model

SOURCES = {"test_vit.r160_in1k": "vit", "test_vit2.r160_in1k": "vit", "test_vit4.r160_in1k": "vit",
           "test_efficientnet.r160_in1k": "timm", "test_resnet.r160_in1k": "timm",
           "rexnet_100.nav_in1k": "timm"}  # with dropout before its head
ADOPT = {"name": None, "fallback": "vit_tiny"}


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """timm's create_model fills published weights from a generator instead of the hub."""
    create, made = timm.create_model, {}

    def create_model(name, pretrained=False, **options):
        if not pretrained or name.startswith("local-dir:"):
            return create(name, pretrained=pretrained, **options)
        return made.setdefault(name, scramble(create(name, **options)))

    monkeypatch.setattr(timm, "create_model", create_model)
    monkeypatch.setattr("vit.exchange.timm_networks.check_hub_responds", lambda cfg: None)


def images(reference) -> torch.Tensor:
    size = reference.pretrained_cfg["input_size"]
    return torch.randn(2, *size, generator=torch.Generator().manual_seed(1))


def started(source: str, node: dict | None = None) -> torch.nn.Module:
    """The network of a run, before its first step."""
    node = node or ADOPT
    initial = load_initial(source, node)
    preprocessing = initial.preprocessing
    fits = SimpleNamespace(size=preprocessing.size, channels=preprocessing.channels)
    model = build_model(node, None, fits, ["class"] * 1000, initial)
    load_initial_weights(initial, model)
    return model.eval()


@pytest.mark.parametrize("name", quick_and_slow(SOURCES, *SOURCES.keys() - {"rexnet_100.nav_in1k"}))
@pytest.mark.filterwarnings("ignore")
def test_every_interface_builds_the_same_network(name: str, tmp_path) -> None:
    reference, source = timm.create_model(name, pretrained=True), f"timm:{name}"
    convert(source, tmp_path / "converted")
    models = {
        "import_weights": vit.import_weights(source)[0],
        "load": vit.load(source, device="cpu").model,
        "convert": load_bundle(tmp_path / "converted").model,
        "init_from": started(source),
        "distill.teacher": load_teacher(source).model,
        "in memory": vit.import_weights(reference)[0],
    }
    x = images(reference)
    with torch.no_grad():
        expected = reference(x)
        for entrance, model in models.items():
            assert model.config.kind == SOURCES[name], entrance
            torch.testing.assert_close(model(x), expected, **CLOSE, msg=entrance)


@pytest.mark.parametrize("name", ["test_vit", "timm/test_vit", "timm:test_vit"])
def test_a_named_timm_model_remains_a_timm_network(name: str) -> None:
    """`model=timm model.name=NAME init_from=timm:NAME`, as in runs of earlier versions."""
    node = {"library": "timm", "name": name, "drop_path": 0.0}
    model = started("timm:test_vit.r160_in1k", node)
    reference = timm.create_model("test_vit.r160_in1k", pretrained=True)
    assert model.config.kind == "timm"
    x = images(reference)
    with torch.no_grad():
        torch.testing.assert_close(model(x), reference(x), rtol=0, atol=0)


def test_a_run_that_recorded_timms_network_keeps_it() -> None:
    recorded = TimmConfig("test_vit", (160, 160), num_classes=3).to_dict()
    model = build_model(recorded, None, SimpleNamespace(size=(160, 160), channels=3), ["a", "b", "c"], None)
    assert model.config == model_from_config(recorded).config and model.config.kind == "timm"


def test_both_forms_of_a_name_are_one_source() -> None:
    one, other = (read_checkpoint(f"timm{sign}test_vit.r160_in1k") for sign in ":/")
    assert one.name == other.name == "timm:test_vit.r160_in1k"
    assert one.format.name == other.format.name == "timm" and one.config == other.config


def test_what_a_checkpoint_states_about_itself() -> None:
    reference = timm.create_model("test_vit.r160_in1k", pretrained=True)
    checkpoint = read_checkpoint("timm:test_vit.r160_in1k")
    facts = timm.data.resolve_model_data_config(reference)
    assert checkpoint.preprocessing.size == facts["input_size"][1:]
    assert (checkpoint.preprocessing.mean, checkpoint.preprocessing.std) == (facts["mean"], facts["std"])
    assert checkpoint.preprocessing.crop_pct == facts["crop_pct"]
    assert checkpoint.preprocessing.interpolation == facts["interpolation"]
    assert checkpoint.architecture.error is None and checkpoint.config["kind"] == "vit"
    assert not checkpoint.class_names and checkpoint.state.keys() == reference.state_dict().keys()


def test_a_checkpoint_without_a_known_network_has_the_reason() -> None:
    checkpoint = read_checkpoint({"a": torch.zeros(2)})
    error = checkpoint.architecture.error
    assert checkpoint.architecture.config is None and error.source == "the state dict"
    assert str(error) == f"the state dict: {error.reason}" and "its 1 tensors, such as a" in error.reason
    with pytest.raises(SourceError):
        _ = checkpoint.config


@pytest.mark.parametrize("source", ["nowhere.pth", "timm:no_such_model"])
def test_an_error_names_its_source_once(source: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_initial(source)
    assert str(error.value).startswith(f"init_from={source}: ") and str(error.value).count(source) == 1


def test_act_is_an_alias_of_activation(tmp_path) -> None:
    state = timm.create_model("test_vit").state_dict()
    with pytest.warns(DeprecationWarning, match="use activation="):
        model, _ = vit.import_weights(state, num_heads=2, act="relu")
    assert model.config == vit.import_weights(state, num_heads=2, activation="relu")[0].config
    assert model.config.activation == "relu"
    with pytest.warns(DeprecationWarning, match="use activation="):
        convert(state, tmp_path / "bundle", num_heads=2, act="relu")
    assert load_bundle(tmp_path / "bundle").model.config.activation == "relu"
    with pytest.warns(DeprecationWarning, match="use activation="):
        assert vit.load(state, num_heads=2, act="relu").model.config.activation == "relu"
