"""Logits equal to those of transformers' BERT with the same random weights, after import and export."""

import pytest
import torch
import transformers

import vit
from tests.weights.formats.test_parity import scramble
from vit.models import create_model
from vit.weights import from_bert, load_weights, to_bert

CLOSE = {"rtol": 0, "atol": 1e-5}
SIZES = {
    "plain": {"vocab_size": 50, "max_len": 16, "dim": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 4.0},
    "one head, narrow": {"vocab_size": 7, "max_len": 9, "dim": 8, "depth": 1, "num_heads": 1, "mlp_ratio": 1.5},
    "deep, three segments": {
        "vocab_size": 101, "max_len": 40, "dim": 24, "depth": 12, "num_heads": 3, "mlp_ratio": 2.0, "segments": 3},
}


def their_config(values: dict, **options) -> transformers.BertConfig:
    return transformers.BertConfig(
        vocab_size=values["vocab_size"], max_position_embeddings=values["max_len"], hidden_size=values["dim"],
        num_hidden_layers=values["depth"], num_attention_heads=values["num_heads"],
        intermediate_size=round(values["dim"] * values["mlp_ratio"]), type_vocab_size=values.get("segments", 2),
        **options)


def reference(kind: str, values: dict, **options) -> torch.nn.Module:
    torch.manual_seed(0)
    return scramble(getattr(transformers, kind)(their_config(values, **options)))


def batch(values: dict, rows: int = 3) -> dict[str, torch.Tensor]:
    """Texts of different lengths, the longest as long as allowed, in up to three segments."""
    generator, N = torch.Generator().manual_seed(1), values["max_len"]
    lengths = torch.tensor([N, 2, N // 2])[:rows]
    ids = torch.randint(values["vocab_size"], (rows, N), generator=generator)
    segment = torch.randint(values.get("segments", 2), (rows, N), generator=generator).sort(dim=1).values
    return {"source": ids, "mask": torch.arange(N) < lengths[:, None], "segment": segment}


def theirs(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"input_ids": inputs["source"], "attention_mask": inputs["mask"].long(), "token_type_ids": inputs["segment"]}


@pytest.mark.parametrize("size", SIZES)
def test_pretraining_logits_equal_transformers(size: str) -> None:
    values = SIZES[size]
    bert, model = reference("BertForPreTraining", values), create_model("bert_tiny", **values).eval()
    model.load_state_dict(from_bert(bert.state_dict()))
    inputs = batch(values)
    with torch.no_grad():
        tokens, pairs = model(**inputs)
        expected = bert(**theirs(inputs))
    real = inputs["mask"]
    torch.testing.assert_close(tokens[real], expected.prediction_logits[real], **CLOSE)
    torch.testing.assert_close(pairs, expected.seq_relationship_logits, **CLOSE)


def test_without_mask_and_segment_as_transformers() -> None:
    values = SIZES["plain"]
    bert, model = reference("BertForPreTraining", values), create_model("bert_tiny", **values).eval()
    model.load_state_dict(from_bert(bert.state_dict()))
    ids = batch(values)["source"][:, :11]
    with torch.no_grad():
        tokens, pairs = model(ids)
        expected = bert(ids)
    torch.testing.assert_close(tokens, expected.prediction_logits, **CLOSE)
    torch.testing.assert_close(pairs, expected.seq_relationship_logits, **CLOSE)


@pytest.mark.parametrize("activation", ["relu", "gelu_tanh"])
def test_other_activations_equal_transformers(activation: str) -> None:
    values, name = SIZES["plain"], {"gelu_tanh": "gelu_new"}.get(activation, activation)
    bert = reference("BertForPreTraining", values, hidden_act=name)
    model = create_model("bert_tiny", **values, activation=activation).eval()
    model.load_state_dict(from_bert(bert.state_dict()))
    inputs = batch(values)
    with torch.no_grad():
        tokens, expected = model(**inputs)[0], bert(**theirs(inputs)).prediction_logits
    torch.testing.assert_close(tokens[inputs["mask"]], expected[inputs["mask"]], **CLOSE)


@pytest.mark.parametrize("size", SIZES)
def test_classifier_logits_equal_transformers(size: str) -> None:
    values = SIZES[size]
    bert = reference("BertForSequenceClassification", values, num_labels=5)
    model = create_model("text_tiny", **values, num_classes=5, pool="pooler", embed_norm=True, pre_norm=False,
                         norm_eps=1e-12).eval()
    model.load_state_dict(from_bert(bert.state_dict()))
    inputs = batch(values)
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs), bert(**theirs(inputs)).logits, **CLOSE)


def test_the_encoder_of_a_model_without_heads_equals_transformers() -> None:
    values = SIZES["plain"]
    bert, model = reference("BertModel", values), create_model("bert_tiny", **values).eval()
    report = load_weights(model, bert.state_dict())  # names without "bert." in front
    assert {row.name.split(".")[0] for row in report.rows if row.status == "new"} == {"token_head", "pair_head"}
    inputs = batch(values)
    with torch.no_grad():
        x, expected = model.encode(**inputs), bert(**theirs(inputs))
    torch.testing.assert_close(x[inputs["mask"]], expected.last_hidden_state[inputs["mask"]], **CLOSE)
    torch.testing.assert_close(model.pool(x), expected.pooler_output, **CLOSE)


@pytest.mark.parametrize(
    ("kind", "name", "options"),
    [("BertForPreTraining", "bert_tiny", {}),
     ("BertForSequenceClassification", "text_tiny",
      {"num_classes": 2, "pool": "pooler", "embed_norm": True, "pre_norm": False, "norm_eps": 1e-12})],
)
def test_transformers_loads_the_export(kind: str, name: str, options: dict) -> None:
    values = SIZES["plain"]
    model, bert = scramble(create_model(name, **values, **options)), reference(kind, values)
    _, written = to_bert(model.state_dict(), model.config)
    bert.load_state_dict(written)  # every name, no other
    inputs = batch(values)
    with torch.no_grad():
        scores, expected = model(**inputs), bert(**theirs(inputs))
    if name == "bert_tiny":
        real = inputs["mask"]
        torch.testing.assert_close(expected.prediction_logits[real], scores[0][real], **CLOSE)
    else:
        torch.testing.assert_close(expected.logits, scores, **CLOSE)
    again = from_bert(written)
    assert set(again) == set(model.state_dict())
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())


def test_files_of_2018_name_a_norm_differently() -> None:
    bert = reference("BertForPreTraining", SIZES["plain"])
    state = from_bert(bert.state_dict())
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
           for name, tensor in bert.state_dict().items()}
    old["bert.embeddings.position_ids"] = torch.arange(16)[None]
    again = from_bert(old)
    assert set(again) == set(state) and all(torch.equal(again[name], tensor) for name, tensor in state.items())


def test_a_file_as_transformers_saves_it(tmp_path) -> None:
    from safetensors.torch import load_file

    bert, model = reference("BertForPreTraining", SIZES["plain"]), create_model("bert_tiny", **SIZES["plain"])
    bert.save_pretrained(tmp_path)
    report = load_weights(model, load_file(tmp_path / "model.safetensors"))
    assert {row.status for row in report.rows} == {"loaded", "fused"}


def test_fine_tuning_starts_from_pretraining_by_names() -> None:
    values = SIZES["plain"]
    source = scramble(create_model("bert_tiny", **values))
    model = create_model("text_tiny", **values, num_classes=3, pool="pooler", embed_norm=True, pre_norm=False,
                         norm_eps=1e-12).eval()
    report = load_weights(model, source.state_dict())
    status = {row.name: row.status for row in report.rows if row.status != "loaded"}
    assert {name: s for name, s in status.items() if s == "new"} == {"head.weight": "new", "head.bias": "new"}
    assert {name.split(".")[0] for name, s in status.items() if s == "unused"} == {"token_head", "pair_head"}
    inputs = batch(values)
    torch.testing.assert_close(model.pool(model.encode(**inputs)), source.pool(source.encode(**inputs)), **CLOSE)


def test_a_shorter_text_model_loads_the_first_positions() -> None:
    source = scramble(create_model("bert_tiny", **SIZES["plain"]))
    for max_len, rows in ((10, 10), (20, 16)):
        model = create_model("bert_tiny", **{**SIZES["plain"], "max_len": max_len})
        own = model.embed.pos_embed.detach().clone()
        report = load_weights(model, source.state_dict())
        assert {row.name for row in report.rows if row.status == "resized"} == {"embed.pos_embed"}
        assert torch.equal(model.embed.pos_embed[:, :rows], source.embed.pos_embed[:, :rows])
        assert torch.equal(model.embed.pos_embed[:, rows:], own[:, rows:])


@pytest.mark.parametrize(("name", "reason"), [
    ("BertForMaskedLM", "without the pooler and the head for pairs of texts"),
    ("BertForMultipleChoice", "which predicts a score of each of several choices"),
    ("BertForTokenClassification", "which predicts a class of each token"),
    ("BertLMHeadModel", "which predicts the next token"),
])
def test_a_class_without_counterpart_is_refused_for_its_outputs(name, reason, tmp_path) -> None:
    """Its file is whole, and the encoder that the message names is imported."""
    model = reference(name, SIZES["plain"])
    model.save_pretrained(tmp_path / "whole")
    with pytest.raises(ValueError, match=f"the source is a {name},? {reason}.* model.bert.save_pretrained") as found:
        vit.import_weights(tmp_path / "whole")
    assert "truncated" not in str(found.value)
    model.bert.save_pretrained(tmp_path / "encoder")
    encoder, _ = vit.import_weights(tmp_path / "encoder")
    inputs = batch(SIZES["plain"])
    with torch.no_grad():
        expected = model.bert(**theirs(inputs)).last_hidden_state
        torch.testing.assert_close(encoder.encode(**inputs)[inputs["mask"]], expected[inputs["mask"]], **CLOSE)


def test_a_published_masked_language_model_has_all_parts(tmp_path) -> None:
    """The config of google-bert/bert-base-uncased names BertForMaskedLM, and its file holds BertForPreTraining."""
    model = reference("BertForPreTraining", SIZES["plain"])
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace("BertForPreTraining", "BertForMaskedLM"))
    assert vit.import_weights(tmp_path)[0].config.kind == "masked_text"
