"""timm's folders, modules and state dicts through `import_weights`, exported as folders that other libraries load."""

import json
import warnings

import pytest
import timm
import torch
from timm.layers import GluMlp
from timm.models import Eva, VisionTransformer, save_for_hf

from tests.exchange.conftest import scramble
from tests.weights.formats.test_timm import FAMILIES, foreign
from vit.bundle import save_bundle
from vit.data import Preprocessing
from vit.exchange import import_weights

CLOSE = {"rtol": 0, "atol": 1e-5}
CASES = ("DeiT distilled", "reg4 gap", "DINOv2 giant", "CLIP quick", "SigLIP 2", "EVA-02", "DINOv3", "PE core")


def images(config) -> torch.Tensor:
    return torch.randn(2, config.in_chans, *config.image_size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("case", CASES)
def test_a_timm_folder_is_imported_and_exported(case: str, tmp_path) -> None:
    from transformers import AutoModelForImageClassification

    reference = foreign(case)
    save_for_hf(reference, tmp_path / "theirs", model_config={"label_names": list("abcdefg")})
    model, report = import_weights(tmp_path / "theirs")
    assert report.count("unused") == report.count("new") == 0
    x = images(model.config)
    with torch.no_grad():
        expected = reference(x)
        torch.testing.assert_close(model(x), expected, **CLOSE)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            folder = save_bundle(tmp_path / "ours", model, list("abcdefg"), Preprocessing(model.config.image_size))
        back = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        torch.testing.assert_close(back(x), expected, **CLOSE)
        wrapped = AutoModelForImageClassification.from_pretrained(folder).eval()
        torch.testing.assert_close(wrapped(x).logits, expected, **CLOSE)
    assert wrapped.config.id2label[1] == "b"
    again, _ = import_weights(folder)
    assert again.config == model.config


def test_a_module_and_its_state_dict_with_values_from_the_caller() -> None:
    reference = foreign("CLIP quick")
    for source, hints in ((reference, {}), (reference.state_dict(), {"num_heads": 4, "activation": "quick_gelu"})):
        model, _ = import_weights(source, **hints)
        x = images(model.config)
        with torch.no_grad():
            torch.testing.assert_close(model(x), reference(x), **CLOSE)
    with pytest.raises(ValueError, match="give activation="):
        import_weights(reference.state_dict(), num_heads=4)
    with pytest.raises(ValueError, match="num_heads"):
        import_weights(reference.state_dict(), activation="quick_gelu")


@pytest.mark.parametrize("case", ["EVA-02 CLIP 16", "SigLIP", "DINOv3"])
def test_another_size_patch_and_channels_in_one_call(case: str) -> None:
    reference = foreign(case)
    change = {"image_size": (48, 32), "patch_size": 8}
    model, report = import_weights(reference, **change)
    reference.set_input_size(img_size=(48, 32), patch_size=(8, 8))
    x = images(model.config)
    with torch.no_grad():
        torch.testing.assert_close(model(x), reference(x), **CLOSE)
    assert "embed.proj.weight" in report.named("resized")
    grey, _ = import_weights(foreign(case), **change, in_chans=1)
    colours = x[:, :1].expand(-1, 3, -1, -1)
    with torch.no_grad():
        torch.testing.assert_close(grey(x[:, :1]), model(colours), **CLOSE)  # a grey image is the same in colour


def test_a_config_that_contradicts_the_tensors(tmp_path) -> None:
    save_for_hf(foreign("DeiT"), tmp_path, safe_serialization=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["model_args"]["img_size"] = 64
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="5 rows does not fit image_size"):
        import_weights(tmp_path)
    config["model_args"].update(img_size=32, num_heads=5)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="num_heads"):
        import_weights(tmp_path)


def test_an_unsupported_part_is_named(tmp_path) -> None:
    name = "vit_small_patch16_18x2_224"
    model = timm.create_model(name, **{key: FAMILIES["DeiT"][1].get(key, 64) for key in ("img_size", "embed_dim")},
                              depth=1, num_heads=4)
    save_for_hf(model, tmp_path)
    with pytest.raises(ValueError, match="blocks of the class ParallelThingsBlock, which vit does not support"):
        import_weights(tmp_path)


SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
OPTIONS = {
    "no tokens before the patches": (VisionTransformer, {"class_token": False, "no_embed_class": True,
                                                         "global_pool": "avg"}),
    "registers with positions": (Eva, {"num_reg_tokens": 2, "init_values": 0.1}),
    "registers alone": (Eva, {"num_reg_tokens": 2, "init_values": 0.1, "class_token": False, "global_pool": "avg"}),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_other_options_of_a_model_in_memory(case: str) -> None:
    cls, options = OPTIONS[case]
    torch.manual_seed(0)
    reference = scramble(cls(**SIZES, **options))
    model, report = import_weights(reference)
    x = images(model.config)
    with torch.no_grad():
        torch.testing.assert_close(model(x), reference(x), **CLOSE)
    assert report.count("unused") == report.count("new") == 0


def test_the_gate_of_an_mlp_is_its_first_half() -> None:
    with pytest.raises(ValueError, match="a gate in the second half"):
        import_weights(VisionTransformer(**SIZES, mlp_layer=GluMlp))
