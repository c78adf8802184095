"""Models of timm with parts that vit lacks remain timm networks, and all functions work with them."""

import json

import pytest
import timm
import torch
from timm.models import save_for_hf
from typer.testing import CliRunner

import vit
from tests.exchange.conftest import scramble
from tests.slow_values import quick_and_slow
from vit.cli import app
from vit.exchange import import_weights
from vit.exchange.timm_networks import find_timm_config, have_equal_parts

UNSUPPORTED = {  # model of timm -> its part that vit does not have
    "vit_tiny_r_s16_p8_224": "a stem of the class HybridEmbed",
    "cait_xxs24_224": "the class Cait",
    "vit_dpwee_patch16_reg1_gap_256": "blocks of the class DiffParallelScalingBlock",
}


def foreign(name: str, **options) -> torch.nn.Module:
    return scramble(timm.create_model(name, num_classes=5, **options)).eval()


@pytest.mark.parametrize("name", quick_and_slow(UNSUPPORTED, next(iter(UNSUPPORTED))))
def test_a_model_in_memory_and_other_classes(name: str) -> None:
    reference = foreign(name)
    model, report = import_weights(reference)
    assert any(f"it stays timm's own network: this timm model has {UNSUPPORTED[name]}" in note for note in report.notes)
    assert {row.status for row in report.rows} == {"loaded"}
    x = torch.randn(2, 3, *model.config.image_size)
    with torch.no_grad():
        assert torch.equal(model(x), reference(x))
    other, report = import_weights(reference, num_classes=3)
    assert other(x).shape == (2, 3)
    assert {row.name for row in report.rows if row.status == "new"} == {"head.weight", "head.bias"}
    before, after = reference.state_dict(), other.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before if not name.startswith("head."))


@pytest.mark.slow
def test_a_folder_is_converted_to_a_bundle_and_back(tmp_path) -> None:
    reference = foreign("vit_tiny_r_s16_p8_224")
    save_for_hf(reference, tmp_path / "theirs", model_config={"label_names": list("abcde")})
    for source, target, form in (("theirs", "ours", "bundle"), ("ours", "back", "timm")):
        arguments = ["convert", str(tmp_path / source), str(tmp_path / target), "--to", form]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    bundle = vit.load(tmp_path / "ours")
    back = timm.create_model(f"local-dir:{tmp_path / 'back'}", pretrained=True).eval()
    x = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        expected = reference(x)
        assert torch.equal(bundle.model.eval()(x), expected)
        assert torch.equal(back(x), expected)
    assert bundle.classes == list("abcde")


def davit(**arguments):
    return {"architecture": "davit_tiny", "num_classes": 5, "model_args": arguments}


def test_numbers_that_no_tensor_shows_are_compared() -> None:
    assert find_timm_config(davit()) == find_timm_config(davit(drop_rate=0.5)) is not None
    assert find_timm_config(davit(num_heads=[6, 12, 24, 48])) is None
    with torch.device("meta"):
        one, other = (timm.create_model("davit_tiny") for _ in range(2))
    other.set_grad_checkpointing()
    assert have_equal_parts(one, other.eval())


@pytest.mark.parametrize("options", [{"embed_dim": 96}, {"act_layer": torch.nn.ReLU}, {"global_pool": "avg"}])
def test_a_network_that_its_name_does_not_build_is_refused(options: dict, tmp_path) -> None:
    reference = foreign("vit_tiny_r_s16_p8_224", **options)
    with pytest.raises(ValueError, match="a stem of the class HybridEmbed, which vit does not support"):
        import_weights(reference)
    if "act_layer" not in options:
        save_for_hf(reference, tmp_path, model_args=options)
        assert options.items() <= json.loads((tmp_path / "config.json").read_text())["model_args"].items()
        with pytest.raises(ValueError, match="a stem of the class HybridEmbed, which vit does not support"):
            import_weights(tmp_path)
