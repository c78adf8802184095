"""Images of different sizes in one batch: each is classified as if it were alone."""

import dataclasses
import math

import pytest
import torch
from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg

from tests.models.test_image_sizes import model
from vit.models import VisionTransformer
from vit.nn import attention_maps
from vit.packed_images import PackedImages

PATCH, FULL = (8, 8), (32, 48)  # a grid of 4x6 patches
SIZES = ((32, 48), (48, 32), (16, 32), (32, 48), (8, 96), (24, 24), (32, 16))


def images(sizes=SIZES) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(3, *size, generator=generator) for size in sizes]


def one_by_one(net: VisionTransformer, made: list[torch.Tensor]) -> torch.Tensor:
    net.add_image_sizes([tuple(image.shape[1:]) for image in made])
    return torch.cat([net(image[None]) for image in made])


def gradients(net: VisionTransformer, logits: torch.Tensor) -> list[torch.Tensor]:
    target = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
    return torch.autograd.grad((logits * target).sum(), [p for p in net.parameters() if p.requires_grad],
                               materialize_grads=True)


def close(got, expected, atol=2e-5) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=atol)


@pytest.mark.parametrize("options", [
    {},
    {"class_token": False, "pool": "mean", "final_norm": "pooled"},
    {"registers": 2, "pool": "attention", "prefix_positions": False},
    {"pool": "class_mean", "qk_norm": True, "layer_scale": 0.5},
    {"dist_token": True},
    {"positions": "sincos", "block": "parallel"},
    {"positions": "rotary", "registers": 1, "norm": "rms", "mlp": "swiglu"},
    {"positions": "learned_rotary", "rotary_coordinates": "centred"},
    {"positions": "rotary", "rotary_mixed": True, "rotary_span": (3, 5)},
    {"positions": "none", "attention": "additive", "stem": "normed"},
    {"attention": "cosine", "block": "res_post_norm"},
    {"pre_norm": False, "final_norm": "none", "embed_norm": True, "patch_norm": True},
])
def test_a_packed_batch_equals_its_images_one_by_one(options: dict) -> None:
    net, made = model(FULL, **options), images()
    packed, alone = net(PackedImages.of(made, PATCH)), one_by_one(net, made)
    close(packed, alone)
    for got, expected in zip(gradients(net, packed), gradients(net, alone), strict=True):
        close(got, expected, atol=1e-4)


def test_the_order_of_the_images_does_not_matter() -> None:
    net, made = model(FULL), images()
    order = torch.randperm(len(made), generator=torch.Generator().manual_seed(3))
    found = net(PackedImages.of([made[i] for i in order], PATCH))
    close(found, net(PackedImages.of(made, PATCH))[order], atol=1e-6)


@pytest.mark.parametrize("options", [
    {}, {"positions": "rotary", "registers": 2}, {"class_token": False, "pool": "mean"},
    {"prefix_positions": False, "pool": "attention"},
])
def test_images_of_the_size_of_the_model_give_exactly_the_same_training_step(options: dict) -> None:
    net, batch = model(FULL, **options, dropout=0.1, drop_path=0.3).train(), torch.stack(images((FULL,) * 40))
    net.first = lambda: None  # all tokens, as for packed images
    results = []
    for source in (batch, PackedImages.of(list(batch), PATCH)):
        torch.manual_seed(5)
        logits = net(source)
        results.append([logits, *gradients(net, logits)])
    for packed, plain in zip(*results, strict=True):
        assert torch.equal(packed, plain)


def test_stochastic_depth_drops_branches_of_whole_images() -> None:
    net, made = model(FULL, drop_path=0.6).train(), images()
    features = []
    x, packing = net.embed.packed(*dataclasses.astuple(PackedImages.of(made, PATCH)))
    torch.manual_seed(0)
    net.encoder.packed(x, packing, features)
    change = (features[1] - features[0])[0].abs().sum(-1)  # (T,)
    kept = [part != 0 for part in change.split(packing.lengths)]
    assert all(part.all() or not part.any() for part in kept)
    assert {bool(part.any()) for part in kept} == {True, False}


def test_recomputed_activations_give_the_same_gradient() -> None:
    net, packed = model(FULL, drop_path=0.3).train(), PackedImages.of(images(), PATCH)
    found = []
    for enable in (False, True):
        net.set_grad_checkpointing(enable)
        torch.manual_seed(0)
        found.append(gradients(net, net(packed)))
    for got, expected in zip(*found, strict=True):
        assert torch.equal(got, expected)


def test_attention_stays_within_an_image() -> None:
    net, made = model(FULL), images(((32, 48), (16, 16)))
    with attention_maps(net) as maps:
        net(PackedImages.of(made, PATCH))
    for (weights,) in maps.values():
        assert weights.shape == (1, 3, 25 + 5, 25 + 5)
        assert not weights[:, :, :5, 5:].any() and not weights[:, :, 5:, :5].any()  # the smaller image comes first
        close(weights.sum(-1), torch.ones(1, 3, 30))


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_logits_are_those_of_timm_naflexvit_with_the_same_weights(pool: str) -> None:
    torch.manual_seed(0)
    size, dim, depth = (32, 48), 24, 2
    cfg = NaFlexVitCfg(patch_size=8, embed_dim=dim, depth=depth, num_heads=3, class_token=pool == "class",
                       reg_tokens=0, pos_embed_grid_size=(4, 6), global_pool="token" if pool == "class" else "avg",
                       fc_norm=False, final_norm=True, pos_embed_interp_mode="bicubic")
    timms = NaFlexVit(cfg, num_classes=5, in_chans=3).eval()
    with torch.no_grad():
        for parameter in timms.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    ours = model(size, class_token=pool == "class", pool=pool, prefix_positions=False)
    ours.load_state_dict(from_naflex(timms.state_dict(), dim))
    made = images()
    close(ours(PackedImages.of(made, PATCH)), timms(naflex_batch(made)))


def from_naflex(state: dict, dim: int) -> dict:
    """NaFlexVit's weights under our names; its patches are flattened with the channels last."""
    weights = {}
    for name, value in state.items():
        if name == "embeds.proj.weight":  # (D,ph*pw*C)
            value = value.view(dim, *PATCH, 3).permute(0, 3, 1, 2)
        if name == "embeds.pos_embed":  # (1,rows,columns,D)
            value = value.flatten(1, 2)
        name = name.replace("embeds.", "embed.").replace("fc_norm", "pool.norm")
        weights[f"encoder.{name}" if name.startswith(("blocks.", "norm.")) else name] = value
    return weights


def naflex_batch(made: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """What timm's collation gives: padded patches, their coordinates, and which of them are valid."""
    grids = [(image.shape[1] // 8, image.shape[2] // 8) for image in made]
    longest = max(map(math.prod, grids))
    patches = torch.zeros(len(made), longest, 192)
    coord = torch.zeros(len(made), longest, 2, dtype=torch.long)
    valid = torch.zeros(len(made), longest, dtype=torch.bool)
    for i, (image, (rows, columns)) in enumerate(zip(made, grids, strict=True)):
        count = rows * columns
        each = image.view(3, rows, 8, columns, 8).permute(1, 3, 2, 4, 0).reshape(count, 192)
        patches[i, :count], valid[i, :count] = each, True
        coord[i, :count] = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
    return {"patches": patches, "patch_coord": coord, "patch_valid": valid}


def test_patches_of_another_size_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"patches have shape \(3, 4, 4\), but the model was built for \(3, 8, 8\)"):
        model(FULL)(PackedImages.of(images(), (4, 4)))


def test_distilled_training_gives_both_heads() -> None:
    net = model(FULL, dist_token=True).train()
    net.set_distilled_training()
    made = images()
    packed = net(PackedImages.of(made, PATCH))
    net.add_image_sizes([tuple(image.shape[1:]) for image in made])
    for head, *alone in zip(packed, *(net(image[None]) for image in made), strict=True):
        close(head, torch.cat(alone))
