"""The whole model: its variants, its guarantees about compilation, precision, features and FLOPs."""

import pytest
import torch

from tests.slow_values import quick_and_slow
from vit.models import Classifier, VisionTransformer, VisionTransformerConfig, create_model, flops
from vit.nn import Attention, Block, Encoder, LayerNorm, Mean, Mlp, TokenEmbed, attention_maps, learned
from vit.nn.cpu import ALL
from vit.nn.cpu.linear import ANY_SIZE, LARGE

SMALL = {"image_size": (16, 24), "patch_size": (4, 8), "dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
VARIANTS = {
    "plain": {},
    "mean, sin-cos": {"pool": "mean", "class_token": False, "positions": "sincos", "final_norm": "pooled"},
    "rotary, registers": {"positions": "rotary", "registers": 3, "qk_norm": True, "norm": "rms", "mlp": "swiglu"},
    "mixed rotary": {"positions": "learned_rotary", "rotary_mixed": True, "patch_dropout": 0.5},
    "conv stem": {"stem": "conv", "pool": "attention", "layer_scale": 1e-5},
    "post-norm, wide heads": {"pre_norm": False, "final_norm": "none", "head_dim": 12, "positions": "none"},
    "all kinds of dropping": {"dropout": 0.1, "attention_dropout": 0.1, "drop_path": 0.2, "patch_dropout": 0.5},
}


def small(seed: int = 0, **options) -> VisionTransformer:
    torch.manual_seed(seed)
    model = create_model("vit_tiny", **{**SMALL, **options})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def pixels(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, 16, 24, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("variant", quick_and_slow(VARIANTS, "mean, sin-cos", "all kinds of dropping"))
def test_compiles_as_one_graph_forward_and_backward(variant: str) -> None:
    model, x = small(**VARIANTS[variant], depth=1).train(), pixels()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    compiled(x).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.eval()
    torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("prefix", "tokens"), [(False, 12), (True, 15)])
def test_the_sum_is_the_mean_times_the_number_of_tokens(prefix: bool, tokens: int) -> None:
    options = {"registers": 2, "pool_prefix": prefix}
    total, mean = (small(pool=pool, **options).eval() for pool in ("sum", "mean"))
    mean.head.weight.data *= tokens
    with torch.no_grad():
        torch.testing.assert_close(total(pixels()), mean(pixels()), rtol=1e-4, atol=1e-4)
    same, mean = (small(pool=pool, final_norm="pooled").eval() for pool in ("sum", "mean"))
    with torch.no_grad():  # a norm of the pooled vector is invariant to a factor, except through its eps
        torch.testing.assert_close(same(pixels()), mean(pixels()), rtol=1e-3, atol=1e-3)


def test_the_sum_needs_all_patches_in_training() -> None:
    with pytest.raises(ValueError, match="patch_dropout=0.5 reduces in training only; set patch_dropout=0, or"):
        small(pool="sum", patch_dropout=0.5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_half_precision_stays_close(variant: str) -> None:
    model, x = small(**VARIANTS[variant]).eval(), pixels()
    with torch.no_grad():
        exact = model(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = model(x)
        half = model.bfloat16()(x.bfloat16())
    assert cast.dtype == half.dtype == torch.bfloat16
    for result in (cast, half):
        torch.testing.assert_close(result.float(), exact, rtol=0.1, atol=0.1 * exact.abs().max().item())


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_image_does_not_depend_on_the_rest_of_the_batch(variant: str) -> None:
    model, x = small(**VARIANTS[variant]).eval(), pixels(6)
    torch.testing.assert_close(model(x)[4:5], model(x[4:5]), rtol=0, atol=1e-5)


def test_without_positions_the_order_of_patches_has_no_influence() -> None:
    model, x = small(positions="none").eval(), pixels()
    top, bottom = x[:, :, :8], x[:, :, 8:]
    torch.testing.assert_close(model(x), model(torch.cat([bottom, top], dim=2)), rtol=0, atol=1e-5)


def test_names_of_the_parameters() -> None:
    names = set(small(registers=1, layer_scale=0.1, qk_norm=True, final_norm="pooled").state_dict())
    for name in ("embed.proj.weight", "embed.cls_token", "embed.reg_token", "embed.pos_embed",
                 "encoder.blocks.1.norm1.weight", "encoder.blocks.1.attn.qkv.bias",
                 "encoder.blocks.1.attn.q_norm.weight", "encoder.blocks.1.ls1.gamma",
                 "encoder.blocks.1.mlp.fc2.weight", "pool.norm.weight", "head.bias"):
        assert name in names


def test_a_new_model_has_small_logits() -> None:
    """Logits of fresh weights are small and their spread does not grow with depth."""
    torch.manual_seed(0)
    logits = create_model("vit_tiny", image_size=32, patch_size=8, num_classes=10).eval()(torch.randn(8, 3, 32, 32))
    assert logits.abs().max() < 2 and logits.std() > 0.01


def test_features_per_block() -> None:
    model, x = small().eval(), pixels()
    features = model.features(x)
    assert [tuple(f.shape) for f in features] == [(2, 13, 24)] * 2
    torch.testing.assert_close(model.encoder.norm(features[-1]), model.encode(x))
    torch.testing.assert_close(model.features(x, [-1, 0]), features[::-1])


def test_checkpointing_is_switched_as_in_timm() -> None:
    plain, x = small().train(), pixels()
    plain(x).sum().backward()
    gradients = [parameter.grad.clone() for parameter in plain.parameters()]
    plain.zero_grad()
    plain.set_grad_checkpointing()
    plain(x).sum().backward()
    torch.testing.assert_close([parameter.grad for parameter in plain.parameters()], gradients)


def test_attention_maps_by_name() -> None:
    model, x = small(pool="attention").eval(), pixels()
    plain = model(x)
    with attention_maps(model) as maps:
        assert torch.equal(model(x), plain)
    assert {name: tuple(found[0].shape) for name, found in maps.items()} == {
        "encoder.blocks.0.attn": (2, 3, 13, 13), "encoder.blocks.1.attn": (2, 3, 13, 13), "pool.attn": (2, 3, 1, 12)}


def test_texts_are_classified_by_the_same_class() -> None:
    torch.manual_seed(0)
    blocks = [Block(16, Attention(16, 2), Mlp(16, 32)) for _ in range(2)]
    model = Classifier(TokenEmbed(20, 16, pos_embed=learned(8, 16)), Encoder(blocks, LayerNorm(16)), Mean(),
                       torch.nn.Linear(16, 3)).eval()
    ids, mask = torch.randint(20, (2, 6)), torch.ones(2, 6, dtype=torch.bool)
    padded, padding = torch.cat([ids, ids[:, :2]], 1), torch.cat([mask, ~mask[:, :2]], 1)
    torch.testing.assert_close(model(padded, padding), model(ids, mask), rtol=0, atol=1e-5)


def test_flops_equal_the_formula() -> None:
    """Per block 24 N D^2 + 4 N^2 D; then patches and head."""
    with torch.device("meta"):
        model = create_model("vit_base_patch16_224")
    N, D = 197, 768
    expected = 12 * (24 * N * D**2 + 4 * N**2 * D) + 2 * 196 * D * 768 + 2 * D * 1000
    assert flops(model) == expected == 35_127_656_448


def test_flops_leave_the_model_as_it_was() -> None:
    model = create_model("timm:resnet18", num_classes=10, image_size=224).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert 3.6e9 < flops(model) < 3.65e9  # 1.8 G multiplications and additions
    assert model.training and all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_num_classes_zero_gives_pooled_features() -> None:
    assert small(num_classes=0)(pixels()).shape == (2, 24)


@pytest.mark.parametrize("options", [{}, {"pool": "attention", "positions": "rotary"}], ids=["plain", "attention"])
def test_one_exported_program_for_every_batch_size(options: dict) -> None:
    """Sizes are read as `x.shape[0]`: a `len(x)` would freeze the batch size of the example."""
    model, x = small(**options).eval(), pixels(2)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.testing.assert_close(program.module()(pixels(5)), model(pixels(5)), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # torch announces the end of TorchScript
def test_a_traced_program_passes_the_checks_of_torch() -> None:
    """torch traces a second time without gradients and compares the operations."""
    model, x = small().eval(), pixels(2)
    traced = torch.jit.trace(model, x)
    torch.testing.assert_close(traced(pixels(5)), model(pixels(5)), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # torch announces the end of this way to quantise
def test_every_linear_layer_can_be_quantised() -> None:
    model = create_model("vit_tiny", image_size=32, patch_size=16, num_classes=5).eval()
    quantised = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    kinds = [type(quantised.get_submodule(name)) for name, module in model.named_modules()
             if isinstance(module, torch.nn.Linear)]
    assert len(kinds) == 49 and set(kinds) == {torch.ao.nn.quantized.dynamic.Linear}
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(quantised(images), model(images), rtol=0, atol=0.05)


def test_a_hook_on_a_linear_layer_is_called_whatever_its_size(monkeypatch) -> None:
    monkeypatch.setattr("vit.nn.cpu.ENABLED", ALL)
    monkeypatch.setattr("vit.nn.cpu.linear.LARGE", dict.fromkeys(LARGE, ANY_SIZE))
    model = small().eval()
    layers = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    called = []
    for name in layers:
        model.get_submodule(name).register_forward_hook(lambda *seen, name=name: called.append(name))
    with torch.inference_mode():
        model(pixels())
    assert called == layers


def test_init_std_is_the_deviation_of_all_matrices_but_the_head_and_the_patches() -> None:
    torch.manual_seed(0)
    options = {"image_size": 16, "patch_size": 4, "dim": 64, "depth": 2, "num_heads": 2, "num_classes": 3}
    model = VisionTransformer(VisionTransformerConfig(**options, init_std=0.02, pool="attention"))
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.1), name
            assert not module.bias.any()
    xavier = VisionTransformer(VisionTransformerConfig(**options))
    assert xavier.encoder.blocks[0].mlp.fc1.weight.std().item() == pytest.approx((2 / (64 + 256)) ** 0.5, rel=0.1)
    sliced = VisionTransformer(VisionTransformerConfig(**options, init_std=0.02, projection="sliced"))
    assert sliced.encoder.blocks[1].attn.qkv.weight.std().item() == pytest.approx(0.02, rel=0.1)
    with pytest.raises(ValueError, match="init_std is 0, but must be a number above 0, or null"):
        VisionTransformerConfig(**options, init_std=0)
    with pytest.raises(ValueError, match="depth is None, but must be a whole number above 0"):
        VisionTransformerConfig(**{**options, "depth": None})


@pytest.mark.parametrize(("key", "value"), [("pool_heads", 0), ("pool_heads", -2), ("pool_mlp_ratio", 0.0),
                                            ("pool_mlp_ratio", float("nan"))])
def test_attention_pooling_needs_positive_numbers(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{key} is {value}, but must be above 0"):
        VisionTransformerConfig(dim=64, num_heads=2, pool="attention", **{key: value})
