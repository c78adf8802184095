"""The classifier of texts: padding, pairs, compilation, gradients, and that each pool learns."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.slow_values import quick_and_slow
from vit.models import Classifier, TextClassifier, TextClassifierConfig, create_model, model_from_config

SMALL = {"vocab_size": 20, "max_len": 12, "num_classes": 3, "dim": 16, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0}
POOLS = ("class", "pooler", "mean", "sum", "attention")
VARIANTS = {
    **{pool: {"pool": pool} for pool in POOLS},
    "modern": {"positions": "rotary", "norm": "rms", "mlp": "swiglu", "activation": "silu", "qk_norm": True},
    "original": {"positions": "sincos", "pre_norm": False, "activation": "relu", "segments": 0, "pool": "mean"},
    "as BERT": {"pre_norm": False, "embed_norm": True, "norm_eps": 1e-12, "pool": "pooler", "segments": 3},
    "bag of tokens": {"positions": "none", "pool": "attention", "pool_hidden": 0, "head_dim": 4, "layer_scale": 0.1},
}
DROPPING = {"dropout": 0.1, "attention_dropout": 0.1, "drop_path": 0.2}


def small(seed: int = 0, **options) -> TextClassifier:
    torch.manual_seed(seed)
    model = TextClassifier(TextClassifierConfig(**{**SMALL, **options}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def texts(lengths: tuple[int, ...] = (12, 3, 7, 2), segments: int = 2) -> dict[str, Tensor]:
    generator, N = torch.Generator().manual_seed(1), max(lengths)
    ids = torch.randint(1, 20, (len(lengths), N), generator=generator)
    mask = torch.arange(N) < torch.tensor(lengths)[:, None]
    segment = torch.randint(segments, ids.shape, generator=generator).sort(dim=1).values
    return {"source": ids * mask, "mask": mask, "segment": segment}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_text_alone_and_in_any_batch_has_the_same_logits(variant: str) -> None:
    model, batch = small(**VARIANTS[variant]).eval(), texts()
    logits = model(**batch)
    assert logits.shape == (4, 3)
    for row, length in enumerate(batch["mask"].sum(1).tolist()):
        source, segment = batch["source"][row : row + 1, :length], batch["segment"][row : row + 1, :length]
        torch.testing.assert_close(model(source, segment=segment)[0], logits[row], rtol=0, atol=1e-5)
    batch["source"] = torch.where(batch["mask"], batch["source"], 19)
    torch.testing.assert_close(model(**batch), logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", quick_and_slow(VARIANTS, "pooler", "modern"))
def test_compiles_as_one_graph_forward_and_backward(variant: str) -> None:
    model, batch = small(**VARIANTS[variant], depth=1, **DROPPING).train(), texts()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    compiled(**batch).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.eval()
    torch.testing.assert_close(compiled(**batch), model(**batch), rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_half_precision_stays_close_and_gradients_reach_every_parameter(variant: str) -> None:
    model, batch = small(**VARIANTS[variant]).eval(), texts()
    exact = model(**batch)
    exact.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = model(**batch)
        half = model.bfloat16()(**batch)
    assert cast.dtype == half.dtype == torch.bfloat16
    for result in (cast, half):
        torch.testing.assert_close(result.float(), exact, rtol=0.1, atol=0.1 * exact.abs().max().item())


def test_segments_and_order_count_only_where_they_are_passed() -> None:
    batch = texts()
    other = {**batch, "segment": 1 - batch["segment"]}
    assert not torch.allclose(small()(**batch), small()(**other))
    assert torch.equal(small(segments=0)(**batch), small(segments=0)(**other))
    turned = {"source": batch["source"].flip(1)[:1], "mask": None}
    plain = {"source": batch["source"][:1], "mask": None}
    bag, ordered = small(positions="none", pool="mean"), small(positions="rotary", pool="mean")
    torch.testing.assert_close(bag(**turned), bag(**plain), rtol=0, atol=1e-5)
    assert not torch.allclose(ordered(**turned), ordered(**plain), atol=1e-3)


@pytest.mark.parametrize("positions", ["learned", "sincos", "rotary"])
def test_a_text_longer_than_max_len(positions: str) -> None:
    with pytest.raises(ValueError, match="13 tokens, but max_len is 12"):
        small(positions=positions)(torch.ones(1, 13, dtype=torch.long))


@pytest.mark.parametrize("pool", POOLS)
def test_each_pool_learns_which_of_two_words_is_there(pool: str) -> None:
    """The word is at a random position of a text of a random length."""
    generator = torch.Generator().manual_seed(0)
    model = small(pool=pool, num_classes=2, depth=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(120):
        source, mask, label = two_words(64, generator)
        loss = F.cross_entropy(model(source, mask), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    source, mask, label = two_words(512, generator)
    assert (model.eval()(source, mask).argmax(1) == label).float().mean() > 0.95


def two_words(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    length = torch.randint(3, 13, (rows, 1), generator=generator)
    source = torch.randint(5, 18, (rows, 12), generator=generator)
    label = torch.randint(2, (rows,), generator=generator)
    position = 1 + (torch.rand(rows, 1, generator=generator) * (length - 1)).long()
    source.scatter_(1, position, 18 + label[:, None])
    source[:, 0] = 1
    mask = torch.arange(12) < length
    return source * mask, mask, label


def test_it_is_the_classifier_of_images_with_its_features() -> None:
    model, batch = small().eval(), texts()
    assert isinstance(model, Classifier)
    features = model.features(batch["source"], mask=batch["mask"], segment=batch["segment"])
    torch.testing.assert_close(model.encoder.norm(features[-1]), model.encode(**batch))
    assert small(num_classes=0)(**batch).shape == (4, 16)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_config_survives_json_and_builds_the_model_again(variant: str) -> None:
    model = small(**VARIANTS[variant]).eval()
    values = json.loads(json.dumps(model.config.to_dict()))
    assert values["kind"] == "text_classifier"
    again = model_from_config(values).eval()
    assert again.config == model.config
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(**texts()), model(**texts()))


def test_published_parameter_count() -> None:
    """BERT-base, uncased, of two classes."""
    with torch.device("meta"):
        model = create_model("text_base", vocab_size=30522, num_classes=2, pool="pooler", embed_norm=True,
                             pre_norm=False)
    assert sum(parameter.numel() for parameter in model.parameters()) == 109_483_778


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": "atention"}, "pool=atention is unknown; nearest: attention"),
        ({"positions": "2d"}, "positions=2d is unknown"),
        ({"vocab_size": 0}, "vocab_size is 0, but must be a whole number above 0"),
        ({"max_len": -1}, "max_len is -1"),
        ({"segments": -1}, "segments is -1, but must be a whole number of at least 0"),
        ({"pool_hidden": -1}, "pool_hidden is -1"),
        ({"dim": 15}, "dim 15 is not divisible by num_heads 2; nearest dim: 14, 16"),
        ({"dim": 6, "positions": "rotary"}, "head_dim divisible by 2, but it is 3; nearest: 2, 4"),
        ({"dropout": 1.0}, r"dropout is 1.0, but must lie in \[0, 1\)"),
        ({"patch_size": 4}, "no option 'patch_size'"),
        ({"vocab_size": None}, "needs a value for vocab_size"),
    ],
)
def test_invalid_values_are_errors_of_one_line(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        create_model("text_tiny", **{**SMALL, **options})
    assert "\n" not in str(error.value)
