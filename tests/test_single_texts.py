"""One text or path in place of several: no public function takes its letters as the items."""

from pathlib import Path

import numpy as np
import pytest

import vit
from tests.inference.tiny_models import save_translator
from vit import data
from vit.bundle import save_bundle, save_ensemble
from vit.evaluation import matched_split, text_metrics
from vit.models import VisionTransformer, VisionTransformerConfig

SMALL = {"image_size": 4, "patch_size": 2, "dim": 8, "depth": 1, "num_heads": 1}
FUNCTIONS = {
    "sources": lambda folder: save_ensemble(folder / "e", "model"),
    "classes": lambda folder: save_bundle(folder / "b", VisionTransformer(
        VisionTransformerConfig(**SMALL, num_classes=3)), "cat"),
    "classes of a split": lambda folder: matched_split(data.digits(), "cat"),
    "predictions": lambda folder: text_metrics("ab", ["ab"]),
    "references": lambda folder: text_metrics(["a", "b"], "ab"),
    "words": lambda folder: data.read_vectors(folder / "v.txt", "cat"),
    "texts": lambda folder: data.source_tokens(data.ByteTokenizer(), "cat"),
    "texts of a target": lambda folder: data.target_tokens(data.ByteTokenizer(), "cat"),
    "texts of bytes": lambda folder: data.ByteTokenizer().encode_batch("cat"),
    "texts of characters": lambda folder: data.CharTokenizer("act").encode_batch("cat"),
    "texts of BPE": lambda folder: data.BPETokenizer([]).encode_batch("cat"),
    "lines": lambda folder: data.train_tokenizer("char", "a cat"),
    "lines of BPE": lambda folder: data.BPETokenizer.train("a cat", 300),
}


@pytest.mark.parametrize("argument", FUNCTIONS)
def test_one_text_in_place_of_several_is_a_type_error(argument, tmp_path):
    name = argument.split(" ")[0]
    with pytest.raises(TypeError, match=rf"^{name} is one str, but takes several; pass a list: {name}=\['"):
        FUNCTIONS[argument](tmp_path)


@pytest.mark.parametrize("single", [str, Path])
def test_an_ensemble_of_one_path_is_a_type_error(single, tmp_path):
    model = save_translator(tmp_path / "model")
    with pytest.raises(TypeError, match=r"ensemble is one \w+, but takes several; pass a list: ensemble=\["):
        vit.load(model, ensemble=single(model))
    assert len(vit.load(model, ensemble=[single(model)], device="cpu").models) == 2


def test_classes_of_a_table_are_a_list(tmp_path):
    np.savez(tmp_path / "t.npz", images=np.zeros((4, 8, 8), np.uint8), labels=np.arange(4) % 2)
    with pytest.raises(data.DataError, match=r"data\.classes=no is one text; write a list"):
        data.table(tmp_path / "t.npz", classes="no")
