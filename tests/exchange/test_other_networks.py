"""Networks that resemble those of vit, and contradictory sources: refused, or loaded as their config states."""

import json

import pytest
import timm
import torch
import transformers as hf
from open_clip import model as open_clip
from PIL import Image
from safetensors.torch import save_file

import vit
import vit.cli
from tests.exchange.conftest import CLOSE, SIZE, images, scramble
from vit.bundle import load_bundle, save_bundle
from vit.bundle.files import SourceError
from vit.data import Preprocessing
from vit.exchange import import_weights, open_model
from vit.exchange.convert import convert
from vit.run.parts.init_from import load_initial

TINY = {"img_size": 28, "patch_size": 7, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 3}
SIZES = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


def tiny(name: str = "vit_base_patch16_224", **options) -> torch.nn.Module:
    torch.manual_seed(0)
    return scramble(timm.create_model(name, **{**TINY, **options}))


def refused(source, *texts: str, **arguments) -> None:
    with pytest.raises(SourceError) as error:
        import_weights(source, **arguments)
    for text in texts:
        assert text in str(error.value), error.value
    assert "\n" not in str(error.value)


def same(model: torch.nn.Module, reference: torch.nn.Module) -> None:
    with torch.no_grad():
        torch.testing.assert_close(model(images(28)), reference(images(28)), rtol=1e-5, atol=1e-5)


def test_roberta_is_not_bert() -> None:
    model = hf.RobertaModel(hf.RobertaConfig(**SIZES, max_position_embeddings=34, type_vocab_size=1))
    refused(model, "model_type=roberta", "supported are bert")
    refused(model.state_dict(), "RoBERTa", "34 positions", num_heads=2)


def test_a_vision_model_with_the_names_of_vit_is_not_vit() -> None:
    model = hf.YolosModel(hf.YolosConfig(**{**SIZE, "image_size": [32, 32]}, num_detection_tokens=4))
    refused(model, "model_type=yolos", "dinov2")


def test_an_activation_that_contradicts_the_config() -> None:
    refused(tiny(), "activation=relu was given, but the source's config has gelu", activation="relu")
    model = hf.ViTForImageClassification(hf.ViTConfig(**SIZE, num_labels=5))
    refused(model, "activation=silu was given", "gelu", activation="silu")
    import_weights(model, activation="gelu")


@pytest.mark.parametrize(("change", "message"), [
    (lambda t: torch.zeros(32), "cls_token is (32,), but must be (1, tokens, 32)"),
    (lambda t: t.to_sparse(), "cls_token has the layout torch.sparse_coo"),
    (lambda t: t.to("meta"), "cls_token is on the meta device"),
    (lambda t: t.to(torch.int8), "cls_token is of int8"),
    (lambda t: t.to(torch.complex64), "cls_token is of complex64"),
    (lambda t: t * torch.nan, "cls_token holds numbers that are not finite"),
])
def test_a_tensor_that_is_no_weight(change, message: str) -> None:
    state = dict(tiny().state_dict())
    refused({**state, "cls_token": change(state["cls_token"])}, message, num_heads=4)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"image_size": 32.0}, "image_size=32.0 must be"), ({"image_size": "64"}, "image_size='64' must be"),
    ({"image_size": 0}, "image_size=0 must be"), ({"patch_size": (7, 0)}, "patch_size=(7, 0) must be"),
    ({"num_classes": 2.5}, "num_classes=2.5 must be a whole number of 0"), ({"num_heads": 0}, "num_heads=0 must be"),
])
def test_arguments_that_are_no_sizes(arguments: dict, message: str) -> None:
    refused(tiny(), message, **arguments)


@pytest.mark.parametrize(("change", "message"), [
    ({"id2label": {"a": "cat"}}, "the class names cannot be understood"),
    ({"pretrained_cfg": {"input_size": [3, 28, 28], "mean": "no", "std": [1, 1, 1]}}, "the preprocessing of images"),
])
def test_a_config_with_invalid_values(tmp_path, change: dict, message: str) -> None:
    save_file(dict(tiny().state_dict()), tmp_path / "model.safetensors")
    arguments = {key: value for key, value in TINY.items() if key != "num_classes"}
    config = {"architecture": "vit_base_patch16_224", "model_args": arguments, "num_classes": 3}
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    refused(tmp_path, str(tmp_path), message)


def test_a_config_of_other_weights(tmp_path) -> None:
    save_file(dict(tiny().state_dict()), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit", "hidden_size": 64}))
    refused(tmp_path, "describes a vit of transformers", "the names of timm")


def test_only_image_classifiers_are_exported_to_timm(tmp_path) -> None:
    texts = hf.BertForSequenceClassification(hf.BertConfig(**SIZES))
    masked = vit.create_model("mae_tiny", image_size=16, patch_size=4, dim=32, depth=1, num_heads=2)
    for model in (texts, masked):
        with pytest.raises(SourceError, match="timm's models classify images, and this is one of kind"):
            convert(model, tmp_path / "out", "timm")
    assert not (tmp_path / "out").exists()


def test_several_labels_are_converted_to_transformers_and_back(tmp_path) -> None:
    labels = {0: "cat", 1: "big", 2: "old"}
    model = scramble(hf.ViTForImageClassification(hf.ViTConfig(**SIZE, id2label=labels, layer_norm_eps=1e-6)))
    model.config.problem_type = "multi_label_classification"
    model.save_pretrained(tmp_path / "theirs")
    picture = Image.effect_noise((32, 32), 90).convert("RGB")
    with pytest.warns(UserWarning, match="does not state its preprocessing"):
        loaded = vit.load(tmp_path / "theirs")
    assert loaded.thresholds.tolist() == [0.5] * 3
    x = loaded.preprocessing.normalize(loaded.preprocessing.image(picture)[None])
    with torch.no_grad():
        expected = model(x).logits.sigmoid()[0]
    found = loaded.predict([picture], top_k=3)[0]
    assert dict(zip(found.names, found.probabilities, strict=True)) == pytest.approx(
        {name: expected[i].item() for i, name in labels.items()}, abs=1e-5)


def test_thresholds_are_converted_to_transformers_and_back(tmp_path) -> None:
    model = scramble(vit.create_model("vit_tiny", image_size=32, patch_size=8, dim=32, depth=1, num_heads=2,
                                      num_classes=2))
    save_bundle(tmp_path / "ours", model, ["cat", "big"], Preprocessing(size=(32, 32)), thresholds=[0.25, 0.75])
    convert(tmp_path / "ours", tmp_path / "theirs", "transformers")
    assert vit.load(tmp_path / "theirs").thresholds.tolist() == [0.25, 0.75]


@pytest.fixture
def clip_folder(tmp_path):
    """OpenCLIP's folder with an average instead of the class token; the tower in it."""
    vision = {"layers": 2, "width": 32, "head_width": 8, "patch_size": 7, "image_size": 28, "pool_type": "avg"}
    model = scramble(open_clip.CLIP(6, open_clip.CLIPVisionCfg(**vision),
                                    open_clip.CLIPTextCfg(width=16, heads=2, layers=1, vocab_size=40)))
    prepared = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "interpolation": "bilinear", "resize_mode": "squash"}
    config = {"model_cfg": {"embed_dim": 6, "vision_cfg": vision, "text_cfg": {}}, "preprocess_cfg": prepared}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()},
              tmp_path / "open_clip_model.safetensors")
    return tmp_path, model


def test_openclip_pools_and_prepares_as_its_config_states(clip_folder, tmp_path) -> None:
    folder, reference = clip_folder
    model, _ = import_weights(folder)
    same(model, reference.visual)
    with pytest.warns(UserWarning, match="does not name its 6 classes"):
        convert(folder, tmp_path / "bundle", "bundle")
    prepared = load_bundle(tmp_path / "bundle").preprocessing
    assert (prepared.mean, prepared.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert (prepared.resize, prepared.interpolation) == ("squash", "bilinear")
    config = json.loads((folder / "open_clip_config.json").read_text())
    config["model_cfg"]["vision_cfg"]["final_ln_after_pool"] = True
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    refused(folder, "final_ln_after_pool=True", "which vit does not support")


def test_the_weights_of_openclip_beside_those_of_transformers_have_their_own_config(clip_folder) -> None:
    """As in repositories of the hub that hold a model in both forms; config.json describes the other one."""
    folder, reference = clip_folder
    tower = {key: value for key, value in SIZE.items() if key != "num_hidden_layers"}
    config = hf.CLIPConfig(vision_config={**tower, "hidden_act": "quick_gelu", "num_hidden_layers": 1})
    torch.save(hf.CLIPModel(config).state_dict(), folder / "pytorch_model.bin")
    config.save_pretrained(folder)
    for source in (folder, folder / "open_clip_model.safetensors"):
        same(import_weights(source)[0], reference.visual)


def test_a_projection_has_no_classes_to_predict(clip_folder) -> None:
    tower = hf.CLIPVisionModelWithProjection(hf.CLIPVisionConfig(**SIZE, projection_dim=6))
    for source in (clip_folder[0], tower):
        with pytest.raises(SourceError, match="has no classes to predict"):
            vit.load(source)


def test_tensors_without_a_config_are_recognized_by_their_width_or_refused() -> None:
    wide = tiny("eva02_enormous_patch14_clip_224", embed_dim=1792, depth=1, num_heads=16, mlp_ratio=0.1)
    model, report = import_weights(wide.state_dict(), num_heads=16)
    same(model, wide)
    assert any("after in EVA-02 enormous" in note for note in report.notes)
    gap = tiny("vit_so400m_patch16_siglip_gap_256", mlp_ratio=2)
    model, _ = import_weights(gap.state_dict(), num_heads=4, activation="gelu_tanh")
    same(model, gap)
    assert any("give activation=gelu_tanh" in note for note in import_weights(gap.state_dict(), num_heads=4)[1].notes)
    three = tiny("beit3_base_patch16_224")
    same(import_weights(three.state_dict(), num_heads=4)[0], three)
    refused(tiny("beit_base_patch16_224").state_dict(), "BEiT's tables of relative positions", num_heads=4)


def test_another_aspect_and_other_classes_by_the_command_line(tmp_path, capsys) -> None:
    arguments = {key: value for key, value in TINY.items() if key != "num_classes"}
    save_file(dict(tiny().state_dict()), tmp_path / "model.safetensors")
    config = {"architecture": "vit_base_patch16_224", "model_args": arguments, "num_classes": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    changed = ["--to", "bundle", "--image-size", "28x42", "--patch-size", "14", "--num-classes", "2"]
    assert vit.cli.main(["convert", str(tmp_path), str(tmp_path / "out"), *changed]) == 0
    config = load_bundle(tmp_path / "out").model.config
    assert (config.image_size, config.patch_size, config.num_classes) == ((28, 42), (14, 14), 2)
    assert vit.cli.main(["convert", str(tmp_path), str(tmp_path / "b"), "--to", "bundle", "--image-size", "big"]) == 2
    assert "--image-size big must be a number of pixels" in capsys.readouterr().err


def small_network() -> torch.nn.Module:
    return scramble(timm.create_model("test_efficientnet", num_classes=5))


@pytest.mark.parametrize("form", ["file", "folder", "module", "bundle"])
def test_a_network_of_timm_that_is_no_vision_transformer_is_read_by_every_function(form: str, tmp_path) -> None:
    reference = small_network()
    source = tmp_path / "test_efficientnet.safetensors"
    if form == "file":
        save_file(reference.state_dict(), source)
    elif form == "folder":
        timm.models.save_for_hf(reference, source)
    elif form == "module":
        source = reference
    else:
        model = import_weights(reference)[0]
        save_bundle(source, model, list("abcde"), Preprocessing(model.config.image_size))
    x = images(160)
    with torch.no_grad():
        expected = reference(x)
        torch.testing.assert_close(import_weights(source)[0](x), expected, **CLOSE)
        torch.testing.assert_close(vit.load(source).model(x), expected, **CLOSE)
        convert(source, tmp_path / "converted")
        torch.testing.assert_close(vit.load(tmp_path / "converted").model(x), expected, **CLOSE)
        convert(source, tmp_path / "timm", "timm")
    if form != "module":
        initial = load_initial(str(source))
        assert initial.model["kind"] == "timm" and initial.model["name"] == "test_efficientnet"


@pytest.mark.parametrize(("change", "message"), [
    (lambda t: t.to(torch.int8), "conv_stem.weight is of int8, as quantised weights"),
    (lambda t: t * torch.inf, "conv_stem.weight holds numbers that are not finite"),
])
def test_a_tensor_that_is_no_weight_of_a_network_of_timm(tmp_path, change, message: str) -> None:
    """The integers were rounded weights, and infinite numbers were loaded."""
    state, file = small_network().state_dict(), tmp_path / "test_efficientnet.safetensors"
    save_file({**state, "conv_stem.weight": change(state["conv_stem.weight"])}, file)
    refused(file, message)


@pytest.mark.filterwarnings("ignore")
def test_a_stem_with_batch_norms_is_converted(tmp_path) -> None:
    model = scramble(vit.create_model("vit_tiny", image_size=32, patch_size=8, dim=32, depth=1, num_heads=2,
                                      num_classes=3, stem="pooled_conv"))
    convert(model, tmp_path / "bundle")
    with torch.no_grad():
        assert torch.equal(load_bundle(tmp_path / "bundle").model(images()), model(images()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("names", ["the default of transformers", "none in a timm folder"])
def test_several_labels_without_names_have_thresholds(names: str, tmp_path) -> None:
    if names == "none in a timm folder":
        timm.models.save_for_hf(tiny(), tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        config["problem_type"] = "multi_label_classification"
        (tmp_path / "config.json").write_text(json.dumps(config))
        count = config["num_classes"]
    else:
        config, count = hf.ViTConfig(**SIZE, problem_type="multi_label_classification"), 2
        scramble(hf.ViTForImageClassification(config)).save_pretrained(tmp_path)
    assert vit.load(tmp_path).bundle.thresholds == (0.5,) * count


@pytest.mark.filterwarnings("ignore")
def test_a_timm_folder_of_one_channel_reads_grey_images(tmp_path) -> None:
    timm.models.save_for_hf(tiny(in_chans=1), tmp_path)
    preprocessing = vit.load(tmp_path).preprocessing
    assert (preprocessing.mode, len(preprocessing.mean), len(preprocessing.std)) == ("L", 1, 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("channels", [1, 3])
def test_a_model_of_another_number_of_channels_reads_images_of_that_number(channels: int, tmp_path) -> None:
    """The preprocessing kept the source's number, and no image could be predicted."""
    model = scramble(vit.create_model("vit_tiny", image_size=28, patch_size=7, dim=32, depth=1, num_heads=2,
                                      num_classes=3, in_chans=4 - channels))
    stated = {3: {"mean": (0.25, 0.5, 0.75), "std": (0.125, 0.25, 0.375)},
              1: {"mode": "L", "mean": (0.5,), "std": (0.25,)}}[4 - channels]
    source = save_bundle(tmp_path / "source", model, ["a", "b", "c"], Preprocessing(size=28, **stated))
    convert(source, tmp_path / "bundle", in_chans=channels)
    predictor = vit.load(tmp_path / "bundle")
    found = predictor.preprocessing
    assert (found.mode, found.mean, found.std) == ({1: "L", 3: "RGB"}[channels], (0.5,) * channels, (0.25,) * channels)
    picture = Image.effect_noise((28, 28), 90).convert("RGB")
    x = found.normalize(found.image(picture)[None])
    with torch.no_grad():
        expected = import_weights(source, in_chans=channels)[0](x).softmax(-1)[0]
    assert predictor.predict([picture])[0].probabilities[0] == pytest.approx(expected.max().item(), abs=1e-5)


def test_a_model_of_texts_is_opened_for_its_features(tmp_path) -> None:
    reference = scramble(hf.BertModel(hf.BertConfig(**SIZES)))
    reference.save_pretrained(tmp_path)
    found = open_model(tmp_path, features_only=True)
    assert found.preprocessing is None and found.model.config.kind == "text_classifier"


def test_a_checkpoint_of_lightning_with_a_config_of_its_own(tmp_path) -> None:
    model = vit.create_model("vit_tiny", image_size=32, patch_size=8, dim=32, depth=2, num_heads=2, num_classes=3)
    state = {f"net.{name}": tensor for name, tensor in model.state_dict().items()}
    for config in ({"lr": 0.1}, {"model": "vit"}, {"model": {"depth": 2}}, "vit"):
        torch.save({"pytorch-lightning_version": "2.6", "config": config, "state_dict": state}, tmp_path / "a.ckpt")
        found, _ = import_weights(tmp_path / "a.ckpt", num_heads=2, activation="gelu")
        assert torch.equal(found.head.weight, model.head.weight)
