"""Imported `.npz` files of Google, equal to timm's model that has loaded the same random file."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch

from tests.exchange.conftest import CLOSE, images, unplaced
from vit.exchange import import_weights

D, H, K, DEPTH, HIDDEN, PATCH, GRID, CLASSES = 32, 4, 8, 3, 96, 8, 4, 5
SIZE = {"img_size": PATCH * GRID, "patch_size": PATCH, "embed_dim": D, "depth": DEPTH, "num_heads": H,
        "mlp_ratio": HIDDEN / D, "act_layer": "gelu_tanh"}


class Arrays(dict):
    """Random arrays by the names and shapes that Flax gives them."""

    def __init__(self, root: str) -> None:
        super().__init__()
        self.root, self.rng = root, np.random.default_rng(0)

    def add(self, name: str, *shape: int) -> None:
        self[self.root + name] = self.rng.normal(scale=0.2, size=shape).astype(np.float32)

    def norm(self, name: str, *stack: int) -> None:
        self.add(f"{name}/scale", *stack, D)
        self.add(f"{name}/bias", *stack, D)

    def attention(self, name: str, *stack: int) -> None:
        for part in ("query", "key", "value"):
            self.add(f"{name}/{part}/kernel", *stack, D, H, K)
            self.add(f"{name}/{part}/bias", *stack, H, K)
        self.add(f"{name}/out/kernel", *stack, H, K, D)
        self.add(f"{name}/out/bias", *stack, D)

    def mlp(self, name: str, *stack: int) -> None:
        for i, (before, after) in enumerate(((D, HIDDEN), (HIDDEN, D))):
            self.add(f"{name}/Dense_{i}/kernel", *stack, before, after)
            self.add(f"{name}/Dense_{i}/bias", *stack, after)


def npz(path: Path, root: str = "", big_vision: bool = False, token: bool = True, stacked: bool = False,
        map_head: bool = False, head: bool = True, extra: tuple[str, ...] = ()) -> Path:
    arrays = Arrays(root)
    arrays.add("embedding/kernel", PATCH, PATCH, 3, D)
    arrays.add("embedding/bias", D)
    if token:
        arrays.add("cls", 1, 1, D)
    rows = GRID * GRID + (token and not big_vision)
    arrays.add("pos_embedding" if big_vision else "Transformer/posembed_input/pos_embedding", 1, rows, D)
    arrays.norm("Transformer/encoder_norm")
    for block in ["encoderblock"] if stacked else [f"encoderblock_{i}" for i in range(DEPTH)]:
        block_name, stack = f"Transformer/{block}", (DEPTH,) if stacked else ()
        arrays.norm(f"{block_name}/LayerNorm_0", *stack)
        arrays.attention(f"{block_name}/MultiHeadDotProductAttention_{0 if big_vision else 1}", *stack)
        arrays.norm(f"{block_name}/LayerNorm_{1 if big_vision else 2}", *stack)
        arrays.mlp(f"{block_name}/MlpBlock_{0 if big_vision else 3}", *stack)
    if map_head:
        arrays.add("MAPHead_0/probe", 1, 1, D)
        arrays.attention("MAPHead_0/MultiHeadDotProductAttention_0")
        arrays.norm("MAPHead_0/LayerNorm_0")
        arrays.mlp("MAPHead_0/MlpBlock_0")
    if head:
        arrays.add("head/kernel", D, CLASSES)
        arrays.add("head/bias", CLASSES)
    arrays |= {name: np.ones((2, 3), np.float32) for name in extra}
    np.savez(path, **arrays)
    return path


CASES = {
    # how the file is written, how timm's model is built
    "AugReg": ({}, {}),
    "the first ViTs": ({"root": "opt/target/", "extra": ("opt/state/step",)}, {}),
    "big_vision, token": ({"root": "params/", "big_vision": True}, {"no_embed_class": True}),
    "big_vision, mean": ({"root": "params/", "big_vision": True, "token": False},
                         {"class_token": False, "global_pool": "avg", "fc_norm": False}),
    "big_vision, stacked blocks": ({"root": "params/", "big_vision": True, "stacked": True}, {"no_embed_class": True}),
    "big_vision, attention pooling and head": (
        {"root": "params/", "big_vision": True, "token": False, "map_head": True},
        {"class_token": False, "global_pool": "map"}),
    "SigLIP": ({"root": "params/img/", "big_vision": True, "token": False, "map_head": True, "head": False,
                "extra": ("params/txt/Encoder_0/kernel", "params/t", "params/b")},
               {"class_token": False, "global_pool": "map", "num_classes": 0}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_timm(case: str, tmp_path) -> None:
    written, built = CASES[case]
    path = npz(tmp_path / "weights.npz", **written)
    reference = timm.create_model("vit_base_patch16_224", **{**SIZE, "num_classes": CLASSES, **built}).eval()
    reference.load_pretrained(path)
    model, report = import_weights(path)
    with torch.no_grad():
        torch.testing.assert_close(model(images()), reference(images()), **CLOSE)
    assert not unplaced(report) and model.config.num_heads == H  # the number of heads is the size of an axis
    assert len(report.named("excluded")) == len(written.get("extra", ()))
    assert {source for row in report.rows for source in row.sources} == set(np.load(path))


def test_timm_reads_the_same_file_with_the_exact_gelu(tmp_path) -> None:
    path = npz(tmp_path / "weights.npz")
    options = {**SIZE, "num_classes": CLASSES, "act_layer": "gelu"}
    reference = timm.create_model("vit_base_patch16_224", **options).eval()
    reference.load_pretrained(path)
    model, _ = import_weights(path, activation="gelu")
    with torch.no_grad():
        torch.testing.assert_close(model(images()), reference(images()), **CLOSE)


def test_positions_by_rows_and_columns_and_flat_patches(tmp_path) -> None:
    """Files for many resolutions have the same numbers in other shapes."""
    path = npz(tmp_path / "plain.npz", root="params/", big_vision=True, token=False, map_head=True)
    arrays = dict(np.load(path))
    arrays["params/pos_embedding"] = arrays["params/pos_embedding"].reshape(GRID, GRID, D)
    arrays["params/embedding/kernel"] = arrays["params/embedding/kernel"].reshape(-1, D)
    np.savez(tmp_path / "flexible.npz", **arrays)
    plain, flexible = (import_weights(tmp_path / f"{name}.npz")[0] for name in ("plain", "flexible"))
    assert all(torch.equal(flexible.state_dict()[name], each) for name, each in plain.state_dict().items())


def test_fixed_positions_of_better_plain_baselines(tmp_path) -> None:
    """The file has no positions; they equal the table that vit-pytorch computes by the same formula."""
    from vit_pytorch.simple_vit import posemb_sincos_2d

    path = npz(tmp_path / "weights.npz", root="params/", big_vision=True, token=False)
    arrays = dict(np.load(path))
    table = posemb_sincos_2d(GRID, GRID, D)
    np.savez(tmp_path / "learned.npz", **{**arrays, "params/pos_embedding": table[None].numpy()})
    del arrays["params/pos_embedding"]
    np.savez(path, **arrays)
    model, _ = import_weights(path, image_size=PATCH * GRID)
    learned, _ = import_weights(tmp_path / "learned.npz")
    assert model.config.positions == "sincos_simple"
    with torch.no_grad():
        torch.testing.assert_close(model(images()), learned(images()), **CLOSE)


def test_bfloat16_as_jax_writes_it(tmp_path) -> None:
    path = npz(tmp_path / "weights.npz")
    arrays = {name: torch.from_numpy(each).bfloat16().view(torch.int16).numpy().view("V2")
              for name, each in np.load(path).items()}
    np.savez(tmp_path / "half.npz", **arrays)
    model, _ = import_weights(tmp_path / "half.npz")
    expected = torch.from_numpy(np.load(path)["head/kernel"]).bfloat16().float().T
    assert torch.equal(model.head.weight, expected)
