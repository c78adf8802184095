"""Draw the pictures of the formulas into `docs/images/formulas`: `python docs/learn/pictures.py [NAME ...]`.

Every number comes from the function that the row of the formula names. The pictures are the same on every machine.
"""

import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from drawing import Drawing
from torch import nn

from vit.evaluation.text_metrics import character_errors, text_metrics
from vit.nn import Attention, AttentionPool, Heads, Sliced, stacked
from vit.nn.drop import LayerScale
from vit.nn.local import Local
from vit.nn.pool import ClassToken, Mean, ScorePool, Sum
from vit.nn.rotary import Rotary
from vit.nn.scores import Additive, Bilinear, Cosine, DotProduct
from vit.training.finetuning.lora import Lora
from vit.training.optimization.gradient_clipping import clip_gradients
from vit.training.optimization.optim import build_optimizer, parameter_groups

FOLDER = Path(__file__).parents[1] / "images" / "formulas"


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers that are the same on every machine."""
    return torch.tensor(np.random.default_rng(seed).normal(size=shape), dtype=torch.float32)


def heads() -> Drawing:
    """The matrix from a token (8 channels, down) to the queries of its heads (across), of each kind of heads."""
    drawing, dim = Drawing(760, 250, heads.__doc__), 8
    shared, own, wide = stacked(dim, 2, [4], bias=False), Sliced(dim, 2, [4], bias=False), stacked(dim, 2, [dim], False)
    for seed, layer in enumerate((shared, own, wide)):
        layer.weight.data = seeded(*layer.weight.shape, seed=seed)
    kinds = {"split: 2 heads, 4 wide": shared, "sliced: 2 heads, 4 wide": own, "full: 2 heads, 8 wide": wide}
    for x, (name, layer) in zip((40, 280, 520), kinds.items(), strict=True):
        values = layer(torch.eye(dim)[None])[0].detach().numpy()  # (8, queries)
        drawing.text(x, 30, name, "ink t")
        cell = 160 / dim if values.shape[1] == dim else 200 / values.shape[1]
        drawing.matrix(x, 50, cell, values)
        for head in range(2):
            drawing.text(x + (head + 0.5) * values.shape[1] / 2 * cell, 66 + dim * cell, f"head {head}", "muted m")
    drawing.text(16, 140, "x", "ink t")
    return drawing


def scores() -> Drawing:
    """The score of a query with keys around it, of length 1 and 2: how each score depends on angle and length."""
    drawing, angles = Drawing(940, 260, scores.__doc__), np.linspace(0, 360, 49)
    circle = torch.tensor(np.stack([np.cos(np.radians(angles)), np.sin(np.radians(angles))], -1), dtype=torch.float32)
    query, one = torch.tensor([[[[1.0, 0.0]]]]), Heads(1, 2, 2)
    for index, (name, make) in enumerate({"dot product": DotProduct, "cosine": Cosine, "bilinear": Bilinear,
                                          "additive": Additive}.items()):
        score = make(one)
        for parameter in score.parameters():  # a turn by 60 degrees; the scale 2; the vector (1, 1)
            turn = torch.tensor([[0.5, -0.866], [0.866, 0.5]])
            parameter.data = (turn if parameter.shape[-1] == 2 and parameter.shape[-2:] == (2, 2) else
                              torch.ones_like(parameter)).view_as(parameter)
        series = {}
        for length in (1, 2):
            keys = (length * circle)[None, None]
            if name == "additive":
                values = score.scores(query, keys)
            else:
                q, k = score.transform(query, keys)
                values = q @ k.mT * 2**-0.5
            series[f"key of length {length}"] = values[0, 0, 0].tolist()
        drawing.plot(44 + 230 * index, 40, 180, 160, angles.tolist(), series, (-3, 5), ("angle of the key", name))
    return drawing


def windows() -> Drawing:
    """Which tokens (across) a token (down) attends to in 16 tokens: local, dilated, and with global tokens."""
    drawing = Drawing(660, 240, windows.__doc__)
    kinds = {"window w = 2": {"window": 2}, "dilation d = 3": {"window": 2, "dilation": 3},
             "g = 2 global tokens": {"window": 2, "global_tokens": 2}}
    tokens = torch.zeros(1, 1, 16, 4)
    for index, (name, options) in enumerate(kinds.items()):
        allowed = Local(Heads(1, 4, 4), **options).pattern(tokens, tokens, None, False)[0, 0]
        drawing.text(20 + 214 * index, 26, name, "ink t")
        drawing.matrix(20 + 214 * index, 40, 11.5, allowed.float().numpy() * 0.8, 1.0)
    return drawing


def axial_rotary() -> Drawing:
    """The cosine of the angle by which each pair of channels turns at each position of an 8 x 8 grid."""
    drawing, rotary = Drawing(660, 220, axial_rotary.__doc__), Rotary((8, 8), 8, theta=10.0)
    angles = rotary().cos.view(8, 8, -1).numpy()
    distinct = [0, 1, 2, 3]
    for index, pair in enumerate(distinct):
        values = angles[..., pair]
        drawing.text(20 + 160 * index, 26, f"pair {pair}: {'row' if np.ptp(values, axis=1).max() < 1e-6 else 'column'}",
                     "ink t")
        drawing.matrix(20 + 160 * index, 40, 17, values, 1.0)
    drawing.text(20, 204, "blue: cosine near 1, orange: near -1", "muted")
    return drawing


BLOCKS = {  # name -> the parts between two sums, from below
    "post-norm": (["f", "+", "Norm"], True), "pre-norm": (["Norm", "f", "+"], True),
    "res-post-norm": (["f", "Norm", "+"], True), "no residual": (["Norm", "f"], False),
}


def blocks() -> Drawing:
    """Where the norm is, and what a residual connection passes: f is attention or MLP; x enters at the bottom."""
    drawing = Drawing(860, 280, blocks.__doc__)
    for index, (name, (parts, residual)) in enumerate(BLOCKS.items()):
        x, y = 30 + 150 * index, 215
        drawing.text(x, 24, name, "ink t")
        drawing.text(x + 45, 274, "x", "ink m t")
        drawing.arrow((x + 45, 260), (x + 45, y + 27))
        for part in parts:
            if part == "+":
                drawing.text(x + 45, y + 19, "+", "ink m t")
                if residual:
                    drawing.arrow((x + 45, 252), (x + 105, 252), (x + 105, y + 14), (x + 53, y + 14))
            else:
                drawing.box(x, y, 90, part)
            drawing.arrow((x + 45, y), (x + 45, y - 24))
            y -= 50
    x = 640
    drawing.text(x, 24, "parallel block", "ink t")
    drawing.text(x + 75, 274, "x", "ink m t")
    drawing.arrow((x + 75, 260), (x + 75, 242))
    drawing.box(x + 30, 215, 90, "Norm")
    for left, name in ((0, "Attention"), (85, "MLP")):
        drawing.arrow((x + 75, 215), (x + left + 38, 215 - 10), (x + left + 38, 191))
        drawing.box(x + left, 165, 76, name)
        drawing.arrow((x + left + 38, 165), (x + left + 38, 129), (x + 67 + 16 * (left > 0), 129))
    drawing.text(x + 75, 134, "+", "ink m t")
    drawing.arrow((x + 75, 252), (x + 185, 252), (x + 185, 108), (x + 75, 108), (x + 75, 120))
    drawing.arrow((x + 75, 120), (x + 75, 70))
    return drawing


def layer_scale() -> Drawing:
    """The length of the tokens after 24 random branches: with a small gamma a deep stack starts as the identity."""
    drawing, x0, series = Drawing(480, 270, layer_scale.__doc__), seeded(1, 16, 32), {}
    for gamma in (1.0, 0.1, 1e-5):
        scale, x, lengths = LayerScale(32, gamma), x0, [1.0]
        for depth in range(24):
            branch = x / x.norm(dim=-1, keepdim=True) * 32**0.5 @ seeded(32, 32, seed=1 + depth) / 32**0.5
            x = (x + scale(branch)).detach()
            lengths.append(float(x.norm() / x0.norm()))
        series[f"gamma {gamma:g}"] = lengths
    drawing.plot(50, 40, 400, 180, list(range(25)), series, (0, 6), ("block", "length of a token: 1 is the input"))
    return drawing


def pooling() -> Drawing:
    """The weight of each of 6 tokens in the pooled vector: the gradient of the output with respect to each token."""
    drawing, tokens = Drawing(900, 230, pooling.__doc__), seeded(1, 6, 8, seed=4)
    score, query = ScorePool(8, 8), AttentionPool(8, Attention(8, 1), nn.Identity(), nn.Identity())
    for seed, parameter in enumerate([*score.parameters(), query.latent]):
        parameter.data = 0.8 * seeded(*parameter.shape, seed=seed)
    queries = query.latent @ tokens.mT / 8**0.5  # a query that reads the tokens themselves
    weights = {"class token": read(ClassToken(), tokens), "mean": read(Mean(), tokens), "sum": read(Sum(), tokens),
               "scores": score.weights(tokens)[0].tolist(), "learned query": queries[0, 0].softmax(-1).tolist()}
    for index, (name, values) in enumerate(weights.items()):
        drawing.text(20 + 176 * index, 26, name, "ink t")
        drawing.bars(20 + 176 * index, 190, 160, 120, values, [str(i) for i in range(6)], 1.0)
    drawing.text(20, 225, "token", "muted")
    return drawing


def read(pool: nn.Module, tokens: torch.Tensor) -> list[float]:
    """The weight of each token (1,N,D) in a linear pooling: the derivative of a channel of the output."""
    tokens = tokens.clone().requires_grad_()
    pool(tokens)[0, 0].backward()
    return tokens.grad[0, :, 0].tolist()


def ctc() -> Drawing:
    """All alignments of "ab" with 6 columns, - is blank: each node as dark as the probability that they pass it."""
    drawing, T, symbols = Drawing(700, 300, ctc.__doc__), 6, "-a-b-"
    table = seeded(T, 3, seed=9).double().softmax(-1)  # of blank, a, b
    ids = [{"-": 0, "a": 1, "b": 2}[symbol] for symbol in symbols]
    passed, total = np.zeros((len(symbols), T)), 0.0
    for way in itertools.product(range(len(symbols)), repeat=T):
        if way[0] <= 1 and way[-1] >= 3 and all(allowed(*pair) for pair in itertools.pairwise(way)):
            probability = math.prod(float(table[t, ids[state]]) for t, state in enumerate(way))
            total += probability
            passed[list(way), range(T)] += probability
    loss = nn.functional.ctc_loss(table.log()[:, None], torch.tensor([[1, 2]]), torch.tensor([T]), torch.tensor([2]))
    assert abs(-math.log(total) / 2 - float(loss)) < 1e-6  # torch divides by the length of the text
    for t, (i, j) in itertools.product(range(T - 1), itertools.product(range(5), repeat=2)):
        if allowed(i, j) and passed[i, t] and passed[j, t + 1]:
            drawing.line([(84 + 100 * t, 60 + 48 * i), (76 + 100 * (t + 1), 60 + 48 * j)], "rule")
    for i, symbol in enumerate(symbols):
        drawing.text(30, 65 + 48 * i, symbol, "ink t m")
        for t in range(T):
            if passed[i, t]:
                drawing.rect(66 + 100 * t, 46 + 48 * i, 28, 28, "p")
                drawing.rect(66 + 100 * t, 46 + 48 * i, 28, 28, "blue", passed[i, t] / total)
                drawing.rect(66 + 100 * t, 46 + 48 * i, 28, 28, "rule")
    drawing.text(66, 28, f"columns 0 to {T - 1}; all alignments together: p(ab) = {total:.3f}, loss {-math.log(total):.2f}")
    return drawing


def allowed(i: int, j: int) -> bool:
    """Whether a column in state j may follow one in state i: stay, go on, or leave out a blank."""
    return j in (i, i + 1) or j == i + 2 and j % 2 == 1


def adamw() -> Drawing:
    """40 steps on a narrow valley: SGD oscillates across it, AdamW has steps of about lr in each direction."""
    drawing, series = Drawing(520, 300, adamw.__doc__), {}
    for name, options in {"adamw": {"lr": 0.12}, "sgd": {"lr": 0.095}}.items():
        model = nn.Linear(2, 1, bias=False)
        model.weight.data = torch.tensor([[-2.0, 0.9]])
        optimizer, points = build_optimizer(model, name, weight_decay=0.0, **options), []
        for _ in range(41):
            points.append(model.weight.detach()[0].tolist())
            optimizer.zero_grad()
            (0.5 * model.weight[0, 0] ** 2 + 10 * model.weight[0, 1] ** 2).backward()
            optimizer.step()
        series[name] = points
    drawing.rect(40, 40, 440, 200, "rule")
    for ring in (0.3, 1.0, 2.0):
        turn = np.linspace(0, 2 * np.pi, 60)
        drawing.line([(40 + 440 * (ring * np.cos(a) + 2.2) / 4.4, 140 - 90 * ring * np.sin(a) / 20**0.5) for a in turn],
                     "rule")
    for index, (name, points) in enumerate(series.items()):
        drawing.line([(40 + 440 * (a + 2.2) / 4.4, 140 - 90 * b) for a, b in points], f"l{index}")
        drawing.line([(330, 60 + 20 * index), (356, 60 + 20 * index)], f"l{index}")
        drawing.text(364, 64 + 20 * index, {"adamw": "AdamW", "sgd": "SGD"}[name])
    drawing.text(40, 28, "two weights, loss 0.5 a² + 10 b²", "ink t")
    drawing.text(40, 262, "weight a: flat direction", "muted")
    return drawing


def layer_decay() -> Drawing:
    """The learning rate of each layer with layer_decay 0.75, relative to that of the head."""
    from vit.models import create_model

    drawing = Drawing(560, 230, layer_decay.__doc__)
    model = create_model("vit_tiny", image_size=8, patch_size=4, num_classes=2, dim=8, num_heads=1, depth=6)
    named = {id(parameter): name for name, parameter in model.named_parameters()}
    rates = {named[id(parameter)]: group["lr"] for group in parameter_groups(model, 0.0, 0.75, 1.0)
             for parameter in group["params"]}
    layers = {"embed": "embed.proj.weight", **{f"block {i}": f"encoder.blocks.{i}.attn.proj.weight" for i in range(6)},
              "head": "head.weight"}
    drawing.text(20, 26, "rate, relative to the head", "ink t")
    drawing.bars(20, 190, 520, 130, [rates[name] for name in layers.values()], list(layers), 1.0)
    return drawing


def clipping() -> Drawing:
    """The norm of the gradients after clipping to c = 1, and the factor that they are multiplied by."""
    drawing, norms, after = Drawing(480, 270, clipping.__doc__), np.linspace(0, 4, 81), []
    for norm in norms:
        weight = nn.Parameter(torch.zeros(2))
        weight.grad = torch.tensor([0.6, 0.8]) * float(norm)
        clip_gradients([weight], 1.0)
        after.append(float(weight.grad.norm()))
    factors = [1.0, *(a / b for a, b in zip(after[1:], norms[1:], strict=True))]
    drawing.plot(50, 40, 400, 180, norms.tolist(), {"norm after clipping": after, "factor min(1, c / norm)": factors},
                 (0, 1.6), ("norm of all gradients", ""))
    return drawing


def lora() -> Drawing:
    """The update of a 12 x 12 matrix by rank 2: B (12 x 2) times A (2 x 12), 48 numbers instead of 144."""
    drawing, layer = Drawing(640, 250, lora.__doc__), nn.Linear(12, 12, bias=False)
    adapter = Lora(layer, rank=2, alpha=2.0, dropout=0.0)
    adapter.down.data, adapter.up.data = seeded(1, 2, 12, seed=1), seeded(1, 12, 2, seed=2)
    update = adapter(torch.eye(12), torch.zeros(12, 12)).detach().T.numpy()
    dense = seeded(12, 12, seed=3).numpy()
    drawing.text(20, 26, "W, frozen", "ink t")
    drawing.matrix(20, 40, 15, dense)
    drawing.text(216, 135, "+", "ink t")
    drawing.text(246, 26, "B", "ink t")
    drawing.matrix(246, 40, 15, adapter.up[0].detach().numpy())
    drawing.text(296, 26, "A", "ink t")
    drawing.matrix(296, 40, 10, adapter.down[0].detach().numpy())
    drawing.text(300, 135, "=  update", "ink")
    drawing.text(440, 26, "B A, of rank 2", "ink t")
    drawing.matrix(440, 40, 15, update)
    drawing.text(20, 242, "trained: 48 numbers of A and B", "muted")
    return drawing


def bleu() -> Drawing:
    """The share of n-grams of a text that its reference has; BLEU is their geometric mean, here without penalty."""
    from sacrebleu.metrics import BLEU

    drawing = Drawing(520, 260, bleu.__doc__)
    text, reference = "the small dog runs over the wide field", "the small dog runs across the wide field"
    found = BLEU().corpus_score([text], [[reference]])
    assert abs(found.score / 100 - text_metrics([text], [reference])["bleu"]) < 1e-9
    drawing.text(20, 26, text, "ink t")
    drawing.text(20, 46, f"reference: {reference}", "muted")
    drawing.bars(20, 220, 480, 120, [*(p / 100 for p in found.precisions), found.score / 100],
                 ["1 word", "2 words", "3 words", "4 words", "BLEU"], 1.0)
    return drawing


def character_edits() -> Drawing:
    """The fewest edits between the beginnings of two texts; the corner is the number of character errors."""
    text, reference = "kitten", "sitting"
    drawing, cell = Drawing(420, 330, character_edits.__doc__), 34
    table = np.array([[character_errors(text[:j], reference[:i]) for j in range(len(text) + 1)]
                      for i in range(len(reference) + 1)])
    for j, letter in enumerate(text):
        drawing.text(60 + (j + 1.5) * cell, 30, letter, "ink t m")
    for i, letter in enumerate(reference):
        drawing.text(40, 62 + (i + 1) * cell, letter, "ink t m")
    drawing.matrix(60, 40, cell, table * 0.6, float(table.max()))
    for i, j in np.ndindex(table.shape):
        drawing.text(60 + (j + 0.5) * cell, 62 + i * cell, str(table[i, j]), "ink m")
    rate = text_metrics([text], [reference])["cer"]
    drawing.text(310, 290, f"{table[-1, -1]} errors", "ink t")
    drawing.text(310, 310, f"CER {rate:.0%}", "muted")
    return drawing


PICTURES: tuple[Callable[[], Drawing], ...] = (
    heads, scores, windows, axial_rotary, blocks, layer_scale, pooling, ctc, adamw, layer_decay, clipping, lora, bleu,
    character_edits,
)


def main() -> None:
    for draw in PICTURES:
        if not sys.argv[1:] or draw.__name__ in sys.argv[1:]:
            path = FOLDER / f"{draw.__name__}.svg"
            path.write_text(draw().svg(), encoding="utf-8")
            print(f"{path.name}: {path.stat().st_size / 1000:.1f} kB")


if __name__ == "__main__":
    main()
