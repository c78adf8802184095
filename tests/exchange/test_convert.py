"""`vit convert`: other libraries load its files with the same predictions, and they are converted back bit for bit."""

import json
import re
import resource
import warnings
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import transformers as hf
from safetensors.torch import load_file
from torchvision.models import VisionTransformer

import vit
from tests import commands
from tests.exchange.conftest import CLOSE, SIZE, images, scramble
from tests.exchange.test_transformers import CASES, expected
from tests.inference.tiny_models import save_translator
from vit.bundle import Calibration, LabelCalibration, load_bundle, save_bundle
from vit.data import Preprocessing
from vit.data.text.tokenizers import BPETokenizer, ByteTokenizer
from vit.exchange import SourceError
from vit.exchange.convert import convert
from vit.exchange.export.comparing import check_same, relative_difference
from vit.weights.transformers_export import to_transformers

PHOTOS = Path(__file__).parents[1] / "data_files" / "clothing"
NAMES = ["cat", "dog", "emu", "fox", "gnu"]
TINY = {"image_size": 32, "patch_size": 8, "dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
PREPARED = {
    "squash": Preprocessing(size=(32, 32), resize="squash", interpolation="bilinear", mean=(0.2,) * 3, std=(0.3,) * 3),
    "cut": Preprocessing(size=(32, 32), resize="shorter", crop_pct=0.8, mean=(0.4,) * 3, std=(0.5,) * 3),
}


@pytest.fixture(autouse=True)
def quiet(recwarn):
    """Warnings about what a target cannot express are tested elsewhere."""


def ours(**options) -> torch.nn.Module:
    torch.manual_seed(0)
    return scramble(vit.create_model("vit_tiny", **{**TINY, **options}))


def bundle(path: Path, prepared: str = "squash", **options) -> Path:
    return save_bundle(path, ours(**options), NAMES, PREPARED[prepared])


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


VARIANTS = {
    # the class of transformers that computes the same, the values that differ from TINY
    "plain": ("ViT", {"norm_eps": 1e-12}),
    "other activation": ("ViT", {"activation": "gelu_tanh", "qkv_bias": False, "in_chans": 1, "norm_eps": 1e-5}),
    "not square": ("ViT", {"image_size": (32, 16)}),
    "no rows for the class token": ("ViT", {"prefix_positions": False}),
    "fixed positions": ("ViT", {"positions": "sincos", "prefix_positions": False}),
    "no positions": ("ViT", {"positions": "none"}),
    "two tokens with heads": ("DeiT", {"dist_token": True}),
    "two tokens without rows": ("DeiT", {"dist_token": True, "prefix_positions": False}),
    "one register": ("DeiT", {"registers": 1}),
    "registers": ("Dinov2WithRegisters", {"registers": 3}),
    "registers without rows": ("Dinov2WithRegisters", {"registers": 3, "prefix_positions": False, "layer_scale": 0.1}),
    "registers, fixed positions": (
        "Dinov2WithRegisters", {"registers": 1, "positions": "sincos", "prefix_positions": False}),
    "LayerScale": ("Dinov2", {"layer_scale": 0.1, "qkv_bias": False}),
    "SwiGLU": ("Dinov2", {"mlp": "swiglu", "activation": "silu", "mlp_ratio": 2.75}),
    "mean beside a class token": ("Dinov2", {"pool": "mean"}),
    "both": ("Dinov2", {"pool": "class_mean", "registers": 0}),
    "mean, registers": ("Dinov2WithRegisters", {"pool": "mean", "registers": 2}),
    "mean without a class token": ("Siglip", {"pool": "mean", "class_token": False, "positions": "sincos"}),
    "no projection's bias": (
        "CLIP", {"pool": "mean", "final_norm": "none", "embed_norm": True, "patch_bias": False}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_transformers_loads_it_as_its_own_model(variant: str, tmp_path) -> None:
    name, options = VARIANTS[variant]
    model = ours(**options)
    size, channels = model.config.image_size, model.config.in_chans
    colours = {"mode": "L", "mean": (0.5,), "std": (0.5,)} if channels == 1 else {}
    save_bundle(tmp_path / "ours", model, NAMES, Preprocessing(size=size, resize="squash", **colours))
    report = convert(tmp_path / "ours", tmp_path / "theirs", "transformers")
    theirs, loading = hf.AutoModelForImageClassification.from_pretrained(tmp_path / "theirs", output_loading_info=True)
    distilled = "WithTeacher" if model.config.dist_token else ""
    assert type(theirs).__name__ == f"{name}ForImageClassification{distilled}" and not any(loading.values())
    assert [theirs.config.id2label[i] for i in range(5)] == NAMES
    x = images(size, channels)
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(x).logits, model(x), **CLOSE)
    assert {row.status for row in report.rows} == {"loaded"}


@pytest.mark.parametrize("variant", ["plain", "registers", "mean without a class token"])
@pytest.mark.parametrize("prepared", PREPARED)
def test_a_pipeline_predicts_the_same(prepared: str, variant: str, tmp_path) -> None:
    from PIL import Image

    convert(bundle(tmp_path / "ours", prepared, **VARIANTS[variant][1]), tmp_path / "theirs", "transformers")
    predictor = vit.load(tmp_path / "ours")
    photo = np.random.default_rng(0).integers(0, 255, (50, 70, 3), np.uint8)
    processor = hf.AutoImageProcessor.from_pretrained(tmp_path / "theirs", backend="pil")
    pipeline = hf.pipeline("image-classification", model=str(tmp_path / "theirs"), image_processor=processor)
    expected = pipeline(Image.fromarray(photo), top_k=5)
    (prediction,) = predictor.predict([photo], top_k=5)
    assert prediction.names == tuple(row["label"] for row in expected)
    assert prediction.probabilities == pytest.approx([row["score"] for row in expected], abs=1e-4)
    read = vit.load(tmp_path / "theirs").preprocessing
    assert read.rounding == ("transformers" if prepared == "cut" else "torchvision")
    assert read.replace(rounding="torchvision") == predictor.preprocessing


MEASURED = r"prepares? images differently: .*pixels of \d+ of 38 synthetic images differ, by up to \d+ of 255 levels"


@pytest.mark.parametrize("options", [{}, {"thresholds": (0.5,) * 5}])
@pytest.mark.parametrize("prepared", PREPARED)
def test_a_pipeline_differs_by_no_more_than_the_conversion_reports(options: dict, prepared: str, tmp_path) -> None:
    save_bundle(tmp_path / "ours", ours(), NAMES, PREPARED[prepared], **options)
    with pytest.warns(UserWarning, match=f"transformers {MEASURED}, which moves probabilities by up to") as warned:
        convert(tmp_path / "ours", tmp_path / "theirs", "transformers")
    text = str(warned[-1].message)
    assert ("computes the same pixels" in text) == (prepared == "squash")
    limit = float(text.partition("probabilities by up to ")[2].partition(";")[0])
    pipeline = hf.pipeline("image-classification", model=str(tmp_path / "theirs"))
    photos = [str(each) for each in sorted(PHOTOS.rglob("*.jpg"))]
    predictions = vit.load(tmp_path / "ours").predict(photos, top_k=5)
    far = [abs(prediction.probabilities[prediction.names.index(row["label"])] - row["score"])
           for prediction, rows in zip(predictions, pipeline(photos, top_k=5), strict=True) for row in rows]
    assert 0 < max(far) <= limit < 1 and len(photos) > 5


def test_a_crop_that_timm_moves_is_measured_and_reported(tmp_path) -> None:
    prepared = Preprocessing(size=(32, 16), resize="shorter", crop_pct=0.9)
    save_bundle(tmp_path / "ours", ours(image_size=(32, 16)), NAMES, prepared)
    with pytest.warns(UserWarning, match=f"timm, and transformers by way of timm, {MEASURED}"):
        convert(tmp_path / "ours", tmp_path / "theirs", "timm")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(bundle(tmp_path / "others", "cut"), tmp_path / "same", "timm")


def test_a_library_that_is_not_installed_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("vit.exchange.export.comparing.find_spec", lambda name: None)
    monkeypatch.setattr("vit.exchange.export.pixel_differences.find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="transformers is not installed, so its outputs and preprocessing were not"):
        convert(bundle(tmp_path / "ours", "cut"), tmp_path / "theirs", "transformers")


# tensors that an import omits, because no output of vit's model depends on them
DINOV3 = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 8}
BOTH_WAYS = {
    **CASES,
    **{name: (hf.DINOv3ViTModel, hf.DINOv3ViTConfig(**DINOV3, **options), "pooler_output") for name, options in {
        "DINOv3, registers": {"num_register_tokens": 4},
        "DINOv3, all biases": {"key_bias": True, "rope_theta": 50.0},
        "DINOv3, gated": {"use_gated_mlp": True, "hidden_act": "silu", "query_bias": False, "value_bias": False},
    }.items()},
}
LOST = {
    "ViT without head": ("pooler.",), "DeiT without head": ("pooler.",),
    "DINOv2": ("mask_token",), "DINOv2, SwiGLU": ("mask_token",), "DINOv2, classifier": ("mask_token",),
    # the class token's position became a part of it
    "DINOv2, registers": ("mask_token", "cls_token", "position_embeddings"),
    "DINOv2, registers, classifier": ("mask_token", "cls_token", "position_embeddings"),
    **{name: ("mask_token",) for name in BOTH_WAYS if name.startswith("DINOv3")},
    "CLIP, both towers": ("text_model.", "text_projection.", "logit_scale"),
    "CLIP, classifier": ("post_layernorm.",),
    "SigLIP, both towers": ("text_model.", "logit_scale", "logit_bias"), "SigLIP, classifier": (".head.",),
}


@pytest.mark.parametrize("case", [
    pytest.param(case, marks=pytest.mark.slow if case in ("DINOv3, gated", "DINOv3, registers") else ())
    for case in BOTH_WAYS
])
def test_from_transformers_and_back_bit_for_bit(case: str, tmp_path) -> None:
    cls, config, what = BOTH_WAYS[case]
    reference = scramble(cls(config))
    reference.save_pretrained(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "bundle")
    convert(tmp_path / "bundle", tmp_path / "again", "transformers")
    (name,) = json.loads((tmp_path / "again" / "config.json").read_text())["architectures"]
    again, loading = getattr(hf, name).from_pretrained(tmp_path / "again", output_loading_info=True)
    assert not {key for keys in loading.values() for key in keys if not key.startswith("pooler.")}
    what = {"CLIP, both towers": "image_embeds", "SigLIP, both towers": "pooler_output"}.get(case, what)
    x = images(channels=model_channels(config))
    with torch.no_grad():
        before = expected(reference, x, "image features" if "both" in case else what)
        torch.testing.assert_close(expected(again.eval(), x, what), before, **CLOSE)
    one, other = ({key.removeprefix("vision_model."): tensor for key, tensor in state.items()
                   if not any(part in f".{key}" for part in LOST.get(case, ()))}
                  for state in (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "again")))
    assert equal(one, other)


def model_channels(config: hf.PreTrainedConfig) -> int:
    return getattr(config, "num_channels", 3)


def test_class_names_survive_the_round_trip(tmp_path) -> None:
    config = hf.ViTConfig(**SIZE, num_labels=5, id2label=dict(enumerate(NAMES)), hidden_act="gelu_new",
                          label2id={name: i for i, name in enumerate(NAMES)})
    scramble(hf.ViTForImageClassification(config)).save_pretrained(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "bundle")
    convert(tmp_path / "bundle", tmp_path / "again", "transformers")
    assert load_bundle(tmp_path / "bundle").classes == NAMES
    assert hf.AutoConfig.from_pretrained(tmp_path / "again").id2label == dict(enumerate(NAMES))


def test_masked_pre_training_continues_in_transformers(tmp_path) -> None:
    torch.manual_seed(0)
    sizes = {key: value for key, value in TINY.items() if key != "num_classes"}
    decoder = {"decoder_dim": 24, "decoder_depth": 1, "decoder_num_heads": 2}
    model = scramble(vit.create_model("mae_tiny", **sizes, **decoder))
    convert(model, tmp_path / "theirs", "transformers")
    theirs, loading = hf.AutoModelForPreTraining.from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert type(theirs) is hf.ViTMAEForPreTraining and not any(loading.values())
    x, noise = images(), torch.rand(2, 16, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(x, noise=noise).logits, model(x, noise)[0], **CLOSE)
    again, _ = vit.import_weights(tmp_path / "theirs")  # its encoder, as a classifier begins
    assert torch.equal(again.encoder.blocks[1].attn.qkv.weight, model.encoder.blocks[1].attn.qkv.weight)


def test_a_file_that_lacks_weights_of_transformers_is_not_saved(tmp_path, monkeypatch) -> None:
    def without_a_norm(state, config):
        values, tensors = to_transformers(state, config)
        return values, {name: tensor for name, tensor in tensors.items() if name != "decoder.decoder_norm.weight"}

    monkeypatch.setattr("vit.exchange.convert.to_transformers", without_a_norm)
    sizes = {key: value for key, value in TINY.items() if key != "num_classes"}
    model = vit.create_model("mae_tiny", **sizes, decoder_dim=24, decoder_depth=1, decoder_num_heads=2)
    with pytest.raises(SourceError, match="transformers cannot read .* it finds no weights for decoder.decoder_norm.w"):
        convert(model, tmp_path / "theirs", "transformers")
    assert not list(tmp_path.iterdir())


TEXTS = {"dim": 32, "depth": 2, "num_heads": 4, "max_len": 40, "embed_norm": True, "pre_norm": False}
TOKENIZERS = {"bytes": ByteTokenizer(lower=True), "byte pairs": BPETokenizer.train(["the cat sat on the mat"] * 9, 280)}


READ = {1: ["the cat sat", "The CAT\n déjà <eos> 猫"], 2: [("the mat", "sat on"), ("a <pad>", "THE cat")]}


@pytest.mark.parametrize("columns", READ)
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_a_pipeline_predicts_the_same_for_texts(tokenizer: str, columns: int, tmp_path) -> None:
    torch.manual_seed(0)
    saved = TOKENIZERS[tokenizer]
    model = scramble(vit.create_model("text_tiny", **TEXTS, vocab_size=saved.vocab_size, num_classes=5, pool="pooler"))
    save_bundle(tmp_path / "ours", model, NAMES, extra={"columns": columns}, tokenizers={"source": saved})
    convert(tmp_path / "ours", tmp_path / "theirs", "transformers")
    pipeline = hf.pipeline("text-classification", model=str(tmp_path / "theirs"))
    predictions = vit.load(tmp_path / "ours").predict(READ[columns], top_k=5)
    for text, prediction in zip(READ[columns], predictions, strict=True):
        found = pipeline(text if columns == 1 else {"text": text[0], "text_pair": text[1]}, top_k=5)
        assert prediction.names == tuple(row["label"] for row in found)
        assert prediction.probabilities == pytest.approx([row["score"] for row in found], abs=1e-5)


@pytest.mark.parametrize("options", [{}, {"segments": 0}])
def test_text_models_survive_the_round_trip_bit_for_bit(options: dict, tmp_path) -> None:
    torch.manual_seed(0)
    model = scramble(vit.create_model("bert_tiny", **{**TEXTS, **options}, vocab_size=50))
    convert(model, tmp_path / "theirs", "transformers")
    theirs, loading = hf.AutoModelForPreTraining.from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert type(theirs) is hf.BertForPreTraining and not any(loading.values())
    ids = torch.randint(5, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(ids).prediction_logits, model(ids)[0], **CLOSE)
    with pytest.warns(UserWarning, match="back has no tokenizer.* vit predict cannot read texts"):
        convert(tmp_path / "theirs", tmp_path / "back")
    again = vit.import_weights(tmp_path / "theirs")[0].state_dict()
    if not model.config.segments:
        assert not again.pop("embed.segment.weight").any()
    assert equal(again, dict(model.state_dict()))


def torchvision_vit() -> torch.nn.Module:
    return scramble(VisionTransformer(32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=96,
                                      num_classes=5))


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_from_torchvision_and_back_bit_for_bit(ending: str, tmp_path) -> None:
    theirs = torchvision_vit()
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    convert(tmp_path / "theirs.pth", tmp_path / "bundle", num_heads=4)
    convert(tmp_path / "bundle", tmp_path / f"again.{ending}", "torchvision")
    file = tmp_path / f"again.{ending}"
    again = load_file(file) if ending == "safetensors" else torch.load(file, weights_only=True)
    assert equal(dict(theirs.state_dict()), again)
    torchvision_vit().load_state_dict(again)  # every name, no other


def test_torchvision_predicts_the_same(tmp_path) -> None:
    convert(bundle(tmp_path / "ours", mlp_ratio=3.0), tmp_path / "theirs.pth", "torchvision")
    theirs = torchvision_vit()
    theirs.load_state_dict(torch.load(tmp_path / "theirs.pth", weights_only=True))
    with torch.no_grad():
        torch.testing.assert_close(theirs(images()), vit.load(tmp_path / "ours").model(images()), **CLOSE)


def test_a_conversion_draws_no_random_numbers_of_the_program(tmp_path) -> None:
    model = ours()
    before = torch.get_rng_state()
    convert(model, tmp_path / "theirs", "transformers")
    assert torch.equal(torch.get_rng_state(), before)


def test_from_timm_and_back_bit_for_bit(tmp_path) -> None:
    theirs = scramble(timm.create_model("vit_small_patch14_reg4_dinov2", img_size=28, embed_dim=48, depth=2,
                                        num_classes=5))
    convert(theirs, tmp_path / "again", "timm")
    assert equal(dict(theirs.state_dict()), load_file(tmp_path / "again" / "model.safetensors"))
    again = timm.create_model(f"local-dir:{tmp_path / 'again'}", pretrained=True).eval()
    with torch.no_grad():
        assert torch.equal(again(images(28)), theirs(images(28)))


def test_a_bundle_of_timms_own_model_becomes_transformers_own(tmp_path) -> None:
    model = scramble(vit.create_model("timm:vit_tiny_patch16_224", image_size=32, num_classes=5))
    save_bundle(tmp_path / "ours", model, NAMES, PREPARED["squash"])
    convert(tmp_path / "ours", tmp_path / "theirs", "transformers")
    theirs = hf.AutoModelForImageClassification.from_pretrained(tmp_path / "theirs").eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(images()).logits, model(images()), **CLOSE)


def test_a_copied_bundle_has_the_same_metrics_extra_classes_and_preprocessing(tmp_path) -> None:
    save_bundle(tmp_path / "one", ours(), NAMES, PREPARED["cut"], {"val/accuracy": 0.5}, {"data": ["data=digits"]})
    convert(tmp_path / "one", tmp_path / "two")
    one, two = load_bundle(tmp_path / "one"), load_bundle(tmp_path / "two")
    assert (one.metrics, one.extra, one.classes, one.preprocessing) == (two.metrics, two.extra, two.classes,
                                                                        two.preprocessing)
    assert equal(one.model.state_dict(), two.model.state_dict())
    convert(tmp_path / "one", tmp_path / "larger", image_size=48)
    larger = load_bundle(tmp_path / "larger")
    assert larger.extra == one.extra and larger.preprocessing.size == (48, 48) and larger.metrics == {}


def test_a_copy_of_a_model_of_texts_has_its_tokenizers(tmp_path) -> None:
    saved = save_translator(tmp_path / "one")
    convert(saved, tmp_path / "two")
    one, two = load_bundle(saved), load_bundle(tmp_path / "two")
    assert [two.tokenizer(side).to_dict() for side in ("source", "target")] == [ByteTokenizer().to_dict()] * 2
    assert two.extra == one.extra and equal(one.model.state_dict(), two.model.state_dict())


@pytest.mark.parametrize("to", ["bundle", "timm", "transformers", "torchvision"])
def test_a_conversion_that_fails_its_check_leaves_no_files(to: str, tmp_path, monkeypatch) -> None:
    def fail(path, to, model):
        checked.append((path.name, to))
        raise SourceError("other outputs")

    checked, name = [], "theirs.pth" if to == "torchvision" else "theirs"
    monkeypatch.setattr("vit.exchange.convert.check_same", fail)
    with pytest.raises(SourceError, match="other outputs"):
        convert(ours(norm_eps=1e-6), tmp_path / name, to)
    assert checked == [(name, to)] and not list(tmp_path.iterdir())


def test_an_empty_folder_is_a_target_also_in_the_home_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("~/empty", "~/new/copy"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        convert(ours(), name, "transformers")
        assert (Path(name).expanduser() / "model.safetensors").is_file()


def test_several_labels_per_image(tmp_path) -> None:
    thresholds = (0.1, 0.2, 0.3, 0.4, 0.5)
    save_bundle(tmp_path / "ours", ours(norm_eps=1e-6), NAMES, PREPARED["squash"], thresholds=thresholds)
    convert(tmp_path / "ours", tmp_path / "timm", "timm")
    assert load_bundle(tmp_path / "timm").thresholds == thresholds
    convert(tmp_path / "ours", tmp_path / "theirs", "transformers")
    theirs = hf.AutoModelForImageClassification.from_pretrained(tmp_path / "theirs")
    assert theirs.config.problem_type == "multi_label_classification"


@pytest.mark.parametrize("several", [False, True])
def test_the_calibration_of_a_bundle_remains_with_options_that_change_nothing(several: bool, tmp_path) -> None:
    """It was dropped without a warning."""
    numbers, thresholds = ((0.7, 0.6), (0.2, 0.1)), (0.1, 0.2, 0.3, 0.4, 0.5) if several else ()
    record = LabelCalibration(20, (2.0,) * 5, *numbers) if several else Calibration(20, 2.0, *numbers)
    saved = save_bundle(tmp_path / "ours", ours(norm_eps=1e-6), NAMES, PREPARED["squash"], {"val/loss": 0.5},
                        thresholds=thresholds, calibration=record)
    convert(saved, tmp_path / "same", num_heads=4)
    same = load_bundle(tmp_path / "same")
    assert (same.calibration, same.thresholds, same.metrics) == (record, thresholds, {"val/loss": 0.5})
    raw = [1 / (1 + ((1 - each) / each) ** 2) for each in thresholds]  # of probabilities without a temperature
    for name, options, fix in (("larger", {"image_size": 48}, "vit calibrate"),
                               ("timm", {"to": "timm"}, "--to bundle")):
        with pytest.warns(UserWarning, match=f"{name} has no calibration: its probabilities are .*; {fix}"):
            convert(saved, tmp_path / name, **options)
        found = load_bundle(tmp_path / name)
        assert found.calibration is None and found.thresholds == pytest.approx(raw)


@pytest.mark.filterwarnings("ignore:.*names 5 classes, but has 3")
def test_thresholds_of_another_number_of_labels_are_named(tmp_path) -> None:
    """They were dropped without a warning, and the model then predicted one label per image."""
    record = LabelCalibration(20, (2.0,) * 5, (0.7, 0.6), (0.2, 0.1))
    save_bundle(tmp_path / "ours", ours(norm_eps=1e-6), NAMES, PREPARED["squash"], thresholds=(0.1, 0.2, 0.3, 0.4, 0.5),
                calibration=record)
    with pytest.warns(UserWarning, match="of 5 labels, but the model has 3: 0.5 is the threshold of each and its "
                                         "calibration is not used"):
        convert(tmp_path / "ours", tmp_path / "three", num_classes=3)
    assert load_bundle(tmp_path / "three").thresholds == (0.5,) * 3
    convert(tmp_path / "ours", tmp_path / "theirs", "transformers")
    file = tmp_path / "theirs" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "label_thresholds": [0.2, 0.3]}))
    with pytest.warns(UserWarning, match="has thresholds of 2 labels, but the model has 5"):
        assert vit.load(tmp_path / "theirs").thresholds.tolist() == [0.5] * 5


@pytest.mark.parametrize(
    ("options", "to", "message"),
    [
        ({"registers": 2, "qk_norm": True}, "transformers", "DINOv2 supports only qk_norm=False, .*; --to timm saves"),
        ({"mlp": "swiglu", "activation": "silu", "mlp_ratio": 2.5}, "transformers", "two thirds of a multiple of 32"),
        ({"layer_scale": 0.1, "mlp_ratio": 3.5}, "transformers", "a multiple of 32, but this model has 112"),
        ({"mlp": "swiglu", "activation": "gelu"}, "transformers", "DINOv2 supports only activation=silu"),
        ({"pool": "mean", "pool_prefix": True}, "transformers", "DINOv2 supports only pool_prefix=False"),
        ({"pool": "attention"}, "transformers", "transformers' SigLIP supports only class_token=False"),
        ({"pool": "attention", "class_token": False}, "transformers", "SigLIP supports only num_classes=0"),
        ({"embed_norm": True, "patch_bias": False}, "transformers", "CLIP projects the class token without a bias"),
        ({"embed_norm": True}, "transformers", "CLIP supports only patch_bias=False"),
        ({"dist_token": True, "registers": 2}, "transformers", "DeiT supports only registers=0.*--to bundle saves it"),
        ({"norm": "batch"}, "transformers", "only norm=layer, .*; --to bundle saves it unchanged"),
        ({"pool": "mean"}, "torchvision", "torchvision's VisionTransformer supports only pool=class"),
        ({"norm_eps": 1e-5}, "torchvision", "supports only norm_eps=1e-06, but this model has norm_eps=1e-05"),
        ({"positions": "rotary"}, "transformers", "ViT supports only positions=learned or sincos or sincos_simple or"),
        ({"positions": "rotary", "rotary_coordinates": "centred"}, "transformers", "DINOv3 supports only num_class"),
        ({"head_dim": 16}, "transformers", "this model has 4 heads of width 16"),
        ({"pre_norm": False}, "timm", "post-norm"),
        ({"image_size": (32, 16)}, "torchvision", r"supports only a square image_size, not \(32, 16\)"),
    ],
)
def test_a_model_that_the_target_cannot_express_is_an_error(options: dict, to: str, message: str, tmp_path) -> None:
    model = ours(**options)
    with pytest.raises(SourceError, match=message):
        convert(model, tmp_path / "theirs.pth", to)
    assert not list(tmp_path.iterdir())


def test_weights_that_differ_by_3e_5_are_another_model(tmp_path) -> None:
    model = ours()
    convert(model, tmp_path / "theirs.pth", "torchvision")
    check_same(tmp_path / "theirs.pth", "torchvision", model)
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
    with torch.no_grad():
        model.head.weight.mul_(1 + 3e-5), model.head.bias.mul_(1 + 3e-5)
    with pytest.raises(SourceError, match=r"computes other outputs in vit: they differ by 3e-05"):
        check_same(tmp_path / "theirs.pth", "torchvision", model)


def test_an_output_that_is_not_a_number_differs_from_every_number() -> None:
    numbers, wrong = torch.tensor([1.0, 2.0]), torch.tensor([1.0, torch.nan])
    assert relative_difference(torch.tensor([1.0, 2.5]), numbers) == 0.25
    for found, stated in ((wrong, numbers), (numbers, wrong), (numbers[:1], numbers)):
        assert max(map(relative_difference, (numbers, found), (numbers, stated))) == torch.inf


def test_existing_files_are_not_overwritten(tmp_path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("important")
    with pytest.raises(SourceError, match="exists and is not overwritten"):
        convert(ours(), tmp_path / "mine", "transformers")
    with pytest.raises(SourceError, match=r"use one of \.safetensors, \.pth, \.pt"):
        convert(ours(), tmp_path / "folder", "torchvision")


def test_as_a_real_command(tmp_path) -> None:
    source = bundle(tmp_path / "ours")
    torch.save(torchvision_vit().state_dict(), tmp_path / "vit.pth")
    arguments = ["convert", tmp_path / "vit.pth", tmp_path / "bundle", "--to", "bundle", "--num-heads", 4]
    code, out, err = commands.run(commands.VIT, arguments, tmp_path)
    assert code == 0 and "format: torchvision" in out, err
    assert err.count("\n") == 2 and "does not name its 5 classes" in err
    arguments = ["convert", source, tmp_path / "theirs", "--to", "transformers"]
    code, out, err = commands.run(commands.VIT, arguments, tmp_path)
    assert code == 0, err
    assert "32 loaded, 0 resized, 0 new, 0 unused" in out and f"wrote {tmp_path / 'theirs'}" in out
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["model_type"] == "vit"
    code, _, err = commands.run(commands.VIT, arguments, tmp_path)
    assert code == 1 and err.count("\n") == 1 and "exists and is not overwritten" in err


def test_heads_and_activation_that_contradict_a_saved_model_are_an_error(tmp_path):
    """They were ignored: the config of a saved model is complete."""
    saved = bundle(tmp_path / "model")
    with pytest.raises(SourceError, match="num_heads=2 was given, but the saved model has 4; leave it out"):
        convert(saved, tmp_path / "copy", num_heads=2)
    with pytest.raises(SourceError, match="activation=gelu_tanh was given, but the saved model has gelu"):
        convert(saved, tmp_path / "copy", activation="gelu_tanh")
    assert not (tmp_path / "copy").exists()
    convert(saved, tmp_path / "copy", num_heads=4, activation="gelu")


@pytest.mark.parametrize("to", ["timm", "transformers", "torch_export"])
def test_a_full_disk_is_an_error_that_names_the_target(to: str, tmp_path) -> None:
    source, dest = bundle(tmp_path / "model"), tmp_path / ("new.pt2" if to == "torch_export" else "new")
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))  # bytes; Python ignores SIGXFSZ
    try:
        with pytest.raises(ValueError, match=f"(cannot write|saved to) {re.escape(str(dest))}: .*File too large"):
            vit.convert(source, dest, to=to)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [each.name for each in tmp_path.iterdir()] == ["model"]
