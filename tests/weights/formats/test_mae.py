"""Masked autoencoders against transformers' ViTMAEForPreTraining and the original names, random weights throughout."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import ViTMAEConfig, ViTMAEForPreTraining

from vit.models import MaskedAutoencoder, create_model, model_from_config
from vit.models.mae import masked_error
from vit.weights import load_weights
from vit.weights.formats.mae import MAE, ORIGINAL, from_mae, is_vit_decoder_table, to_mae

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 16,
         "patch_size": 4, "decoder_hidden_size": 24, "decoder_num_hidden_layers": 3, "decoder_num_attention_heads": 2,
         "decoder_intermediate_size": 60}


def theirs(**options) -> ViTMAEForPreTraining:
    """All parameters random, including positions, norms and biases; the decoder has its fixed position table."""
    torch.manual_seed(0)
    model = ViTMAEForPreTraining(ViTMAEConfig(**{**SIZES, **options})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.decoder.initialize_weights(16)
    torch.nn.init.normal_(model.decoder.mask_token)
    return model


def ours(config: ViTMAEConfig, **options) -> MaskedAutoencoder:
    values = {"image_size": 16, "patch_size": 4, "dim": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 1.5,
              "norm_eps": config.layer_norm_eps, "positions": "learned", "qkv_bias": config.qkv_bias,
              "mask_ratio": config.mask_ratio, "norm_pixels": config.norm_pix_loss, "decoder_dim": 24,
              "decoder_depth": 3, "decoder_num_heads": 2, "decoder_mlp_ratio": 2.5}
    return create_model("mae_tiny", **{**values, **options}).eval()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(5, 3, 16, 16, generator=generator), torch.rand(5, 16, generator=generator)


@pytest.mark.parametrize("options", [{"norm_pix_loss": True}, {"mask_ratio": 0.6, "qkv_bias": False}])
def test_pixels_mask_and_loss_are_those_of_transformers(options: dict) -> None:
    reference = theirs(**options)
    model, (images, noise) = ours(reference.config), batch()
    missing = model.load_state_dict(from_mae(reference.state_dict()))
    assert not missing.missing_keys and not missing.unexpected_keys
    with torch.no_grad():
        expected = reference(images, noise=noise)
        pixels, hidden = model(images, noise)
    assert torch.equal(hidden, expected.mask.bool())
    torch.testing.assert_close(pixels, expected.logits, rtol=0, atol=1e-5)
    loss = masked_error(pixels, model.targets(images), hidden).mean()
    torch.testing.assert_close(loss, expected.loss, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("positions", ["learned", "sincos"])
def test_exported_models_in_transformers(positions: str, tmp_path) -> None:
    """Exported with its fixed tables a model has the same outputs in transformers, and is imported bit for bit."""
    reference = theirs(norm_pix_loss=True)
    model, (images, noise) = ours(reference.config, positions=positions), batch()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    _, written = to_mae(model.state_dict(), model.config)
    reference = opened(written, reference.config, tmp_path)
    with torch.no_grad():
        expected, (pixels, _) = reference(images, noise=noise), model(images, noise)
    torch.testing.assert_close(pixels, expected.logits, rtol=0, atol=1e-5)
    again = from_mae(written)
    if positions == "sincos":
        again.pop("embed.pos_embed")
    assert again.keys() == model.state_dict().keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())


def test_names_of_the_original_files_and_of_transformers() -> None:
    model = ours(theirs().config)
    state, (_, written) = model.state_dict(), to_mae(model.state_dict(), model.config)
    original = {ORIGINAL.to_foreign(name): tensor for name, tensor in state.items()}
    original["decoder_pos_embed"] = written["decoder.decoder_pos_embed"]
    assert {"cls_token", "blocks.1.attn.qkv.bias", "decoder_blocks.2.mlp.fc2.weight", "decoder_pred.bias"} <= set(
        original
    )
    assert {"vit.encoder.layer.1.attention.attention.query.weight", "vit.encoder.layer.0.attention.output.dense.bias",
            "decoder.decoder_layers.2.intermediate.dense.weight", "decoder.mask_token"} <= set(written)
    for foreign in (original, written):
        assert MAE.matches(foreign)
        converted = MAE.convert(foreign)
        assert converted.keys() == state.keys() and all(torch.equal(converted[n], state[n]) for n in state)
    assert not MAE.matches(state)


def test_names_on_disk_and_in_memory_of_transformers(tmp_path) -> None:
    reference = theirs()
    reference.save_pretrained(tmp_path)
    on_file = from_mae(load_file(tmp_path / "model.safetensors"))
    in_memory = from_mae(reference.state_dict())
    assert on_file.keys() == in_memory.keys() and all(torch.equal(on_file[n], in_memory[n]) for n in in_memory)


@pytest.mark.parametrize("shape", [(1, 7, 24), (1, 10, 22)])
def test_a_table_that_no_decoder_here_computes_is_another_one(shape: tuple[int, ...]) -> None:
    assert not is_vit_decoder_table(torch.zeros(shape))


def test_other_positions_of_a_decoder_are_reported_as_unused() -> None:
    reference = theirs()
    state = reference.state_dict()
    state["decoder.decoder_pos_embed"] = state["decoder.decoder_pos_embed"].flip(1)
    report = load_weights(ours(reference.config), from_mae(state))
    assert [row.name for row in report.rows if row.status == "unused"] == ["decoder_pos_embed"]


def test_its_encoder_in_a_classifier() -> None:
    reference = theirs()
    model, (images, _) = ours(reference.config), batch()
    model.load_state_dict(from_mae(reference.state_dict()))
    values = {**model.config.classifier(), **MAE.config_values(reference.state_dict(), reference.config.to_dict())}
    classifier = model_from_config({**values, "num_classes": 3}).eval()
    load_weights(classifier, from_mae(reference.state_dict()))
    with torch.no_grad():
        torch.testing.assert_close(classifier.encode(images), model.encode(images), rtol=0, atol=1e-6)


def opened(written: dict[str, torch.Tensor], config: ViTMAEConfig, folder: Path) -> ViTMAEForPreTraining:
    """The model that transformers loads from a file with these tensors."""
    save_file({name: tensor.contiguous() for name, tensor in written.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    config.save_pretrained(folder)
    model, loaded = ViTMAEForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert not loaded["missing_keys"] and not loaded["unexpected_keys"]
    return model.eval()
