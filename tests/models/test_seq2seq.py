"""The encoder-decoder: against torch.nn.Transformer, its variants and properties, and its start from a classifier."""

import copy
import json
import pickle

import pytest
import torch
from torch import nn

from tests.slow_values import quick_and_slow
from vit.models import create_model, model_from_config
from vit.models.seq2seq import EncoderDecoderConfig, ImageToTextConfig, Transformer, column_means
from vit.weights import load_weights

B, S, T, V = 3, 7, 6, 19
CLOSE = {"rtol": 0, "atol": 1e-5}
SMALL = {"vocab_size": V, "max_len": 12, "dim": 24, "depth": 2, "decoder_depth": 2, "num_heads": 3, "mlp_ratio": 2.0}
IMAGE = {"source": "image", "image_size": (8, 24), "patch_size": 4, "tied": "target"}
FORMS = {
    "original": {},
    "modern": {"pre_norm": True, "norm": "rms", "mlp": "swiglu", "activation": "silu", "positions": "rotary",
               "scale_embed": False, "qkv_bias": False, "qk_norm": True},
    "learned, wide heads, two vocabularies": {"positions": "learned", "head_dim": 10, "tied": "none",
                                              "source_vocab": V + 4},
    "deep reader": {"depth": 3, "decoder_depth": 1, "tied": "target", "pre_norm": True},
    "images": {**IMAGE, "stem": "masked_conv", "positions": "learned", "class_token": True, "registers": 1},
    "images, modern": {**IMAGE, "positions": "rotary", "pre_norm": True, "norm": "rms"},
}

NEIGHBOURS = {  # images whose tokens depend on those next to them
    "images, windows": {**IMAGE, "attention": "local", "window": 2, "positions": "rotary", "class_token": True},
    "images, windows with gaps": {**IMAGE, "attention": "local", "window": 1, "dilation": 2, "positions": "learned"},
    "images, convolutions": {**IMAGE, "mixer": "conv1d", "positions": "learned", "registers": 1},
}


def model(**options) -> Transformer:
    torch.manual_seed(0)
    made = Transformer(EncoderDecoderConfig(**{**SMALL, **options}))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return made.eval()


def inputs(made: Transformer) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A source, a target and the source's mask; in a batch of images every one has its own width."""
    torch.manual_seed(1)
    target = torch.randint(3, V, (B, T))
    if made.config.source == "image":
        widths = torch.tensor([[6], [4], [1]])
        mask = (torch.arange(6) < widths)[:, None].expand(-1, 2, -1).flatten(1)
        return torch.randn(B, 3, 8, 24), target, mask
    return torch.randint(3, V, (B, S)), target, torch.arange(S) < torch.tensor([[7], [4], [1]])


@pytest.mark.parametrize("pre_norm", [True, False], ids=["pre-norm", "post-norm"])
def test_equal_to_torch(pre_norm: bool) -> None:
    made = model(pre_norm=pre_norm)
    theirs = nn.Transformer(24, 3, 2, 2, 48, dropout=0.0, norm_first=pre_norm, batch_first=True, layer_norm_eps=1e-6)
    if not pre_norm:
        theirs.encoder.norm = theirs.decoder.norm = None
    theirs.load_state_dict(as_torch(made.state_dict()))
    source, target, mask = inputs(made)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    with torch.enable_grad():  # avoids torch's fused path, which writes zeros at padded positions
        x = theirs(made.embed(source), made.target_embed(target), tgt_mask=future, src_key_padding_mask=~mask,
                   memory_key_padding_mask=~mask)
    torch.testing.assert_close(made(source, target, mask), x @ made.embed.token.weight.T, **CLOSE)


def as_torch(state: dict) -> dict:
    names = {".blocks.": ".layers.", ".attn.qkv.": ".self_attn.in_proj_", ".attn.proj.": ".self_attn.out_proj.",
             ".cross_attn.proj.": ".multihead_attn.out_proj.", ".mlp.fc1.": ".linear1.", ".mlp.fc2.": ".linear2."}
    found = {}
    for name, tensor in state.items():
        if name.startswith("decoder"):
            name = name.replace(".norm2.", ".norm3.").replace(".cross_norm.", ".norm2.")
        if ".cross_attn.q." in name:
            name, kv = name.replace(".cross_attn.q.", ".multihead_attn.in_proj_"), name.replace(".q.", ".kv.")
            tensor = torch.cat([tensor, state[kv]])
        for ours, foreign in names.items():
            name = name.replace(ours, foreign)
        if "embed" not in name and ".kv." not in name:
            found[name] = tensor
    return found


@pytest.mark.parametrize("form", FORMS)
def test_steps_equal_the_whole(form: str) -> None:
    """The logits of every position, whether computed one by one, after a prefix, or at once."""
    made = model(**FORMS[form])
    source, target, mask = inputs(made)
    whole = made(source, target, mask)
    cache = made.start(source, mask, capacity=2)
    for i in range(T):
        torch.testing.assert_close(made.advance(target[:, i : i + 1], cache)[:, 0], whole[:, i], **CLOSE)
    torch.testing.assert_close(made.advance(target[:, :4], made.start(source, mask))[:, 0], whole[:, 3], **CLOSE)


@pytest.mark.parametrize("form", FORMS)
def test_no_token_depends_on_later_ones(form: str) -> None:
    made = model(**FORMS[form])
    source, target, mask = inputs(made)
    changed = torch.cat([target[:, :3], (target[:, 3:] + 1) % V], dim=1)
    before, after = made(source, target, mask), made(source, changed, mask)
    torch.testing.assert_close(before[:, :3], after[:, :3], **CLOSE)
    assert (before[:, 3:] - after[:, 3:]).abs().amax(dim=(1, 2)).min() > 1e-3


@pytest.mark.parametrize("form", [*FORMS, *NEIGHBOURS])
def test_padding_changes_no_logit(form: str) -> None:
    made = model(**(FORMS | NEIGHBOURS)[form])
    source, target, mask = inputs(made)
    batch = made(source, target, mask)
    for i in range(B):
        if made.config.source == "image":
            alone = source[i : i + 1, :, :, : 4 * int(mask[i].sum()) // 2]
        else:
            alone = source[i : i + 1, mask[i]]
        torch.testing.assert_close(made(alone, target[i : i + 1])[0], batch[i], **CLOSE)
    longer = torch.cat([target, torch.zeros(B, 3, dtype=torch.long)], dim=1)
    torch.testing.assert_close(made(source, longer, mask)[:, :T], batch, **CLOSE)


@pytest.mark.parametrize("form", NEIGHBOURS)
@pytest.mark.parametrize("columns", [5, 6])
def test_the_memory_of_padded_images_is_in_the_order_of_their_patches(form: str, columns: int) -> None:
    """`columns`: of the widest image, 6 is that of the model."""
    made = model(**NEIGHBOURS[form])
    images, prefix = torch.randn(2, 3, 8, 4 * columns), made.embed.prefix
    mask = (torch.arange(columns) < torch.tensor([[columns], [3]]))[:, None].expand(-1, 2, -1)  # (B,rows,columns)
    memory = made.encode(images, mask.flatten(1))
    for i, width in enumerate((columns, 3)):
        alone = made.encode(images[i : i + 1, :, :, : 4 * width])[0]
        torch.testing.assert_close(memory[i, :prefix], alone[:prefix], **CLOSE)
        torch.testing.assert_close(memory[i, prefix:][mask[i].flatten()], alone[prefix:], **CLOSE)


@pytest.mark.parametrize("form", FORMS)
def test_logits_of_the_source_are_those_of_its_patches_without_prefix_tokens(form: str) -> None:
    made = model(**FORMS[form])
    source, target, mask = inputs(made)
    logits, patches = made(source, target, mask, source_logits=True)
    torch.testing.assert_close(logits, made(source, target, mask), rtol=0, atol=0)
    assert patches.shape == (*mask.shape, V)
    torch.testing.assert_close(patches, made.logits(made.encode(source, mask))[:, -mask.shape[1] :], rtol=0, atol=0)


@pytest.mark.parametrize("form", quick_and_slow(FORMS, "images, modern", "original"))
def test_compiles_as_one_graph_and_all_weights_learn(form: str) -> None:
    made = model(**FORMS[form], dropout=0.0).train()
    source, target, mask = inputs(made)
    torch._dynamo.reset()
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    result = compiled(source, target, mask)
    torch.testing.assert_close(result, made(source, target, mask), **CLOSE)
    result.square().sum().backward()
    assert all(parameter.grad is not None for parameter in made.parameters())


@pytest.mark.parametrize("form", FORMS)
def test_a_config_survives_json_and_builds_the_model_again(form: str) -> None:
    made = model(**FORMS[form])
    again = model_from_config(json.loads(json.dumps(made.config.to_dict())))
    assert again.config == made.config
    again.load_state_dict(made.state_dict())
    source, target, mask = inputs(made)
    assert torch.equal(again.eval()(source, target, mask), made(source, target, mask))


def test_only_image_to_text_models_have_the_keys_of_images() -> None:
    values = model().config.to_dict()
    assert not {"patch_size", "stem", "image_size", "class_token"} & values.keys()
    former = {**values, "patch_size": [16, 16], "stem": "linear", "rotary_places": "steps"}  # saved by earlier versions
    assert EncoderDecoderConfig.from_dict(former) == model_from_config(former).config == model().config
    config = model(**IMAGE).config
    assert type(config) is ImageToTextConfig and copy.deepcopy(config) == config == pickle.loads(pickle.dumps(config))
    with pytest.raises(ValueError, match="no option 'patchsize'"):
        model_from_config({**values, "patchsize": 4})


def test_one_matrix_is_tied_three_ways_two_or_not_at_all() -> None:
    def count(made: Transformer) -> int:
        return sum(p.numel() for p in made.parameters())

    body = count(model()) - V * 24
    assert count(model(tied="target")) == body + 2 * V * 24
    assert count(model(tied="none")) == body + 3 * V * 24
    made = model()
    assert made.embed.token.weight is made.target_embed.token.weight


def test_the_original_has_the_papers_size() -> None:
    """65 million for the base model of arXiv 1706.03762, with its 37,000 shared byte pairs."""
    with torch.device("meta"):
        made = Transformer(EncoderDecoderConfig(vocab_size=37_000))
    assert 62e6 < sum(p.numel() for p in made.parameters()) < 66e6


def test_a_new_models_embeddings_have_unit_variance() -> None:
    torch.manual_seed(0)
    made = Transformer(EncoderDecoderConfig(vocab_size=400, dim=64, num_heads=4, depth=1, decoder_depth=1))
    ids = torch.arange(400)[None]
    tokens = made.eval().embed(ids) - made.embed.pos_embed[:, :400]
    assert abs(tokens.std() - 1) < 0.02


@pytest.mark.parametrize("how", ["load_weights", "load_state_dict"])
def test_a_captioner_starts_from_a_classifier(how: str) -> None:
    torch.manual_seed(0)
    sizes = {"image_size": (8, 24), "patch_size": 4, "dim": 24, "depth": 2, "num_heads": 3, "mlp_ratio": 2.0}
    classifier = create_model("vit_tiny", **sizes, num_classes=5, registers=1).eval()
    made = model(**IMAGE, positions="learned", class_token=True, registers=1, pre_norm=True, activation="gelu")
    if how == "load_weights":
        report = load_weights(made.source_encoder, classifier.state_dict())
        assert report.count("new") == 0 and [row.name for row in report.rows if row.status == "unused"] == [
            "head.weight", "head.bias"]
    else:
        state = {k: v for k, v in classifier.state_dict().items() if k.startswith(("embed.", "encoder."))}
        missing, unexpected = made.load_state_dict(state, strict=False)
        assert not unexpected and all(name.startswith(("decoder.", "target_embed.")) for name in missing)
    images = torch.randn(2, 3, 8, 24)
    assert torch.equal(made.encode(images), classifier.encode(images))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "image", "image_size": 8, "patch_size": 4}, "tied=all needs source=text.*use tied=target"),
        ({"source_vocab": 5}, "source_vocab is 5 and vocab_size 19; use tied=target"),
        ({"tied": "al"}, "tied=al is unknown; nearest: all"),
        ({"source": "sound"}, "source=sound is unknown"),
        ({"dim": 25}, "dim 25 is not divisible by num_heads 3; nearest dim: 24, 27"),
        ({"decoder_depth": 0}, "decoder_depth is 0, but must be a whole number above 0"),
        ({"block": "parallel"}, "block=parallel is unknown; nearest: serial"),
        ({"positions": "rotary", "dim": 24, "decoder_mixer": "lstm"}, "positions=rotary act .* but decoder_mixer=lstm"),
        ({"positions": "rotary", "dim": 24, "mixer": "gru", "decoder_mixer": "attention"}, "but mixer=gru"),
        ({**IMAGE, "image_size": 30}, "image_size 30 is not divisible by patch_size 4; nearest valid: 28, 32"),
    ],
)
def test_invalid_values_are_errors_of_one_line(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        EncoderDecoderConfig(**{**SMALL, **options})
    assert "\n" not in str(error.value)


def test_column_means_leave_out_padding() -> None:
    patches, mask = torch.randn(2, 6, 4), torch.tensor([[1, 1, 0, 1, 0, 0], [1, 1, 1, 1, 1, 1]]).bool()
    means, widths = column_means(patches, mask, rows=2)
    assert widths.tolist() == [2, 3]
    torch.testing.assert_close(means[0, 0], (patches[0, 0] + patches[0, 3]) / 2)
    assert torch.equal(means[0, 1], patches[0, 1]) and not means[0, 2].any()
    torch.testing.assert_close(means[1], patches[1].view(2, 3, 4).mean(0))
