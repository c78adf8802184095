"""LoRA (arXiv 2106.09685): the formula, its gradients, merged weights, models of vit and timm."""

import pytest
import timm
import torch
from torch import nn

from vit.models import create_model, model_from_config
from vit.training.finetuning.lora import Lora, add_lora
from vit.weights.training_checkpoint import is_added, merge_lora


def ours(**options):
    torch.manual_seed(0)
    model = create_model(
        "vit_tiny", image_size=8, patch_size=4, num_classes=5, dim=24, depth=2, num_heads=2, **options
    )
    return randomised(model)


def of_timm():
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=8, patch_size=4, embed_dim=24, depth=2, num_heads=2, num_classes=5
    )
    return randomised(model.eval())


def randomised(model, std=0.2):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=std)
    return model.eval()


def randomise_lora(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if is_added(name):
                parameter.normal_(std=0.3)


IMAGES = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))
CHOICES = [["q", "v"], ["k"], ["qkv"], ["proj", "fc1", "fc2"], ["q", "k", "v", "proj", "fc1", "fc2"]]


@pytest.mark.parametrize("make", [ours, of_timm])
@pytest.mark.parametrize("matrices", CHOICES)
def test_the_model_is_unchanged_at_first_and_follows_the_formula_later(make, matrices):
    """W + alpha / rank * up @ down, written out row by row of the fused matrix, in a model without LoRA."""
    model, plain = make(), make()
    before = plain(IMAGES)
    add_lora(model, matrices, rank=3, alpha=5.0)
    assert torch.equal(model(IMAGES), before)
    randomise_lora(model)
    state, rows = dict(plain.state_dict()), {"q": 0, "k": 24, "v": 48}
    for name, layer in model.named_modules():
        if not isinstance(layer, Lora):
            continue
        name = name.removesuffix(".lora")
        slices = [slice(None)]
        if name.endswith("qkv"):
            chosen = [rows[part] for part in rows if part in matrices or "qkv" in matrices]
            slices = [slice(first, first + 24) for first in chosen]
        weight = state[f"{name}.weight"].double().clone()
        for rows_of, down, up in zip(slices, layer.down, layer.up, strict=True):
            weight[rows_of] += 5.0 / 3 * up.detach().double() @ down.detach().double()
        state[f"{name}.weight"] = weight.float()
    plain.load_state_dict(state)
    torch.testing.assert_close(model(IMAGES), plain(IMAGES), rtol=1e-5, atol=1e-5)
    assert (plain(IMAGES) - before).abs().max() > 1e-3
    saved = merge_lora(model.state_dict())
    assert saved.keys() == state.keys()
    for name in state:
        torch.testing.assert_close(saved[name], state[name], rtol=1e-6, atol=1e-7)


def test_gradients_are_those_of_the_low_rank_matrices_in_the_dense_one():
    torch.manual_seed(2)
    layer = nn.Linear(7, 6).requires_grad_(False)
    lora = Lora(layer, 2, 4.0, 0.0, [0, 2], of=3)
    down, up = (p.detach().clone().requires_grad_() for p in (lora.down, lora.up))
    with torch.no_grad():
        up.normal_()
        lora.up.copy_(up)
    x, weights = torch.randn(5, 4, 7), torch.randn(5, 4, 6)
    (lora(x, layer(x)) * weights).sum().backward()
    added = torch.cat([up[0] @ down[0], torch.zeros(2, 7), up[1] @ down[1]])
    (nn.functional.linear(x, layer.weight + 2.0 * added, layer.bias) * weights).sum().backward()
    torch.testing.assert_close(lora.down.grad, down.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lora.up.grad, up.grad, rtol=1e-5, atol=1e-5)


def test_dropout_is_on_the_input_of_the_low_rank_matrices():
    torch.manual_seed(3)
    layer = nn.Linear(64, 64)
    lora = Lora(layer, 4, 4.0, 0.5)
    nn.init.normal_(lora.up)
    x = torch.ones(1, 64)
    trained = [lora(x, layer(x)) - layer(x) for _ in range(2)]
    assert not torch.equal(*trained)
    lora.eval()
    torch.testing.assert_close(lora(x, layer(x)) - layer(x), nn.functional.linear(x, lora.up[0] @ lora.down[0]))


def test_half_precision_and_autocast_keep_the_dtype_of_the_result():
    model = ours()
    add_lora(model, ["q", "v", "proj"], rank=2)
    randomise_lora(model)
    exact = model(IMAGES)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(IMAGES)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), exact, rtol=0.2, atol=0.2 * exact.abs().max().item())


def test_layers_keep_their_names_and_classes():
    model = ours()
    kinds = {name: type(module) for name, module in model.named_modules()}
    add_lora(model, ["q", "v", "proj"])
    after = {name: type(module) for name, module in model.named_modules() if ".lora" not in name}
    assert after == kinds
    assert {name.rpartition(".")[0] for name in model.state_dict() if is_added(name)} == {
        f"encoder.blocks.{i}.attn.{leaf}.lora" for i in range(2) for leaf in ("qkv", "proj")
    }


def test_decoders_have_a_query_and_a_fused_key_and_value_for_their_memory():
    sizes = {"vocab_size": 11, "max_len": 9, "dim": 16, "depth": 1, "decoder_depth": 1, "num_heads": 2}
    model = randomised(model_from_config({"kind": "encoder_decoder", **sizes}))
    source, target = torch.randint(11, (2, 6)), torch.randint(11, (2, 5))
    before = model(source, target)
    add_lora(model, ["q", "v"], rank=2)
    assert torch.equal(model(source, target), before)
    layers = {name: module.parts.tolist() for name, module in model.named_modules() if isinstance(module, Lora)}
    assert layers == {
        "encoder.blocks.0.attn.qkv.lora": [0, 2],
        "decoder.blocks.0.attn.qkv.lora": [0, 2],
        "decoder.blocks.0.cross_attn.q.lora": [0],
        "decoder.blocks.0.cross_attn.kv.lora": [1],
    }
    randomise_lora(model)
    plain = model_from_config({"kind": "encoder_decoder", **sizes})
    plain.load_state_dict(merge_lora(model.state_dict()))
    torch.testing.assert_close(plain.eval()(source, target), model(source, target), rtol=1e-5, atol=1e-5)


def test_separate_layers_of_query_key_and_value_are_selected_by_their_letters():
    sizes = {"img_size": 28, "embed_dim": 24, "depth": 1, "num_heads": 2, "num_classes": 5}
    model = timm.create_model("eva02_base_patch14_224", **sizes)
    add_lora(model, ["q", "v"], rank=2)
    layers = [name for name, module in model.named_modules() if isinstance(module, Lora)]
    assert layers == ["blocks.0.attn.q_proj.lora", "blocks.0.attn.v_proj.lora"]


@pytest.mark.parametrize("make", [
    lambda: ours(positions="relative"),
    lambda: timm.create_model("vit_relpos_small_patch16_224", img_size=32, depth=1, rel_pos_type="mlp"),
    lambda: timm.create_model("swinv2_tiny_window8_256", img_size=64, depths=(1, 1), num_heads=(1, 2), window_size=2),
])
def test_the_mlp_of_relative_positions_is_not_adapted(make):
    """Its matrices, from two offsets to one bias per head, would limit the rank of all others."""
    model = make()
    add_lora(model, ["q", "fc1", "fc2"], rank=8)
    leaves = {name.rpartition(".lora")[0].rpartition("blocks.")[2] for name, module in model.named_modules()
              if isinstance(module, Lora)}
    assert {leaf.partition(".")[2] for leaf in leaves} == {"attn.qkv", "mlp.fc1", "mlp.fc2"}


@pytest.mark.parametrize(
    ("matrices", "rank", "message"),
    [
        (["q", "fc3"], 2, r"lora.matrices has 'fc3', but the blocks have q, k, v, proj, fc1, fc2; did you mean fc"),
        (["q"], 25, r"lora.rank is 25, but the largest rank of encoder.blocks.0.attn.qkv is 24"),
        (["q"], 0, "lora.rank is 0, but must be 1 or more"),
        ([], 2, "lora.matrices is empty; name some of q, k, v, proj, fc1, fc2"),
    ],
)
def test_invalid_values_are_errors(matrices, rank, message):
    with pytest.raises(ValueError, match=message):
        add_lora(ours(), matrices, rank)


def test_a_network_without_blocks_of_linear_layers_is_refused():
    with pytest.raises(ValueError, match="lora needs linear layers inside numbered blocks, but ResNet has none"):
        add_lora(timm.create_model("test_resnet"), ["q"])
