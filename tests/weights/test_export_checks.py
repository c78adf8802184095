"""What a foreign architecture lacks is an error before an export, and tensors that vit does not store are added."""

from types import SimpleNamespace

import pytest
import torch

from vit.models import VisionTransformerConfig
from vit.models.text import TextClassifierConfig
from vit.weights.export_checks import check_exportable, check_square, split_qkv, with_layer_scale, with_position_table

TINY = {"image_size": 32, "patch_size": 8, "dim": 48, "depth": 2, "num_heads": 3, "num_classes": 5}


def config(**changes) -> VisionTransformerConfig:
    return VisionTransformerConfig(**{**TINY, **changes})


def test_parts_that_the_target_lacks_are_errors() -> None:
    check_exportable(config(), "X")
    text = TextClassifierConfig(vocab_size=9, max_len=8, dim=48, depth=1, num_heads=3, num_classes=2)
    with pytest.raises(ValueError, match="X is an image classifier, but this is a model of kind text_classifier"):
        check_exportable(text, "X", ignored=vars(text))
    registers = config(registers=4)
    with pytest.raises(ValueError, match="X supports only registers=0, but this model has registers=4"):
        check_exportable(registers, "X")
    with pytest.raises(ValueError, match="X supports only registers=1 or 2, but this model has registers=4"):
        check_exportable(registers, "X", {"registers": (1, 2)})
    check_exportable(registers, "X", {"registers": (4,)})
    check_exportable(registers, "X", ignored=("registers",))
    with pytest.raises(ValueError, match="but this model has 3 heads of width 32"):
        check_exportable(config(head_dim=32), "X")


@pytest.mark.parametrize("changes", [{"image_size": (32, 48)}, {"patch_size": (8, 16)}])
def test_images_and_patches_must_be_square(changes: dict) -> None:
    check_square(config(), "X")
    with pytest.raises(ValueError, match=f"X supports only a square {next(iter(changes))}"):
        check_square(config(**changes), "X")


def test_a_model_without_layer_scale_gets_ones() -> None:
    scales = with_layer_scale({"head.bias": torch.zeros(5)}, config())
    assert set(scales) == {"head.bias", *(f"encoder.blocks.{i}.ls{j}.gamma" for i in (0, 1) for j in (1, 2))}
    assert all(torch.equal(scale, torch.ones(48)) for name, scale in scales.items() if name != "head.bias")
    assert with_layer_scale({"head.bias": torch.zeros(5)}, config(layer_scale=1e-5)).keys() == {"head.bias"}


def test_rows_of_prefix_tokens_without_positions_are_zero_and_come_first() -> None:
    patches = SimpleNamespace(positions="learned", grid=(2, 3), dim=4)
    table = torch.randn(1, 6, 4)
    padded = with_position_table({"embed.pos_embed": table}, patches, prefix=2)["embed.pos_embed"]
    assert torch.equal(padded, torch.cat([torch.zeros(1, 2, 4), table], dim=1))
    absent = with_position_table({}, SimpleNamespace(positions="none", grid=(2, 3), dim=4), prefix=1)
    assert torch.equal(absent["embed.pos_embed"], torch.zeros(1, 7, 4))


def test_only_the_attention_of_blocks_is_split() -> None:
    weight, pooling = torch.randn(12, 4), torch.randn(12, 4)
    split = split_qkv({"encoder.blocks.0.attn.qkv.weight": weight, "pool.attn.qkv.weight": pooling})
    assert torch.equal(split["pool.attn.qkv.weight"], pooling) and len(split) == 4
    parts = [split[f"encoder.blocks.0.attn.{part}.weight"] for part in "qkv"]
    assert torch.equal(torch.cat(parts), weight)
