"""A masked autoencoder: its properties; its numbers are compared in tests/weights/formats/test_mae.py."""

import json
import math

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import ViTMAEConfig, ViTMAEForPreTraining

from vit.models import MaskedAutoencoder, create_model, flops, model_from_config
from vit.models.mae import from_patches, masked_error, to_patches
from vit.weights import load_weights

SMALL = {"image_size": (16, 24), "patch_size": 4, "dim": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0}
DECODER = {"decoder_dim": 24, "decoder_depth": 1, "decoder_num_heads": 2}
FORMS = [{}, {"class_token": False, "positions": "learned"}, {"registers": 2, "positions": "rotary", "norm": "rms",
                                                              "mlp": "swiglu", "head_dim": 8}]


def small(**options) -> MaskedAutoencoder:
    torch.manual_seed(0)
    return create_model("mae_tiny", **{**SMALL, **DECODER, **options}).eval()


def batch(rows: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 3, 16, 24, generator=generator), torch.rand(rows, 24, generator=generator)


@pytest.mark.parametrize("options", FORMS)
def test_masked_patches_have_no_influence(options: dict) -> None:
    """The outputs do not depend on the pixels of masked patches, but on those of each visible one."""
    model, (images, noise) = small(**options), batch()
    pixels, masked = model(images, noise)
    assert pixels.shape == (3, 24, 48) and masked.sum(1).tolist() == [18, 18, 18]
    patches = to_patches(images, (4, 4))
    other = from_patches(torch.where(masked[..., None], torch.randn_like(patches), patches), (4, 4), (4, 6))
    assert torch.equal(model(other, noise)[0], pixels)
    row = int((~masked[0]).nonzero()[0])
    patches[0, row] += 1
    assert not torch.allclose(model(from_patches(patches, (4, 4), (4, 6)), noise)[0][0], pixels[0])


def test_class_token_and_mask_token_have_the_deviation_of_the_papers_code() -> None:
    torch.manual_seed(0)
    model = create_model("mae_tiny", image_size=32, dim=768, depth=1, num_heads=12, decoder_depth=1)
    for token in (model.embed.cls_token, model.decoder.mask_token):
        assert abs(token.std().item() / 0.02 - 1) < 0.15
    assert small(class_token=False).embed.cls_token is None
    other = create_model("mae_tiny", image_size=32, dim=768, depth=1, num_heads=12, decoder_depth=1, token_std=0.1)
    assert abs(other.embed.cls_token.std().item() / 0.1 - 1) < 0.15


def test_the_patches_with_the_smallest_noise_are_visible() -> None:
    model, (images, noise) = small(), batch()
    _, masked = model(images, noise)
    for row, own in zip(noise, masked, strict=True):
        assert set((~own).nonzero()[:, 0].tolist()) == set(row.argsort()[:6].tolist())


def test_the_encoder_works_on_a_quarter_of_the_patches() -> None:
    """Operations of a deep encoder with a minimal decoder: slightly more than a quarter of those of all patches."""
    deep = {"depth": 8, "decoder_dim": 4, "decoder_num_heads": 1}
    masked = flops(small(**deep))
    whole = flops(create_model("vit_tiny", **{**SMALL, "depth": 8, "num_classes": 0}))
    assert masked < 0.35 * whole


@pytest.mark.parametrize("options", FORMS)
def test_a_classifier_has_the_same_encoder(options: dict) -> None:
    """`config.classifier()` has the same encoder; from the visible patches alone it computes the same tokens."""
    model, (images, _) = small(**options), batch()
    classifier = model_from_config({**model.config.classifier(), "num_classes": 5}).eval()
    report = load_weights(classifier, model.state_dict())
    new = {row.name for row in report.rows if row.status == "new"}
    unused = {row.name for row in report.rows if row.status == "unused"}
    assert new == {"head.weight", "head.bias"} and unused == {n for n in model.state_dict() if n.startswith("decoder")}
    assert torch.equal(classifier.encode(images), model.encode(images))


def test_patches_and_back() -> None:
    images = torch.randn(2, 3, 8, 12)
    patches = to_patches(images, (4, 2))
    assert patches.shape == (2, 12, 24) and torch.equal(from_patches(patches, (4, 2), (2, 6)), images)
    assert torch.equal(patches[0, 7], images[0, :, 4:8, 2:4].permute(1, 2, 0).flatten())  # row 1, column 1


@pytest.mark.parametrize("norm_pixels", [True, False])
def test_perfect_predictions_have_no_error_and_reconstruct_the_image(norm_pixels: bool) -> None:
    model, (images, noise) = small(norm_pixels=norm_pixels), batch()
    targets, (_, masked) = model.targets(images), model(images, noise)
    assert torch.equal(masked_error(targets, targets, masked), torch.zeros(3))
    torch.testing.assert_close(model.reconstruct(images, targets, masked), images, rtol=0, atol=1e-5)
    wrong = torch.where(masked[..., None], targets, targets + 7)  # visible patches have no loss
    assert torch.equal(masked_error(wrong, targets, masked), torch.zeros(3))
    same = from_patches(torch.where(masked[..., None], 0, to_patches(images, (4, 4))), (4, 4), (4, 6))
    black = model.reconstruct(images, torch.zeros_like(targets), masked) if not norm_pixels else same
    assert torch.equal(black, same)


def test_gradients_reach_every_parameter_with_checkpointing_too() -> None:
    images, noise = batch()
    gradients = []
    for checkpointing in (False, True):
        model = small(class_token=False)
        model.set_grad_checkpointing(checkpointing)
        pixels, masked = model(images, noise)
        masked_error(pixels, model.targets(images), masked).mean().backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_compiles_as_one_graph() -> None:
    model, (images, noise) = small(depth=1), batch()
    expected = model(images, noise)[0].detach()
    torch._dynamo.reset()
    backend = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(images, noise)[0], expected, rtol=0, atol=1e-5)
    compiled(images.flip(0), noise.flip(0))
    assert backend.frame_count == 1


def test_parameter_counts_are_those_of_transformers() -> None:
    """Base and large as published; there the two fixed position tables count as parameters too."""
    large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    for size, options, dim in (("base", {}, 768), ("large", large, 1024)):
        with torch.device("meta"):
            model = create_model(f"mae_{size}")
            theirs = ViTMAEForPreTraining(ViTMAEConfig(**options))
        counts = [sum(parameter.numel() for parameter in each.parameters()) for each in (model, theirs)]
        assert counts[0] == counts[1] - 197 * (dim + 512)


def test_a_config_survives_json_and_builds_the_model_again() -> None:
    model, (images, noise) = small(mask_ratio=0.6), batch()
    again = model_from_config(json.loads(json.dumps(model.config.to_dict()))).eval()
    assert again.config == model.config and again.config.visible == int(24 * 0.4)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(images, noise)[0], model(images, noise)[0])


@pytest.mark.parametrize(("options", "message"), [
    ({"mask_ratio": 0.99}, r"mask_ratio 0.99 leaves 0 of 24 patches"),
    ({"mask_ratio": 0.0}, r"mask_ratio 0.0 leaves 24 of 24 patches"),
    ({"mask_ratio": float("nan")}, r"mask_ratio is nan, but must be a number between 0 and 1"),
    ({"decoder_mlp_ratio": float("nan")}, r"decoder_mlp_ratio is nan, but must be a number above 0"),
    ({"decoder_dim": 3}, r"decoder_dim 3 is not divisible by 4.*nearest: 4$"),
    ({"decoder_dim": 30}, r"decoder_dim 30 is not divisible by 4.*nearest: 28, 32"),
    ({"decoder_depth": 0}, r"decoder_depth is 0, but must be a whole number above 0"),
    ({"decoder_mlp_ratio": 0.0}, r"decoder_mlp_ratio is 0.0, but must be a number above 0"),
    ({"stem": "conv"}, r"stem=conv is unknown.*linear"),
    ({"mask_rate": 0.5}, r"no option 'mask_rate'; nearest: mask_ratio"),
])
def test_invalid_combinations_are_errors(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_it_learns_to_continue_a_pattern() -> None:
    """Images that are one random colour throughout: a visible patch determines all others."""
    torch.manual_seed(0)
    model = small(norm_pixels=False, class_token=False).train()
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for _ in range(80):
        images = torch.randn(16, 3, 1, 1).expand(-1, -1, 16, 24)
        pixels, masked = model(images)
        loss = masked_error(pixels, model.targets(images), masked).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert math.isfinite(losses[-1]) and losses[-1] < 0.25 * losses[0]


def test_half_precision_is_close_to_float32() -> None:
    model, (images, noise) = small(), batch()
    with torch.no_grad():
        expected = model(images, noise)[0]
        with torch.autocast("cpu", torch.bfloat16):
            half = model(images, noise)[0]
    assert (half.float() - expected).abs().max() < 0.05 * expected.abs().max()
