"""The stacks against torch.nn.TransformerEncoder and TransformerDecoder, and their own properties."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vit.nn import (
    Attention,
    Block,
    Decoder,
    Encoder,
    LayerNorm,
    Mlp,
    ParallelBlock,
    PatchDropout,
    ResPostNormBlock,
    Rotary,
    SwiGLU,
    TokenEmbed,
    learned,
)
from vit.nn.init import init_weights
from vit.nn.transformer import set_autocast_residual

B, T, S, D, H, HIDDEN = 2, 6, 5, 16, 4, 40
CLOSE = {"rtol": 0, "atol": 1e-5}


def stack(cls: type, pre_norm: bool = True, dropout: float = 0.0, drop_path: float = 0.0, block: type = Block,
          **options):
    torch.manual_seed(0)
    cross = cls is Decoder
    blocks = [
        block(D, Attention(D, H, dropout=dropout), Mlp(D, HIDDEN, F.relu, dropout),
              Attention(D, H, cross=True, dropout=dropout) if cross else None,
              pre_norm=pre_norm, dropout=dropout, drop_path=drop_path)
        for _ in range(2)
    ]
    made = cls(blocks, LayerNorm(D) if pre_norm else nn.Identity(), **options)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return made.eval()


def reference(ours: Encoder | Decoder, pre_norm: bool) -> nn.Module:
    """torch's stack with the weights of ours."""
    cross = isinstance(ours, Decoder)
    layer_class = nn.TransformerDecoderLayer if cross else nn.TransformerEncoderLayer
    layer = layer_class(D, H, HIDDEN, activation="relu", batch_first=True, norm_first=pre_norm, layer_norm_eps=1e-6)
    norm = nn.LayerNorm(D, eps=1e-6) if pre_norm else None
    options = {} if cross else {"enable_nested_tensor": False}
    theirs = (nn.TransformerDecoder if cross else nn.TransformerEncoder)(layer, 2, norm, **options)
    names = {"self_attn.in_proj_": "attn.qkv.", "self_attn.out_proj.": "attn.proj.", "linear1.": "mlp.fc1.",
             "linear2.": "mlp.fc2.", "norm1.": "norm1.", "multihead_attn.out_proj.": "cross_attn.proj.",
             "norm2.": "cross_norm.", "norm3.": "norm2."}
    if not cross:
        names["norm2."] = names.pop("norm3.")
    state = ours.state_dict()
    copied = {f"norm.{part}": state[f"norm.{part}"] for part in ("weight", "bias") if pre_norm}
    for i in range(2):
        for part in ("weight", "bias"):
            block = {foreign + part: state.get(f"blocks.{i}.{own}{part}") for foreign, own in names.items()}
            if cross:
                parts = [state[f"blocks.{i}.cross_attn.{leaf}.{part}"] for leaf in ("q", "kv")]
                block[f"multihead_attn.in_proj_{part}"] = torch.cat(parts)
            copied |= {f"layers.{i}.{name}": tensor for name, tensor in block.items() if tensor is not None}
    theirs.load_state_dict(copied)
    return theirs.eval()


@pytest.mark.parametrize("pre_norm", [True, False], ids=["pre-norm", "post-norm"])
def test_encoder_equals_torch(pre_norm: bool) -> None:
    ours = stack(Encoder, pre_norm)
    x, mask = torch.randn(B, S, D), torch.arange(S) < torch.tensor([[3], [5]])
    theirs = reference(ours, pre_norm)
    with torch.enable_grad():  # avoids torch's fused path, which writes zeros at padded positions
        expected = theirs(x.requires_grad_(), src_key_padding_mask=~mask)
    torch.testing.assert_close(ours(x, mask), expected, **CLOSE)


@pytest.mark.parametrize("pre_norm", [True, False], ids=["pre-norm", "post-norm"])
def test_decoder_equals_torch(pre_norm: bool) -> None:
    ours = stack(Decoder, pre_norm)
    x, memory = torch.randn(B, T, D), torch.randn(B, S, D)
    mask, memory_mask = torch.arange(T) < torch.tensor([[6], [4]]), torch.arange(S) < torch.tensor([[3], [5]])
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    expected = reference(ours, pre_norm)(x, memory, tgt_mask=future, tgt_key_padding_mask=~mask,
                                         memory_key_padding_mask=~memory_mask)
    torch.testing.assert_close(ours(x, memory, mask, memory_mask), expected, **CLOSE)


def test_res_post_norm_equals_its_formula_with_a_memory_too() -> None:
    made = stack(Decoder, block=ResPostNormBlock)
    x, memory = torch.randn(B, T, D), torch.randn(B, S, D)
    expected = x
    for block in made.blocks:
        expected = expected + block.norm1(block.attn(expected, causal=True))
        expected = expected + block.cross_norm(block.cross_attn(expected, memory))
        expected = expected + block.norm2(block.mlp(expected))
    torch.testing.assert_close(made(x, memory), made.norm(expected), **CLOSE)


@pytest.mark.parametrize("block", [Block, ResPostNormBlock])
def test_every_block_computes_the_same_with_and_without_its_cache(block: type) -> None:
    made = stack(Decoder, block=block)
    x, memory = torch.randn(B, T, D), torch.randn(B, S, D)
    cache = made.start(memory)
    steps = torch.cat([made.advance(x[:, i : i + 1], cache) for i in range(T)], dim=1)
    torch.testing.assert_close(steps, made(x, memory), **CLOSE)


@pytest.mark.parametrize("pre_norm", [True, False])
def test_a_parallel_block_adds_what_both_make_of_the_same_tokens(pre_norm: bool) -> None:
    made, x = stack(Encoder, pre_norm, block=ParallelBlock), torch.randn(B, T, D)
    expected = x
    for block in made.blocks:
        normed = block.norm1(expected) if pre_norm else expected
        expected = expected + block.attn(normed) + block.mlp(normed)
        expected = expected if pre_norm else block.norm1(expected)
    torch.testing.assert_close(made(x), made.norm(expected), **CLOSE)
    assert not any(name.startswith("blocks.0.norm2") for name in made.state_dict())
    with pytest.raises(ValueError, match="a parallel block does not support cross-attention"):
        stack(Decoder, block=ParallelBlock)


def test_decoder_tokens_do_not_depend_on_later_ones() -> None:
    ours = stack(Decoder, rotary=Rotary((T,), D // H, theta=10_000))
    x, memory = torch.randn(B, T, D), torch.randn(B, S, D)
    changed = x.clone()
    changed[:, 3:] = torch.randn(B, T - 3, D)
    before, after = ours(x, memory), ours(changed, memory)
    torch.testing.assert_close(before[:, :3], after[:, :3], **CLOSE)
    assert not torch.allclose(before[:, 3:], after[:, 3:], atol=1e-3)
    torch.testing.assert_close(ours(x[:, :4], memory), before[:, :4], **CLOSE)


def test_padded_memory_has_no_influence_on_the_decoder() -> None:
    ours, x, memory = stack(Decoder), torch.randn(B, T, D), torch.randn(B, S, D)
    padded = torch.cat([memory, torch.randn(B, 3, D) * 100], dim=1)
    mask = (torch.arange(S + 3) < S).expand(B, -1)
    torch.testing.assert_close(ours(x, padded, memory_mask=mask), ours(x, memory), **CLOSE)


@pytest.mark.parametrize("cls", [Encoder, Decoder])
def test_checkpointing_gives_the_same_gradients(cls: type) -> None:
    """Dropout included: the second forward draws what the first one drew."""
    plain = stack(cls, dropout=0.2, drop_path=0.3).train()
    spared = copy.deepcopy(plain)
    spared.checkpointing = True
    inputs = [torch.randn(B, T, D)] + ([torch.randn(B, S, D)] if cls is Decoder else [])
    results = []
    for made in (plain, spared):
        torch.manual_seed(3)
        out = made(*inputs)
        out.square().sum().backward()
        results.append((out, [parameter.grad for parameter in made.parameters()]))
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1])


def test_checkpointing_computes_blocks_twice() -> None:
    made = stack(Encoder).train()
    calls = []
    for block in made.blocks:
        block.attn.register_forward_hook(lambda *_: calls.append(1))
    made(torch.randn(B, T, D)).sum().backward()
    made.checkpointing = True
    made(torch.randn(B, T, D)).sum().backward()
    assert len(calls) == 2 + 4


def test_features_are_the_outputs_of_the_blocks() -> None:
    made, x, features = stack(Encoder), torch.randn(B, T, D), []
    result = made(x, features=features)
    first = made.blocks[0](x)
    torch.testing.assert_close(features, [first, made.blocks[1](first)])
    torch.testing.assert_close(made.norm(features[-1]), result)


@pytest.mark.parametrize("axes", [0, 1, 2])
def test_patch_dropout_selects_the_positions_and_the_mask_of_its_tokens(axes: int) -> None:
    """The remaining patches are rotated by their own positions and have their own part of the mask."""
    made = stack(Encoder, rotary=Rotary((T,), D // H), patch_dropout=PatchDropout(0.5))
    x, mask = torch.randn(B, T, D), torch.ones(B, T, dtype=torch.bool)
    positions = [None, torch.randperm(T), torch.rand(B, T).argsort(1)][axes]
    made.train()
    torch.manual_seed(1)
    remaining, index = made.patch_dropout(x)
    torch.manual_seed(1)
    result = made(x, mask, positions=positions)
    made.eval()
    made.patch_dropout = None
    only = torch.zeros(B, T, dtype=torch.bool).scatter(1, index, True)
    expected = made(x, only, positions=positions).gather(1, index[..., None].expand(-1, -1, D))
    assert remaining.shape == (B, T // 2, D)
    torch.testing.assert_close(result, expected, **CLOSE)


def test_swiglu_equals_timm() -> None:
    from timm.layers import SwiGLUPacked

    ours, theirs = SwiGLU(D, HIDDEN), SwiGLUPacked(D, 2 * HIDDEN)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(B, T, D)
    torch.testing.assert_close(ours(x), theirs(x), **CLOSE)


def test_translation_of_ids_end_to_end_learns() -> None:
    """TokenEmbed, Encoder, Decoder and tied logits together: one batch is learned."""
    torch.manual_seed(0)
    embed = TokenEmbed(11, D, pos_embed=learned(T, D), scale=D**0.5)
    model = nn.ModuleList([embed, stack(Encoder), stack(Decoder)])
    init_weights(model)
    source, target = torch.randint(11, (B, S)), torch.randint(11, (B, T))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        memory = model[1](embed(source))
        logits = embed.logits(model[2](embed(target[:, :-1]), memory))  # (B,T-1,V)
        loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1


def deep(autocast_residual: bool, memory: bool = False) -> Encoder | Decoder:
    torch.manual_seed(0)
    blocks = [Block(64, Attention(64, 4), Mlp(64, 256), Attention(64, 4, cross=True) if memory else None)
              for _ in range(6)]
    stack = (Decoder if memory else Encoder)(blocks, LayerNorm(64))
    return stack if not autocast_residual or set_autocast_residual(stack) == 1 else None


@pytest.mark.parametrize("memory", [False, True])
def test_residuals_in_the_dtype_of_autocast_stay_close_to_float32(memory: bool) -> None:
    x, others, weight = torch.randn(4, 17, 64), [torch.randn(4, S, 64)] if memory else [], torch.randn(4, 17, 64)
    outputs, gradients = {}, {}
    for residual in (False, True):
        stack = deep(residual, memory)
        exact = stack(x, *others)
        (exact * weight).sum().backward()
        reference = [parameter.grad for parameter in stack.parameters()]
        stack.zero_grad()
        dtypes = set()
        for block in stack.blocks:
            block.register_forward_hook(lambda module, inputs, output, dtypes=dtypes: dtypes.add(output.dtype))
        with torch.autocast("cpu", torch.bfloat16):
            found = stack(x, *others)
        assert dtypes == {torch.bfloat16 if residual else torch.float32}
        (found.float() * weight).sum().backward()
        outputs[residual] = float((found.detach() - exact.detach()).norm() / exact.detach().norm())
        ours = [parameter.grad for parameter in stack.parameters()]
        gradients[residual] = max(float((a - b).norm() / b.norm()) for a, b in zip(ours, reference, strict=True))
    assert outputs[True] < 0.01 > outputs[False], outputs
    assert gradients[True] < 0.05, gradients


def test_without_autocast_the_residuals_stay_float32() -> None:
    x = torch.randn(2, 9, 64)
    assert torch.equal(deep(True)(x), deep(False)(x))
