"""Relative positions against timm's, and their dependence on the offset alone."""

import pytest
import torch
from timm.layers import RelPosMlp

from vit.models import VisionTransformer, VisionTransformerConfig
from vit.nn import Attention, RelativePositions, TextRelativePositions, attention_maps

GRID, D, H = (3, 5), 24, 4
CLOSE = {"rtol": 0, "atol": 1e-5}


def relative(prefix: int = 0) -> RelativePositions:
    torch.manual_seed(0)
    return RelativePositions(GRID, H, prefix, hidden=16)


@pytest.mark.parametrize("prefix", [0, 1])
def test_equal_timms(prefix: int) -> None:
    ours = relative(prefix)
    theirs = RelPosMlp(GRID, num_heads=H, hidden_dim=16, prefix_tokens=prefix).eval()
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(), theirs.get_bias(), **CLOSE)


def test_the_number_depends_on_the_offset_alone_and_not_on_the_grid() -> None:
    ours, larger = relative(), RelativePositions((7, 6), H, hidden=16)
    larger.load_state_dict(ours.state_dict())
    bias, wide = ours()[0].view(H, *GRID, *GRID), larger()[0].view(H, 7, 6, 7, 6)
    torch.testing.assert_close(bias[:, 0, 1, 2, 3], bias[:, 0, 2, 2, 4], **CLOSE)
    torch.testing.assert_close(bias[:, 0, 1, 2, 3], wide[:, 4, 3, 6, 5], **CLOSE)
    assert not torch.allclose(bias[:, 0, 1, 2, 3], bias[:, 2, 3, 0, 1], atol=1e-3)


@pytest.mark.parametrize("shape", [(2, 15), (2, 15, 15), (2, H, 15, 15)])
def test_the_mask_is_applied_and_the_bias_added(shape: tuple[int, ...]) -> None:
    ours = Attention(D, H, relative=relative()).eval()
    x, mask = torch.randn(2, 15, D), torch.rand(shape) < 0.6
    mask[..., 0] = True
    with attention_maps(ours) as maps:
        result = ours(x, mask=mask)
    q, k, v = ours.qkv(x).view(2, 15, 3, H, D // H).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-2, -1) * (D // H) ** -0.5 + ours.relative()
    allowed = mask.view({2: (2, 1, 1, 15), 3: (2, 1, 15, 15), 4: (2, H, 15, 15)}[len(shape)])
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    torch.testing.assert_close(maps[""][0], weights, **CLOSE)
    torch.testing.assert_close(result, ours.proj((weights @ v).transpose(1, 2).flatten(2)), **CLOSE)


def test_a_model_learns_them_in_every_block() -> None:
    config = VisionTransformerConfig(image_size=32, patch_size=8, dim=D, depth=2, num_heads=H, num_classes=3,
                                     positions="relative", relative_hidden=8, pool="mean")
    model = VisionTransformer(config)
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    for block in model.encoder.blocks:
        for name, parameter in block.attn.relative.named_parameters():
            assert parameter.grad.abs().sum() > 0, name
    with pytest.raises(ValueError, match="relative needs all patches of the grid; set patch_dropout=0, not 0.5"):
        VisionTransformerConfig(positions="relative", patch_dropout=0.5)


@pytest.mark.parametrize("causal", [False, True])
def test_those_of_texts_equal_t5s(causal: bool) -> None:
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    theirs = T5Attention(T5Config(d_model=D, num_heads=H, d_kv=D // H, is_decoder=causal), True)
    ours = TextRelativePositions(H, causal)
    with torch.no_grad():
        ours.table.weight.copy_(theirs.relative_attention_bias.weight)
    torch.testing.assert_close(ours(None, 200, 200), theirs.compute_bias(200, 200), **CLOSE)
    torch.testing.assert_close(ours(None, 1, 200), theirs.compute_bias(200, 200)[:, :, -1:], **CLOSE)
