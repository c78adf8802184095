"""The last block computes only the tokens that are pooled, in training and in copies for inference."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.models.test_classifier import pixels, small
from tests.models.test_text import small as small_text
from tests.models.test_text import texts
from vit.evaluation.attribution.relevance import class_relevance
from vit.models import Classifier, ClassifierEnsemble, EnsembleConfig
from vit.models.inference_copy import inference_copy
from vit.nn import (
    Attention,
    Block,
    ClassToken,
    Encoder,
    LayerNorm,
    Mlp,
    NoResidualBlock,
    ParallelBlock,
    ResPostNormBlock,
    attention_maps,
)

POOLED = {
    "plain": {},
    "rotary, registers": {"positions": "rotary", "registers": 3, "qk_norm": True, "norm": "rms", "mlp": "swiglu"},
    "relative": {"positions": "relative", "layer_scale": 0.1},
    "post-norm": {"pre_norm": False, "final_norm": "none"},
    "pooled norm": {"final_norm": "pooled"},
    "distillation token": {"dist_token": True},
    "recomputed": {"checkpointing": True},
}
ALL_TOKENS = {
    "mean": {"pool": "mean"},
    "class token and mean": {"pool": "class_mean"},
    "attention pooling": {"pool": "attention"},
    "batch norm": {"norm": "batch"},
    "local attention": {"attention": "local", "window": 1},
    "convolution": {"mixer": "conv1d"},
}


def made(checkpointing: bool = False, **options) -> Classifier:
    model = small(**options).double().train()
    model.set_grad_checkpointing(checkpointing)
    return model


def computed(model: nn.Module, *inputs: Tensor) -> int:
    """Number of tokens that the last block returns."""
    lengths = []
    with model.encoder.blocks[-1].register_forward_hook(lambda _, __, output: lengths.append(output.shape[1])):
        model(*inputs)
    return lengths[0]


def gradients(model: Classifier, *inputs: Tensor) -> list[Tensor]:
    logits = model(*inputs)
    return [logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()))]


def close_to_all_tokens(model: Classifier, *inputs: Tensor) -> None:
    found, model.first = gradients(model, *inputs), lambda: None
    for ours, expected in zip(found, gradients(model, *inputs), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("variant", POOLED)
def test_a_training_step_is_that_with_all_tokens(variant: str) -> None:
    model, images = made(**POOLED[variant]), pixels().double()
    assert computed(model, images) == 1 + (model.head_dist is not None)
    close_to_all_tokens(model, images)


@pytest.mark.parametrize("block", [ParallelBlock, ResPostNormBlock, NoResidualBlock])
@pytest.mark.parametrize("pre_norm", [True, False])
def test_in_every_kind_of_block(block: type, pre_norm: bool) -> None:
    torch.manual_seed(0)
    old = made().encoder.blocks[-1]
    new = block(24, old.attn, old.mlp, pre_norm=pre_norm).double()
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    assert new.can_compute_first
    torch.testing.assert_close(new(x, first=2), new(x)[:, :2], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("pool", ["class", "pooler"])
@pytest.mark.parametrize("pre_norm", [True, False])
def test_of_texts_with_padding(pool: str, pre_norm: bool) -> None:
    model, batch = small_text(pool=pool, pre_norm=pre_norm).double().train(), texts()
    assert computed(model, *batch.values()) == 1
    close_to_all_tokens(model, *batch.values())


@pytest.mark.parametrize("ndim", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float64])
def test_masks_of_pairs_are_those_of_the_first_queries(ndim: int, dtype: torch.dtype) -> None:
    if ndim == 2 and dtype != torch.bool:
        pytest.skip("a mask of tokens is bool")
    attn, x = made().encoder.blocks[-1].attn, torch.randn(2, 7, 24, dtype=torch.float64)
    shape = {2: (2, 7), 3: (2, 7, 7), 4: (2, 3, 7, 7)}[ndim]
    mask = torch.rand(shape) < 0.7 if dtype == torch.bool else torch.randn(shape, dtype=dtype)
    torch.testing.assert_close(attn(x, mask=mask, first=3), attn(x, mask=mask)[:, :3], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("variant", ALL_TOKENS)
def test_all_tokens_are_computed_where_they_are_needed(variant: str) -> None:
    model = small(**ALL_TOKENS[variant]).train()
    assert computed(model, pixels()) > 2
    assert computed(inference_copy(model.eval()), pixels()) > 2


class OwnBlock(Block):
    """A block with the arguments that `vit.nn.Block` requires."""

    def forward(self, x: Tensor, mask=None, memory=None, memory_mask=None, causal=False, rotary=None, cache=None):
        return super().forward(x, mask, memory, memory_mask, causal, rotary, cache)


class OwnAttention(Attention):
    """Attention that needs all tokens."""

    def forward(self, x: Tensor, memory=None, mask=None, causal=False, rotary=None, cache=None):
        return super().forward(x, memory, mask, causal, rotary, cache) + x.mean(1, keepdim=True)


class Mixing(nn.Module):
    """A layer of both tokens and channels in place of a block, or of its MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 24)

    def forward(self, x: Tensor, *others: object) -> Tensor:
        return self.linear(x).cumsum(1).flip(1)


def classifier(*blocks: nn.Module) -> Classifier:
    base = made()
    return Classifier(base.embed, Encoder(blocks, LayerNorm(24)), ClassToken(), base.head).double().train()


@pytest.mark.parametrize("block", [
    Mixing, lambda: OwnBlock(24, Attention(24, 3), Mlp(24, 48)), lambda: Block(24, OwnAttention(24, 3), Mlp(24, 48)),
    lambda: Block(24, Attention(24, 3), Mixing())])
def test_all_tokens_are_computed_by_blocks_and_layers_of_others(block: Callable[[], nn.Module]) -> None:
    model = classifier(block())
    assert computed(model, pixels().double()) == 13
    close_to_all_tokens(model, pixels().double())


def test_all_tokens_are_computed_after_a_layer_was_replaced() -> None:
    model = made()
    model.encoder.blocks[-1].attn = OwnAttention(24, 3).double()
    close_to_all_tokens(model, pixels().double())
    model, other = made(), OwnAttention(24, 3).double()
    model.encoder.blocks[-1].attn.forward = other.forward
    assert model(pixels().double()).shape == (2, 5)
    model = made()
    model.encoder.blocks = model.encoder.blocks[:1]
    assert computed(model, pixels().double()) == 1


def test_a_shared_block_computes_all_tokens_until_its_last_call() -> None:
    model = classifier(*[Block(24, Attention(24, 3), Mlp(24, 48))] * 3)
    close_to_all_tokens(model, pixels().double())


def test_a_compiled_training_step_computes_the_pooled_tokens_too() -> None:
    model, images = made(), pixels().double()
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(images), model(images))


def test_features_and_encoding_have_all_tokens_in_training_too() -> None:
    model = small().train()
    assert model.encode(pixels()).shape == model.features(pixels())[-1].shape == (2, 13, 24)


def test_attention_maps_have_all_queries_in_training_too() -> None:
    model = small().train()
    with attention_maps(model) as maps:
        model(pixels())
    assert maps["encoder.blocks.1.attn"][0].shape == (2, 3, 13, 13)


@pytest.mark.parametrize("options", [{}, {"attention": "local", "window": 1}])
def test_maps_of_a_class_are_the_same_in_training_and_in_copies(options: dict) -> None:
    model, images, classes = made(**options), pixels().double(), torch.tensor([0, 1])
    expected = class_relevance(model.eval(), images, classes)
    for other in (inference_copy(model), model.train()):
        torch.testing.assert_close(class_relevance(other, images, classes), expected, rtol=0, atol=1e-6)


def test_a_model_in_evaluation_computes_all_tokens_and_its_copy_for_inference_does_not() -> None:
    model = small().eval()
    copy = inference_copy(model)
    assert (computed(model, pixels()), computed(copy, pixels())) == (13, 1)
    assert not model.pooled_only
    torch.testing.assert_close(copy(pixels()), model(pixels()), rtol=0, atol=1e-5)


def test_the_members_of_an_ensemble_compute_only_what_is_pooled() -> None:
    members = [small(seed).eval() for seed in range(2)]
    config = EnsembleConfig(members[0].config.to_dict(), [[0.0] * 3] * 2, [[1.0] * 3] * 2)
    copy = inference_copy(ClassifierEnsemble(config, members).eval())
    assert all(part.pooled_only for part in copy.modules() if isinstance(part, Classifier))
    assert not any(member.pooled_only for member in members)
