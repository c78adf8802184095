"""Images and ids to tokens."""

import pytest
import torch
import torch.nn.functional as F

from vit.nn import (
    CompactStem,
    ConvStem,
    LinearPatches,
    PatchEmbed,
    PooledConvStem,
    Prefix,
    TokenEmbed,
    learned,
    sincos_1d,
    sincos_2d,
)

CLOSE = {"rtol": 0, "atol": 1e-5}


@pytest.mark.parametrize(
    ("image", "patch", "channels"),
    [((32, 32), (8, 8), 3), ((12, 40), (4, 8), 1), ((14, 21), (14, 7), 5), ((66, 64), (2, 1), 3)],
)
def test_linear_patches_equal_the_convolution_and_are_contiguous(image, patch, channels) -> None:
    layer, images = LinearPatches(channels, 20, patch), torch.randn(2, channels, *image)
    tokens = layer(images)
    expected = F.conv2d(images, layer.weight, layer.bias, stride=patch).flatten(2).transpose(1, 2)
    torch.testing.assert_close(tokens, expected, **CLOSE)
    assert tokens.is_contiguous() and layer.weight.shape == (20, channels, *patch)


@pytest.mark.parametrize(("side", "copies"), [(64, 1), (66, 0)])  # 1,024 and 1,089 patches
def test_the_pixels_of_many_patches_are_not_copied_for_the_backward_pass(side, copies) -> None:
    layer, images = LinearPatches(3, 20, (2, 2)), torch.randn(2, 3, side, side)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        layer(images)
    others = {layer.weight.data_ptr(), images.data_ptr()}
    assert sum(x.numel() for x in saved if x.data_ptr() not in others) == copies * images.numel()


@pytest.mark.parametrize(("class_token", "registers"), [(True, 0), (True, 3), (False, 2), (False, 0)])
@pytest.mark.parametrize("with_prefix", [True, False])
def test_order_of_tokens_and_positions(class_token: bool, registers: int, with_prefix: bool) -> None:
    prefix = int(class_token) + registers
    table = learned(6 + (prefix if with_prefix else 0), 8)
    tokens_before = Prefix(class_token, registers=registers)
    embed = PatchEmbed(LinearPatches(3, 8, (4, 4)), (8, 12), prefix=tokens_before, pos_embed=table)
    for parameter in embed.parameters():
        torch.nn.init.normal_(parameter)
    images = torch.randn(2, 3, 8, 12)
    tokens = embed(images)
    assert tokens.shape == (2, prefix + 6, 8) and tokens.is_contiguous() and embed.grid == (2, 3)
    shift = prefix if with_prefix else 0
    torch.testing.assert_close(tokens[:, prefix:], embed.proj(images) + table[:, shift:], **CLOSE)
    if class_token:
        expected = embed.cls_token[0, 0] + (table[0, 0] if with_prefix else 0)
        torch.testing.assert_close(tokens[:, 0], expected.expand(2, -1), **CLOSE)


def test_a_fixed_table_is_not_saved_and_not_trained() -> None:
    embed = PatchEmbed(LinearPatches(3, 8, (4, 4)), (8, 8), pos_embed=sincos_2d((2, 2), 8))
    assert "pos_embed" not in embed.state_dict() and "pos_embed" not in dict(embed.named_parameters())
    images = torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(embed(images)[:, 1:], embed.proj(images) + sincos_2d((2, 2), 8), **CLOSE)


@pytest.mark.parametrize("stem", [CompactStem, ConvStem, PooledConvStem])
@pytest.mark.parametrize(("image", "patch"), [((16, 16), (4, 4)), ((16, 32), (4, 8)), ((8, 6), (2, 1))])
def test_convolutions_have_the_grid_of_the_patches(stem, image, patch) -> None:
    embed = PatchEmbed(stem(3, 24, patch), image, prefix=Prefix(class_token=False))
    tokens = embed(torch.randn(2, 3, *image))
    assert tokens.shape == (2, embed.grid[0] * embed.grid[1], 24) and tokens.is_contiguous()


def test_the_compact_stem_is_its_convolutions_and_pooling() -> None:
    """In the order of the paper, and a token depends on a neighbourhood that overlaps with that of the next one."""
    torch.manual_seed(0)
    stem = CompactStem(3, 24, (8, 8))
    images = torch.randn(2, 3, 32, 32)
    for layer in stem.norms:
        torch.nn.init.normal_(layer.weight)
    x = F.conv2d(images, stem.first.weight, stem.first.bias, stride=2, padding=1)
    for i, norm in enumerate(stem.norms):
        if i:
            x = F.conv2d(x, stem.later[i - 1].weight, padding=1)
            x = x.unfold(2, 2, 2).unfold(3, 2, 2).amax((-2, -1))
        deviation = (x.var(1, correction=0, keepdim=True) + norm.eps).sqrt()
        x = F.gelu((x - x.mean(1, keepdim=True)) / deviation * norm.weight[:, None, None] + norm.bias[:, None, None])
    tokens = stem(images)
    torch.testing.assert_close(tokens, x.flatten(2).transpose(1, 2), **CLOSE)
    images[:, :, :, 16] += 1  # the first column of the third patch of each row
    changed = (stem(images) != tokens).any(-1)[0].view(4, 4)
    assert changed[:, 1:3].all() and not changed[:, 0].any()


def small(**options) -> PatchEmbed:
    return PatchEmbed(LinearPatches(3, 8, (4, 4)), (8, 8), **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PatchEmbed(LinearPatches(3, 8, (16, 16)), (100, 96)),
         "image_size 100 is not divisible by patch_size 16; nearest valid: 96, 112"),
        (lambda: PatchEmbed(LinearPatches(3, 8, (16, 16)), (8, 8)),
         "image_size 8 is not divisible by patch_size 16; nearest valid: 16"),
        (lambda: small(pos_embed=learned(7, 8)), r"pos_embed has 7 rows.*needs 4, or 5"),
        (lambda: ConvStem(3, 8, (6, 6)), "powers of two"),
        (lambda: PooledConvStem(3, 8, (0, 4)), "powers of two"),
        (lambda: CompactStem(3, 8, (4, 12)), "powers of two"),
        (lambda: PatchEmbed(CompactStem(3, 8, (4, 4)), (8, 8), flexible=True), "CompactStem mixes an image"),
        (lambda: small()(torch.zeros(1, 1, 8, 8)), "images have 1 channels.*in_chans 3"),
        (lambda: small()(torch.zeros(1, 3, 8, 12)), "8x12 pixels.*image_size 8x8"),
        (lambda: small()(torch.zeros(3, 8, 8)), r"must be a batch \(B,C,H,W\)"),
        (lambda: TokenEmbed(5, 8, pos_embed=learned(4, 8))(torch.zeros(1, 5, dtype=torch.long)),
         "5 tokens, but max_len is 4"),
        (lambda: sincos_2d((2, 2), 10), "dim 10 is not divisible by 4.*nearest: 8, 12"),
    ],
)
def test_errors_name_both_numbers(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool], ids=str)
def test_images_that_are_not_normalized_are_an_error(dtype) -> None:
    with pytest.raises(TypeError, match=f"images have dtype {dtype}.*normalize them"):
        small()(torch.zeros(1, 3, 8, 8, dtype=dtype))


def test_token_embed_positions_scale_and_tied_logits() -> None:
    embed = TokenEmbed(9, 8, pos_embed=sincos_1d(6, 8), scale=3.0)
    ids = torch.tensor([[4, 1, 8]])
    torch.testing.assert_close(embed(ids), embed.token.weight[ids] * 3 + sincos_1d(6, 8)[:, :3])
    torch.testing.assert_close(embed(ids[:, 1:], start=1), embed(ids)[:, 1:])
    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(embed.logits(x), x @ embed.token.weight.T)
    assert len(list(embed.parameters())) == 1


def test_token_embed_adds_segments_and_norms_the_sum() -> None:
    table, norm = learned(6, 8), torch.nn.LayerNorm(8)
    torch.nn.init.normal_(norm.weight)
    embed = TokenEmbed(9, 8, pos_embed=table, scale=2.0, segments=2, norm=norm)
    ids, segment = torch.tensor([[4, 1, 8], [0, 2, 2]]), torch.tensor([[0, 1, 1], [0, 0, 1]])
    total = embed.token.weight[ids] * 2 + embed.segment.weight[segment] + table[:, :3]
    torch.testing.assert_close(embed(ids, segment=segment), F.layer_norm(total, (8,), norm.weight, norm.bias, norm.eps))
    torch.testing.assert_close(embed(ids), embed(ids, segment=torch.zeros_like(ids)))
    torch.testing.assert_close(embed(ids[:, 1:], 1, segment[:, 1:]), embed(ids, segment=segment)[:, 1:])


def test_without_vectors_for_segments_they_make_no_difference() -> None:
    embed, ids = TokenEmbed(9, 8), torch.tensor([[4, 1, 8]])
    assert torch.equal(embed(ids, segment=torch.ones_like(ids)), embed(ids))
    assert set(embed.state_dict()) == {"token.weight"}


def test_token_embed_starts_from_word_vectors() -> None:
    embed, matrix = TokenEmbed(4, 3, scale=5.0), torch.randn(4, 3, dtype=torch.float64)
    before, found = embed.token.weight.detach().clone(), torch.tensor([False, True, False, True])
    embed.load_vectors(matrix, found)
    ids = torch.arange(4)[None]
    torch.testing.assert_close(embed(ids)[0, found], matrix[found].float())
    assert torch.equal(embed.token.weight[~found], before[~found])
    embed(ids).sum().backward()
    assert embed.token.weight.requires_grad and embed.token.weight.grad is not None


@pytest.mark.parametrize(
    ("shape", "marks", "message"),
    [((4, 50), 4, "50 numbers each, but the model's dim is 3; .*dim=50"),
     ((5, 3), 5, "5 word vectors and 5 flags for 4 ids"),
     ((4, 3), 3, "4 word vectors and 3 flags for 4 ids")],
)
def test_word_vectors_that_do_not_fit(shape: tuple[int, int], marks: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenEmbed(4, 3).load_vectors(torch.zeros(shape), torch.ones(marks, dtype=torch.bool))
