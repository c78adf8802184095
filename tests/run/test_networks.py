"""The network of a run and its initial weights."""

from types import SimpleNamespace

import pytest
import torch

from vit.data import ByteTokenizer, Preprocessing
from vit.models import create_model, model_from_config
from vit.models.text import TextClassifierConfig
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.parts.networks import build_model, check_patch_size
from vit.run.parts.text_networks import start_from_vectors, text_model

TINY = {"kind": "text_classifier", "num_classes": 2, "max_len": 8, "dim": 2, "depth": 1, "num_heads": 1}


def test_word_vectors_without_a_matching_token_are_a_warning(tmp_path, caplog):
    assert all(compose([f"model={name}"]).model.vectors is None for name in ("text", "seq2seq"))
    tokenizer = ByteTokenizer()
    model = model_from_config({**TINY, "vocab_size": tokenizer.vocab_size})
    before, file = model.embed.token.weight.detach().clone(), tmp_path / "v.txt"
    file.write_text("has 1 2\nwho 3 4\n")
    start_from_vectors(model, str(file), tokenizer)
    (warned,) = warnings(caplog)
    assert warned.startswith(f"no token is a word of model.vectors={file}, so nothing was loaded from it: use ")
    assert torch.equal(model.embed.token.weight, before)
    caplog.clear()
    file.write_text("a 1 2\n")
    start_from_vectors(model, str(file), tokenizer)
    (a,) = tokenizer.encode("a")
    assert model.embed.token.weight[a].tolist() == [1, 2] and not warnings(caplog)


@pytest.mark.parametrize(("name", "patch_size", "expected"), [
    ("vit_micro_patch8", None, 8), ("vit_micro_patch8", 4, 4), ("vit_micro", None, 16), ("vit_micro", 4, 4),
])
def test_the_patch_size_is_that_of_the_name_else_of_the_data(name, patch_size, expected):
    node = {"name": name, "patch_size": patch_size, "depth": 1}
    model = build_model(node, 16, Preprocessing((32, 32)), ["a", "b"], None)
    assert model.config.patch_size == (expected, expected)


def test_no_patch_size_of_the_data_contradicts_no_model():
    config = {"data": {"patch_size": None}, "overrides": ["data.patch_size=null"], "resumed": False}
    for model in (create_model("vit_micro", depth=1), create_model("timm:resnet10t")):
        check_patch_size(config, model)
        with pytest.raises(ConfigError, match="data.patch_size=4 "):
            check_patch_size({**config, "data": {"patch_size": 4}}, model)


def test_embeddings_of_a_saved_config_without_a_scale_have_none():
    config = resolve(compose(["data=text_table"])) | {"overrides": []}
    required = {"vocab_size": 9, "num_classes": 2, "max_len": 8}
    source = TextClassifierConfig(**required, dim=16, depth=1, num_heads=2, positions="sincos").to_dict()
    del source["scale_embed"]  # as in configs of earlier versions
    made = text_model(config, required, TextClassifierConfig, SimpleNamespace(model=source, name="earlier"))
    assert made.embed.scale == 1 and made.config.positions == "sincos"


def warnings(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
