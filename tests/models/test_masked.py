"""BERT in pre-training: its properties; its logits are compared in tests/weights/formats/test_bert.py."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from vit.models import Bert, create_model, model_from_config

SMALL = {"vocab_size": 30, "max_len": 12, "dim": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0}
MASK = 4


def small(**options) -> Bert:
    torch.manual_seed(0)
    return create_model("bert_tiny", **{**SMALL, **options})


def pairs(lengths: tuple[int, ...] = (12, 5, 8)) -> dict[str, Tensor]:
    generator, N = torch.Generator().manual_seed(1), max(lengths)
    mask = torch.arange(N) < torch.tensor(lengths)[:, None]
    ids = torch.randint(1, 30, mask.shape, generator=generator) * mask
    return {"source": ids, "mask": mask, "segment": (torch.arange(N) >= 3).long().expand(len(lengths), -1)}


def test_logits_at_some_positions_equal_those_at_all() -> None:
    model, batch = small().eval(), pairs()
    tokens, pair = model(**batch)
    assert tokens.shape == (3, 12, 30) and pair.shape == (3, 2)
    chosen = torch.rand(3, 12, generator=torch.Generator().manual_seed(2)) < 0.3
    selected, same_pair = model(**batch, positions=chosen.flatten().nonzero().squeeze(1))
    torch.testing.assert_close(selected, tokens[chosen], rtol=0, atol=1e-5)
    assert torch.equal(same_pair, pair)
    none, _ = model(**batch, positions=torch.zeros(0, dtype=torch.long))
    assert none.shape == (0, 30)


@pytest.mark.parametrize("options", [{}, {"positions": "rotary", "pre_norm": True, "norm": "rms", "mlp": "swiglu"}])
def test_padding_never_changes_the_result(options: dict) -> None:
    model, batch = small(**options).eval(), pairs()
    tokens, pair = model(**batch)
    for row, length in enumerate(batch["mask"].sum(1).tolist()):
        own = {key: value[row : row + 1, :length] for key, value in batch.items()}
        alone_tokens, alone_pair = model(own["source"], segment=own["segment"])
        torch.testing.assert_close(alone_tokens[0], tokens[row, :length], rtol=0, atol=1e-5)
        torch.testing.assert_close(alone_pair[0], pair[row], rtol=0, atol=1e-5)


def test_the_input_and_output_matrices_are_tied() -> None:
    model, batch = small().eval(), pairs()
    names = [name for name, parameter in model.named_parameters() if parameter.shape == (30, 32)]
    assert names == ["embed.token.weight"]
    model(**batch)[0].square().mean().backward()
    unread = sorted(set(range(30)) - set(batch["source"].flatten().tolist()))
    assert unread and model.embed.token.weight.grad[unread].abs().amax(1).min() > 0  # ids that are only predicted


def test_gradients_reach_every_parameter_with_checkpointing_too() -> None:
    gradients = []
    for checkpointing in (False, True):
        model = small().eval()
        model.set_grad_checkpointing(checkpointing)
        tokens, pair = model(**pairs())
        (tokens.square().mean() + pair.square().mean()).backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_compiles_as_one_graph_for_any_number_of_positions() -> None:
    model, batch = small(depth=1).train(), pairs()
    torch._dynamo.reset()
    backend = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for positions in ([0, 5, 13], [1, 2, 14, 20], [3, 4, 5, 6, 7], list(range(20))):
        tokens, pair = compiled(**batch, positions=torch.tensor(positions))
        (tokens.square().sum() + pair.square().sum()).backward()
        assert tokens.shape == (len(positions), 30)
    assert backend.frame_count == 2  # the first number, then any
    model.eval()
    positions = torch.tensor([2, 3])
    batch = {**batch, "positions": positions}
    torch.testing.assert_close(compiled(**batch), model(**batch), rtol=0, atol=1e-5)


def test_it_learns_masked_tokens_and_sentence_pairs() -> None:
    """Texts count upwards; the second half goes on counting or starts anywhere else."""
    generator, model = torch.Generator().manual_seed(0), small(dropout=0.0, attention_dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(250):
        batch, target, positions, apart = counting(64, generator)
        tokens, pair = model(**batch, positions=positions)
        loss = F.cross_entropy(tokens, target) + F.cross_entropy(pair, apart)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    batch, target, positions, apart = counting(512, generator)
    tokens, pair = model.eval()(**batch, positions=positions)
    assert (tokens.argmax(1) == target).float().mean() > 0.9
    assert (pair.argmax(1) == apart).float().mean() > 0.9


def counting(rows: int, generator: torch.Generator) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
    apart = torch.randint(2, (rows,), generator=generator)
    jump = apart[:, None] * torch.randint(5, 20, (rows, 1), generator=generator)
    segment = (torch.arange(11) >= 5).long().expand(rows, -1)
    ids = 5 + (torch.randint(25, (rows, 1), generator=generator) + torch.arange(11) + jump * segment) % 25
    chosen = torch.rand(rows, 11, generator=generator) < 0.15
    chosen[:, 0] = False
    positions = chosen.flatten().nonzero().squeeze(1)
    batch = {"source": torch.where(chosen, MASK, ids), "segment": segment}
    return batch, ids.flatten()[positions], positions, apart


def test_published_parameter_counts() -> None:
    """bert-base-uncased and bert-large-uncased with both heads, the tied matrix counted once."""
    for size, expected in (("base", 110_106_428), ("large", 336_226_108)):
        with torch.device("meta"):
            model = create_model(f"bert_{size}", vocab_size=30522)
        assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_a_config_survives_json_and_builds_the_model_again() -> None:
    model = small(segments=3).eval()
    values = json.loads(json.dumps(model.config.to_dict()))
    again = model_from_config(values).eval()
    assert values["kind"] == "masked_text" and again.config == model.config
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(**pairs())[0], model(**pairs())[0])
