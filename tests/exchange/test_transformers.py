"""Imported folders and models of transformers: the same outputs with the same random weights."""

import json

import pytest
import torch
import transformers as hf

from tests.exchange.conftest import CLOSE, SIZE, images, scramble, unplaced
from vit.bundle.files import SourceError
from vit.exchange import import_weights
from vit.weights.formats.transformers import from_transformers

TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 20,
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
DINO = {key: value for key, value in SIZE.items() if key != "intermediate_size"} | {"mlp_ratio": 3}
TOWERS = {"text_config": TEXT, "vision_config": SIZE, "num_labels": 5, "projection_dim": 6}
CASES = {
    # class, config, the output that must be equal
    "ViT": (hf.ViTForImageClassification, hf.ViTConfig(**SIZE, num_labels=5), "logits"),
    "ViT, other options": (
        hf.ViTForImageClassification,
        hf.ViTConfig(**SIZE, num_labels=5, hidden_act="gelu_new", layer_norm_eps=1e-3, qkv_bias=False, num_channels=1),
        "logits"),
    "DeiT": (hf.DeiTForImageClassification, hf.DeiTConfig(**SIZE, num_labels=5), "logits"),
    "DeiT, distilled": (hf.DeiTForImageClassificationWithTeacher, hf.DeiTConfig(**SIZE, num_labels=5), "logits"),
    "DeiT without head": (hf.DeiTModel, hf.DeiTConfig(**SIZE), "class token"),
    "ViT without head": (hf.ViTModel, hf.ViTConfig(**SIZE), "class token"),
    "DINOv2": (hf.Dinov2Model, hf.Dinov2Config(**DINO), "class token"),
    "DINOv2, SwiGLU": (hf.Dinov2Model, hf.Dinov2Config(**DINO, use_swiglu_ffn=True), "class token"),
    "DINOv2, registers": (hf.Dinov2WithRegistersModel, hf.Dinov2WithRegistersConfig(**DINO), "class token"),
    "DINOv2, classifier": (hf.Dinov2ForImageClassification, hf.Dinov2Config(**DINO, num_labels=5), "logits"),
    "DINOv2, registers, classifier": (
        hf.Dinov2WithRegistersForImageClassification, hf.Dinov2WithRegistersConfig(**DINO, num_labels=5), "logits"),
    "CLIP": (hf.CLIPVisionModel, hf.CLIPVisionConfig(**SIZE), "pooler_output"),
    "CLIP, exact GELU": (hf.CLIPVisionModel, hf.CLIPVisionConfig(**SIZE, hidden_act="gelu"), "pooler_output"),
    "CLIP, projected": (
        hf.CLIPVisionModelWithProjection, hf.CLIPVisionConfig(**SIZE, projection_dim=6), "image_embeds"),
    "CLIP, both towers": (hf.CLIPModel, hf.CLIPConfig(**TOWERS), "image features"),
    "CLIP, classifier": (hf.CLIPForImageClassification, hf.CLIPConfig(**TOWERS), "logits"),
    "SigLIP": (hf.SiglipVisionModel, hf.SiglipVisionConfig(**SIZE), "pooler_output"),
    "SigLIP, both towers": (hf.SiglipModel, hf.SiglipConfig(**TOWERS), "image features"),
    "SigLIP, classifier": (hf.SiglipForImageClassification, hf.SiglipConfig(**TOWERS), "logits"),
    "ViTMAE": (hf.ViTMAEModel, hf.ViTMAEConfig(**SIZE, mask_ratio=0.0), "class token"),
}
ABSENT_PARTS = {
    "ViT, no labels": (hf.ViTForImageClassification, hf.ViTConfig(**SIZE, num_labels=0), "logits"),
    "DINOv2, class that may have registers": (
        hf.Dinov2WithRegistersModel, hf.Dinov2WithRegistersConfig(**DINO, num_register_tokens=0), "class token"),
}


def expected(model: torch.nn.Module, x: torch.Tensor, what: str) -> torch.Tensor:
    with torch.no_grad():
        if what == "image features":
            found = model.get_image_features(x)
            return found if isinstance(found, torch.Tensor) else found.pooler_output
        if what == "class token":
            return model(x).last_hidden_state[:, 0]
        return model(x)[what]


@pytest.mark.parametrize("origin", ["folder", "memory"])
@pytest.mark.parametrize("case", [*CASES, *ABSENT_PARTS])
def test_outputs_equal_transformers(case: str, origin: str, tmp_path) -> None:
    cls, config, what = {**CASES, **ABSENT_PARTS}[case]
    torch.manual_seed(0)
    reference = scramble(cls(config))
    if origin == "folder":
        reference.save_pretrained(tmp_path)
    model, report = import_weights(tmp_path if origin == "folder" else reference)
    x = images(channels=getattr(config, "num_channels", 3))
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected(reference, x, what), **CLOSE)
    assert not unplaced(report)


@pytest.mark.parametrize("origin", ["folder", "memory"])
def test_bert_classifier(origin: str, tmp_path) -> None:
    config = hf.BertConfig(vocab_size=30, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_labels=3,
                           intermediate_size=48, max_position_embeddings=12, hidden_act="gelu_new")
    reference = scramble(hf.BertForSequenceClassification(config))
    reference.save_pretrained(tmp_path)
    model, report = import_weights(tmp_path if origin == "folder" else reference)
    ids = torch.randint(30, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    with torch.no_grad():
        torch.testing.assert_close(model(ids, mask), reference(ids, mask.long()).logits, **CLOSE)
    assert not unplaced(report) and "encoder.blocks.0.attn.qkv.weight" in report.named("fused")


def test_bert_pretrained(tmp_path) -> None:
    config = hf.BertConfig(vocab_size=30, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                           intermediate_size=48, max_position_embeddings=12)
    reference = scramble(hf.BertForPreTraining(config))
    reference.save_pretrained(tmp_path)
    model, report = import_weights(tmp_path)
    ids = torch.randint(30, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        (tokens, pairs), expected = model(ids), reference(ids)
        torch.testing.assert_close(tokens, expected.prediction_logits, **CLOSE)
        torch.testing.assert_close(pairs, expected.seq_relationship_logits, **CLOSE)
    assert not unplaced(report)


@pytest.mark.parametrize(("cls", "options", "problem"), [
    (hf.BertForPreTraining, {"tie_word_embeddings": False}, "decoder.weight differs from bert.embeddings"),
    (hf.BertForPreTraining, {"is_decoder": True}, "is_decoder=true"),
    (hf.BertModel, {"is_decoder": True}, "is_decoder=true"),
])
def test_a_bert_that_computes_something_else_is_an_error(cls, options, problem) -> None:
    config = hf.BertConfig(vocab_size=30, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
                           intermediate_size=48, max_position_embeddings=12, **options)
    with pytest.raises(SourceError, match=problem):
        import_weights(scramble(cls(config)))


def test_a_subclass_of_a_model_states_its_config() -> None:
    class Own(hf.ViTForImageClassification):
        pass

    reference = scramble(Own(hf.ViTConfig(**SIZE, num_labels=5, layer_norm_eps=1e-2)))
    model, _ = import_weights(reference)
    with torch.no_grad():
        torch.testing.assert_close(model(images()), reference(images()).logits, **CLOSE)


@pytest.mark.parametrize("case", ["ViT", "DINOv2", "CLIP, both towers", "ViTMAE"])
def test_keys_that_a_config_omits_have_the_defaults_of_transformers(case: str, tmp_path) -> None:
    cls, config, what = CASES[case]
    reference = scramble(cls(config))
    reference.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    for omitted in ("hidden_act", "layer_norm_eps"):
        values.get("vision_config", values).pop(omitted)
    (tmp_path / "config.json").write_text(json.dumps(values))
    model, _ = import_weights(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(model(images()), expected(reference, images(), what), **CLOSE)


@pytest.mark.parametrize("name", ["embeddings.cls_token", "embeddings.position_embeddings"])
def test_registers_need_a_class_token_and_positions(name: str) -> None:
    state = hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8)).state_dict()
    assert from_transformers(state)["embed.reg_token"].shape == (1, 4, 32)
    del state[name]
    with pytest.raises(ValueError, match="there are registers, but no tensor for embed.* the file is truncated"):
        from_transformers(state)


def test_sharded_weights(tmp_path) -> None:
    cls, config, what = CASES["ViT"]
    reference = scramble(cls(config))
    reference.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    model, _ = import_weights(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(model(images()), expected(reference, images(), what), **CLOSE)


def test_the_report_names_the_sources_of_fused_and_split_tensors(tmp_path) -> None:
    cls, config, _ = CASES["SigLIP"]
    _, report = import_weights(cls(config))
    rows = {row.name: row for row in report.rows}
    qkv = rows["encoder.blocks.0.attn.qkv.weight"]
    assert qkv.status == "fused" and [name.split(".")[-2] for name in qkv.sources] == ["q_proj", "k_proj", "v_proj"]
    assert rows["pool.attn.kv.weight"].status == rows["pool.attn.q.weight"].status == "split"
    assert "format: transformers SigLIP" in report.table() and " fused" in report.table()


def test_every_family_has_a_case_with_truncated_files() -> None:
    from tests.exchange.test_convert import BOTH_WAYS
    from tests.faults.cut_weights import TIMM, TRANSFORMERS
    from tests.weights.formats.test_timm import FAMILIES

    assert {*TRANSFORMERS} == {*BOTH_WAYS, "BERT", "BERT, classes"} and tuple(FAMILIES) == TIMM
