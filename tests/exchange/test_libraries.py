"""Imported models of torchvision, vit-pytorch and OpenCLIP: the same outputs with the same random weights."""

import json
from functools import partial

import pytest
import torch
import vit_pytorch
from open_clip import model as open_clip
from safetensors.torch import save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torchvision.models import VisionTransformer

from tests.exchange.conftest import CLOSE, images, scramble, unplaced
from vit.exchange import SourceError, import_weights


def same(model: nn.Module, reference: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(model(x), reference(x), **CLOSE)


def torchvision_vit(size: int = 32) -> nn.Module:
    return scramble(VisionTransformer(size, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=96,
                                      num_classes=5))


def test_torchvision_in_memory() -> None:
    reference = torchvision_vit()
    model, report = import_weights(reference)
    same(model, reference, images())
    assert not unplaced(report) and model.config.num_heads == 4


@pytest.mark.parametrize("old", [False, True], ids=["names of today", "names of 2022"])
def test_torchvision_from_a_file(old: bool, tmp_path) -> None:
    reference = torchvision_vit()
    state = reference.state_dict()
    if old:
        state = {name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): tensor
                 for name, tensor in state.items()}
    torch.save(state, tmp_path / "vit.pth")
    with pytest.raises(SourceError, match="number of heads .* dim 32 and depth 2; give num_heads="):
        import_weights(tmp_path / "vit.pth")
    model, report = import_weights(tmp_path / "vit.pth", num_heads=4)
    same(model, reference, images())
    assert not unplaced(report)


def test_torchvision_at_another_resolution_is_what_torchvision_interpolates() -> None:
    from timm.layers import resample_abs_pos_embed

    source = torchvision_vit()
    model, report = import_weights(source, image_size=48)
    larger = torchvision_vit(48)
    state = source.state_dict()
    state["encoder.pos_embedding"] = resample_abs_pos_embed(state["encoder.pos_embedding"], [6, 6], [4, 4])
    larger.load_state_dict(state)
    same(model, larger, images(48))
    assert report.named("resized") == ["embed.pos_embed"]


OPTIONS = {"patch_size": 8, "num_classes": 5, "dim": 32, "depth": 2, "heads": 3, "mlp_dim": 96}
VIT_PYTORCH = {
    "ViT": lambda: vit_pytorch.ViT(image_size=32, **OPTIONS),
    "ViT, wider heads, mean": lambda: vit_pytorch.ViT(image_size=32, **OPTIONS, dim_head=24, pool="mean"),
    "ViT, one colour": lambda: vit_pytorch.ViT(image_size=32, **OPTIONS, channels=1),
    "ViT, one head without projection": lambda: vit_pytorch.ViT(image_size=32, **{**OPTIONS, "heads": 1}, dim_head=32),
    "SimpleViT": lambda: vit_pytorch.SimpleViT(image_size=32, **OPTIONS),
    "SimpleViT, not square": lambda: vit_pytorch.SimpleViT(image_size=(32, 64), **OPTIONS),
}


@pytest.mark.parametrize("case", VIT_PYTORCH)
def test_vit_pytorch(case: str) -> None:
    reference = scramble(VIT_PYTORCH[case]())
    heads = 1 if "one head" in case else 3
    size = (32, 64) if "not square" in case else 32
    model, report = import_weights(reference.state_dict(), num_heads=heads, image_size=size)
    same(model, reference, images(size, 1 if "colour" in case else 3))
    assert not unplaced(report)


def test_vit_pytorch_in_memory_states_its_number_of_heads() -> None:
    reference = scramble(VIT_PYTORCH["ViT, wider heads, mean"]())
    model, _ = import_weights(reference)
    assert model.config.num_heads == 3
    same(model, reference, images())


def test_vit_pytorch_heads_of_usual_width_are_reported() -> None:
    reference = scramble(VIT_PYTORCH["ViT"]())
    model, report = import_weights(reference.state_dict())
    same(model, reference, images())
    assert any("num_heads 3 is what this format usually has" in note for note in report.notes)
    with pytest.raises(SourceError, match="so that image_size cannot be inferred"):
        import_weights(VIT_PYTORCH["SimpleViT"]().state_dict())


def clip(quick: bool) -> nn.Module:
    vision = open_clip.CLIPVisionCfg(layers=2, width=64, head_width=16, patch_size=8, image_size=32)
    text = open_clip.CLIPTextCfg(context_length=5, vocab_size=11, width=16, heads=2, layers=1)
    return scramble(open_clip.CLIP(6, vision, text, quick_gelu=quick))


@pytest.mark.parametrize("quick", [True, False], ids=["OpenAI", "LAION"])
def test_openclip(quick: bool, tmp_path) -> None:
    reference = clip(quick)
    state = reference.state_dict()
    act = None
    if quick:  # sizes that only OpenAI's files hold
        state |= {name: torch.tensor(7) for name in ("input_resolution", "context_length", "vocab_size")}
    else:
        act = "gelu"
        with pytest.raises(SourceError, match="activation cannot be inferred.*; give activation=.*quick_gelu"):
            import_weights(state, num_heads=4)
    model, report = import_weights(state, num_heads=4, activation=act)
    same(model, reference.visual, images())
    assert not unplaced(report)
    assert "transformer.resblocks.0.ln_1.weight" in report.named("excluded")


def test_openclip_tower_alone_in_half_precision() -> None:
    reference = clip(quick=False).half()
    model, _ = import_weights(reference.visual.state_dict(), num_heads=4, activation="gelu")
    same(model, reference.float().visual, images())


def test_openclip_folder(tmp_path) -> None:
    reference = clip(quick=True)
    save_file(reference.state_dict(), tmp_path / "open_clip_model.safetensors")
    vision = {"layers": 2, "width": 64, "head_width": 16, "patch_size": 8, "image_size": 32}
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": {
        "embed_dim": 6, "quick_gelu": True, "vision_cfg": vision, "text_cfg": {}}}))
    model, _ = import_weights(tmp_path)
    same(model, reference.visual, images())


@pytest.mark.parametrize("options", [
    {"pool_type": "avg"}, {"no_ln_pre": True}, {"ls_init_value": 0.1}, {"mlp_ratio": 3.0}, {"image_size": [32, 48]},
    {"norm_kwargs": {"eps": 1e-2}}, {"act_kwargs": {"approximate": "tanh"}}, {"act_kwargs": {"approximate": "none"}},
], ids=str)
def test_options_of_openclip(options: dict, tmp_path) -> None:
    vision = {"layers": 2, "width": 64, "head_width": 16, "patch_size": 8, "image_size": 32, **options}
    text = open_clip.CLIPTextCfg(context_length=5, vocab_size=11, width=16, heads=2, layers=1)
    reference = scramble(open_clip.CLIP(6, open_clip.CLIPVisionCfg(**vision), text))
    save_file(reference.state_dict(), tmp_path / "open_clip_model.safetensors")
    config = {"model_cfg": {"embed_dim": 6, "vision_cfg": vision, "text_cfg": {}}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    model, report = import_weights(tmp_path)
    same(model, reference.visual, images(tuple(vision["image_size"]) if "image_size" in options else 32))
    assert not unplaced(report)


def test_a_config_of_openclip_may_omit_defaults(tmp_path) -> None:
    vision = {"layers": 2, "head_width": 192, "patch_size": 16, "image_size": 32}
    text = open_clip.CLIPTextCfg(context_length=5, vocab_size=11, width=16, heads=2, layers=1)
    reference = scramble(open_clip.CLIP(6, open_clip.CLIPVisionCfg(**vision), text))
    save_file(reference.state_dict(), tmp_path / "open_clip_model.safetensors")
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": {"vision_cfg": vision}}))
    model, _ = import_weights(tmp_path)
    assert (model.config.dim, model.config.num_heads) == (768, 4)
    x = images()
    with torch.no_grad():  # outputs around 1 after sums over 768 and 3,072 values
        torch.testing.assert_close(model(x), reference.visual(x), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("pool", "proj"), [("token", "linear"), ("map", "none")], ids=["projected", "pooled"])
def test_openclip_with_a_tower_of_timm(pool: str, proj: str, tmp_path) -> None:
    vision = {"timm_model_name": "test_vit", "timm_pool": pool, "timm_proj": proj, "image_size": 160}
    text = open_clip.CLIPTextCfg(context_length=5, vocab_size=11, width=16, heads=2, layers=1)
    reference = scramble(open_clip.CLIP(64 if proj == "none" else 6, open_clip.CLIPVisionCfg(**vision), text))
    save_file(reference.state_dict(), tmp_path / "open_clip_model.safetensors")
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": {"vision_cfg": vision}}))
    model, report = import_weights(tmp_path)
    with torch.no_grad():
        x = images(model.config.image_size, batch=1)
        torch.testing.assert_close(model(x), reference.visual(x), **CLOSE)
    assert not unplaced(report)
    if pool == "token":  # whose tensors determine the rest
        alone, _ = import_weights(reference.state_dict(), num_heads=model.config.num_heads)
        assert alone.config.dim == model.config.dim and torch.equal(alone.head.weight, model.head.weight)


@pytest.mark.parametrize("prefix", ["", "module.", "model.", "net._orig_mod.", "teacher.backbone."])
def test_prefixes_of_wrappers_are_removed(prefix: str, tmp_path) -> None:
    reference = torchvision_vit()
    state = {prefix + name: tensor for name, tensor in reference.state_dict().items()}
    torch.save({"epoch": 3, "pytorch-lightning_version": "2.6", "state_dict": state, "optimizer_states": [{}]},
               tmp_path / "last.ckpt")
    model, report = import_weights(tmp_path / "last.ckpt", num_heads=4)
    same(model, reference, images())
    assert any(prefix in note for note in report.notes) and not unplaced(report)


@pytest.mark.parametrize("wrapper", ["_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module._orig_mod"])
def test_wrappers_of_single_blocks_are_removed(wrapper: str) -> None:
    reference = torchvision_vit()
    state = {name.replace("layer_0.", f"layer_0.{wrapper}."): tensor for name, tensor in reference.state_dict().items()}
    model, report = import_weights(state, num_heads=4)
    same(model, reference, images())
    assert not unplaced(report)


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel, lambda model: AveragedModel(torch.compile(model))])
def test_a_wrapped_model_in_memory_states_its_config(wrap) -> None:
    norm = partial(nn.LayerNorm, eps=1e-2)
    reference = scramble(VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=5, norm_layer=norm))
    model, _ = import_weights(wrap(reference))
    same(model, reference, images())


def test_of_two_copies_the_teacher_is_loaded() -> None:
    teacher, student = torchvision_vit(), torchvision_vit()
    with torch.no_grad():
        student.heads.head.bias += 1
    state = {f"{name}.{key}": tensor for name, model in (("student", student), ("teacher", teacher))
             for key, tensor in model.state_dict().items()}
    model, report = import_weights(state, num_heads=4)
    same(model, teacher, images())
    assert "another copy under student. was ignored" in report.notes
