"""State dicts as the papers' repositories save them: the same outputs as timm's models, which timm has converted."""

import argparse
import re

import pytest
import timm
import torch
from timm.models.vision_transformer import checkpoint_filter_fn

from tests.exchange.conftest import CLOSE, images, scramble, unplaced
from vit.exchange import import_weights

SIZE = {"img_size": 28, "patch_size": 7, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 0}


def same(model: torch.nn.Module, reference: torch.nn.Module) -> None:
    with torch.no_grad():
        torch.testing.assert_close(model(images(28)), reference(images(28)), **CLOSE)


def backbone(name: str = "vit_base_patch16_224", **options) -> torch.nn.Module:
    return scramble(timm.create_model(name, **{**SIZE, **options}))


def head(prefix: str = "head.") -> dict[str, torch.Tensor]:
    """The projection that DINO learns with."""
    shapes = {"mlp.0.weight": (8, 32), "mlp.0.bias": (8,), "last_layer.weight_g": (9, 1), "last_layer.weight_v": (9, 8)}
    return {f"{prefix}{name}": torch.randn(shape) for name, shape in shapes.items()}


def test_dino_backbone_alone() -> None:
    reference = backbone()
    model, report = import_weights(reference.state_dict(), num_heads=4)
    same(model, reference)
    assert not unplaced(report)


def test_dino_training_checkpoint(tmp_path) -> None:
    reference, student = backbone(), backbone()
    nets = {key: {f"module.backbone.{name}": tensor for name, tensor in net.state_dict().items()} | head("module.head.")
            for key, net in (("student", student), ("teacher", reference))}
    torch.save({**nets, "epoch": 7, "args": argparse.Namespace(arch="vit_base")}, tmp_path / "checkpoint.pth")
    model, report = import_weights(tmp_path / "checkpoint.pth", num_heads=4)
    same(model, reference)
    assert not unplaced(report) and len(report.named("excluded")) == 4
    assert "of teacher, student the weights of teacher are used" in report.notes


def dinov2_state(registers: int, chunks: bool, gated: bool) -> dict[str, torch.Tensor]:
    """Names and shapes of the original DINOv2; chunked as its files for training on many GPUs are."""
    options = {"init_values": 1e-5, **({"mlp_ratio": 4.0} if gated else {})}
    name = "vit_giant_patch14_dinov2" if gated else "vit_small_patch14_dinov2"
    state = dict(backbone(name, **options).state_dict())
    state["mask_token"] = torch.randn(1, 32)
    if registers:
        state["register_tokens"] = torch.randn(1, registers, 32)
    if gated:
        state = {name.replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3"): each for name, each in state.items()}
    if chunks:
        state = {re.sub(r"^blocks\.(\d+)\.", r"blocks.\1.\1.", name): each for name, each in state.items()}
    return state


@pytest.mark.parametrize("gated", [False, True], ids=["MLP", "SwiGLU"])
@pytest.mark.parametrize("registers", [0, 4])
def test_dinov2(registers: int, gated: bool) -> None:
    state = dinov2_state(registers, chunks=False, gated=gated)
    name = f"vit_{'giant' if gated else 'small'}_patch14_{'reg4_' if registers else ''}dinov2"
    reference = timm.create_model(name, **SIZE, **({"mlp_ratio": 4.0} if gated else {})).eval()
    reference.load_state_dict(checkpoint_filter_fn(dict(state), reference))
    model, report = import_weights(state, num_heads=4)
    same(model, reference)
    assert not unplaced(report) and model.config.mlp == ("swiglu" if gated else "mlp")


def test_dinov2_of_many_gpus(tmp_path) -> None:
    """Blocks in chunks, teacher and student side by side, heads of self-distillation."""
    torch.manual_seed(0)
    state = dinov2_state(4, chunks=True, gated=True)
    whole = {f"{side}.backbone.{name}": tensor for side in ("student", "teacher") for name, tensor in state.items()}
    whole |= head("teacher.dino_head.") | head("student.dino_head.") | head("teacher.ibot_head.")
    torch.save({"model": whole}, tmp_path / "teacher_checkpoint.pth")
    model, report = import_weights(tmp_path / "teacher_checkpoint.pth", num_heads=4)
    plain = {re.sub(r"^blocks\.\d+\.(\d+)\.", r"blocks.\1.", name): tensor for name, tensor in state.items()}
    reference = timm.create_model("vit_giant_patch14_reg4_dinov2", **SIZE, mlp_ratio=4.0).eval()
    reference.load_state_dict(checkpoint_filter_fn(plain, reference))
    same(model, reference)
    assert not unplaced(report)


@pytest.mark.parametrize("decoder", [False, True], ids=["encoder", "with its decoder"])
def test_mae(decoder: bool, tmp_path) -> None:
    reference = backbone()
    state = dict(reference.state_dict())
    if decoder:
        state |= {"mask_token": torch.randn(1, 1, 16), "decoder_pos_embed": torch.randn(1, 17, 16),
                  "decoder_embed.weight": torch.randn(16, 32), "decoder_embed.bias": torch.randn(16)}
    torch.save({"model": state}, tmp_path / "mae.pth")
    model, report = import_weights(tmp_path / "mae.pth", num_heads=4)
    same(model, reference)
    assert not unplaced(report) and len(report.named("excluded")) == (4 if decoder else 0)


def test_mae_fine_tuned_with_the_mean_of_the_patches() -> None:
    reference = backbone(global_pool="avg", num_classes=5)
    model, report = import_weights({"model": reference.state_dict()}, num_heads=4)
    same(model, reference)
    assert not unplaced(report)


def test_deit() -> None:
    reference = backbone("deit_tiny_patch16_224", num_classes=5)
    model, _ = import_weights({"model": reference.state_dict()}, num_heads=4)
    same(model, reference)


def test_deit_iii_names_layer_scale_otherwise() -> None:
    reference = backbone("deit3_small_patch16_224", num_classes=5)
    theirs = {re.sub(r"ls([12])\.gamma", r"gamma_\1", name): each for name, each in reference.state_dict().items()}
    again = timm.create_model("deit3_small_patch16_224", **{**SIZE, "num_classes": 5}).eval()
    again.load_state_dict(checkpoint_filter_fn(dict(theirs), again, adapt_layer_scale=True))
    model, report = import_weights(theirs, num_heads=4)
    same(model, again)
    assert not unplaced(report)


def test_openai_clip_equals_the_conversion_of_timm() -> None:
    from tests.exchange.test_libraries import clip

    state = clip(quick=True).state_dict()
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4, "num_classes": 6}
    reference = timm.create_model("vit_base_patch16_clip_quickgelu_224", **options).eval()
    reference.load_state_dict(checkpoint_filter_fn(dict(state), reference))
    model, _ = import_weights(state, num_heads=4, activation="quick_gelu")
    with torch.no_grad():
        torch.testing.assert_close(model(images()), reference(images()), **CLOSE)
