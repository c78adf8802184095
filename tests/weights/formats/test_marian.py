"""The original transformer compared with transformers' Marian, with the same random weights."""

import pytest
import torch
from transformers import MarianConfig, MarianMTModel

from vit.models.seq2seq import EncoderDecoderConfig, Transformer
from vit.weights.formats.marian import from_marian, marian_arguments, to_marian

B, S, T, V = 3, 7, 6, 23


def models(**options) -> tuple[Transformer, MarianMTModel]:
    torch.manual_seed(0)
    sizes = {"vocab_size": V, "max_len": 16, "dim": 16, "depth": 2, "decoder_depth": 3, "num_heads": 2}
    ours = Transformer(EncoderDecoderConfig(**sizes, mlp_ratio=3.0, norm_eps=1e-5, **options)).eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    theirs = MarianMTModel(MarianConfig(**marian_arguments(ours.config, bos=1, eos=2, pad=0))).eval()
    missing, unexpected = theirs.load_state_dict(to_marian(ours.state_dict()), strict=False)
    assert not unexpected and all("embed_positions" in name for name in missing)
    return ours, theirs


@pytest.mark.parametrize("options", [{}, {"activation": "silu", "scale_embed": False}], ids=["original", "variant"])
def test_logits_equal_transformers_marian(options: dict) -> None:
    ours, theirs = models(**options)
    source, target = torch.randint(3, V, (B, S)), torch.randint(3, V, (B, T))
    mask = torch.arange(S) < torch.tensor([[7], [4], [2]])
    with torch.no_grad():
        expected = theirs(input_ids=source, attention_mask=mask.long(), decoder_input_ids=target).logits
        torch.testing.assert_close(ours(source, target, mask), expected, rtol=0, atol=1e-5)


def test_exported_weights_are_imported_unchanged() -> None:
    ours, theirs = models()
    state, back = ours.state_dict(), from_marian(theirs.state_dict())
    assert set(back) == set(state) and all(torch.equal(back[name], state[name]) for name in state)


def test_what_marian_does_not_support_is_refused() -> None:
    config = EncoderDecoderConfig(vocab_size=V, norm_eps=1e-5, pre_norm=True)
    with pytest.raises(ValueError, match="pre_norm=False, but this model has pre_norm=True"):
        marian_arguments(config, bos=1, eos=2, pad=0)
    _, theirs = models()
    with pytest.raises(ValueError, match="final_logits_bias is not zero"):
        from_marian({**theirs.state_dict(), "final_logits_bias": torch.ones(1, V)})
