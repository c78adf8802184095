# %% [markdown]
# # Search: from probabilities to a text
#
# A decoder gives the probability of each next token. Which text is the output? This notebook follows greedy search and beam
# search step by step on a model small enough to be written down: a table of three tokens.

# %%
# %matplotlib inline
# %config InlineBackend.figure_formats = ["svg"]
import itertools
import math

import matplotlib.pyplot as plt
import torch

from vit.generation import Generation

plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "vit", "figure.facecolor": "white"})

# the probability of the next word, by the last word; "." ends the text
NEXT = {
    "":  {"a": 0.50, "b": 0.40, ".": 0.10},
    "a": {"a": 0.30, "b": 0.36, ".": 0.34},
    "b": {"a": 0.05, "b": 0.05, ".": 0.90},
}

# %% [markdown]
# ## 1. Greedy search
#
# Always the most probable next token: *a* (0.50), then *b* (0.36), then *.* (0.90).

# %%
def greedy(longest=4):
    text, probability = "", 1.0
    while not text.endswith(".") and len(text) < longest:
        choice = max(NEXT[text[-1:]], key=NEXT[text[-1:]].get)
        text, probability = text + choice, probability * NEXT[text[-1:]][choice]
    return text, probability


print("greedy: %s with probability %.4f" % greedy())

# %% [markdown]
# ## 2. Greedy search is not optimal
#
# With three tokens all texts can be listed. The most probable text begins with the *second* best token.

# %%
def log_probability(text):
    return sum(math.log(NEXT[text[:i][-1:]][token]) for i, token in enumerate(text))


every = [text + "." for n in range(4) for text in map("".join, itertools.product("ab", repeat=n))]
for text in sorted(every, key=log_probability, reverse=True)[:4]:
    print(f"{text:5} {math.exp(log_probability(text)):.4f}")

# %% [markdown]
# ## 3. Beam search
#
# Keep the *b* best unfinished texts instead of one. Below with b = 2: each step extends both, and the best two unfinished
# texts survive. Probabilities are added as logarithms, because products of many small numbers vanish.

# %%
def beam_search(width, longest=4):
    """The steps of the search: (parent, text, log-probability, kept) of each continuation."""
    beams, steps = [("", 0.0)], []
    for _ in range(longest):
        found = [(parent, parent + token, score + math.log(p))
                 for parent, score in beams for token, p in NEXT[parent[-1:]].items()]
        found.sort(key=lambda each: -each[2])
        beams = [(text, score) for _, text, score in found if not text.endswith(".")][:width]
        kept = {text for text, _ in beams}
        steps.append([(*each, each[1] in kept) for each in found])
    return steps


steps = beam_search(2, longest=3)
for number, step in enumerate(steps, 1):
    print(f"step {number}:", "  ".join(f"{text} {math.exp(score):.3f}{' kept' if kept else ''}" for _, text, score, kept in step))

# %% [markdown]
# ## 4. The search as a tree
#
# Each line is a continuation with its probability so far. Thick blue lines were kept, orange ones are finished texts, grey
# ones were dropped.

# %%
def draw(steps):
    height = max(map(len, steps))
    position = {"": (0.0, (height - 1) / 2)}
    figure, axis = plt.subplots(figsize=(9, 0.5 * height + 0.8), layout="constrained")
    for depth, step in enumerate(steps, 1):
        first = (height - len(step)) / 2
        for row, (parent, text, score, kept) in enumerate(sorted(step, key=lambda each: (-position[each[0]][1], -each[2]))):
            ended = text.endswith(".")
            colour = "tab:orange" if ended else "tab:blue" if kept else "#9aa5b1"
            position[text] = (depth, height - 1 - first - row)
            (x0, y0), (x1, y1) = position[parent], position[text]
            start = x0 + (0.32 if parent else 0.06)
            axis.plot([start, x1 - 0.03], [y0, y1], color=colour, lw=2.2 if kept or ended else 1)
            axis.text(x1, y1, f"{text}  {math.exp(score):.3f}", va="center", color=colour, weight="bold" if kept or ended else "normal")
    axis.text(0, position[""][1], "▶", va="center", ha="center")
    axis.set(xlim=(-0.1, len(steps) + 0.5), ylim=(-0.6, height - 0.4))
    axis.axis("off")


draw(steps)

# %% [markdown]
# Beam 1 is greedy search. A beam as wide as the tree finds the optimum; in practice 4 to 10 is enough.
#
# ## 5. The length penalty
#
# Every token multiplies by a number below 1, so plain probabilities favour short texts. The score is therefore divided by
# the length T to the power α: log p / T^α. With α = 0 nothing is divided, α = 1 compares means per token.

# %%
print("text    " + "".join(f"   α = {alpha}" for alpha in (0, 0.5, 1, 2)))
for text in (".", "b.", "ab.", "aab."):
    scores = [Generation(length_penalty=alpha).score(log_probability(text), len(text)) for alpha in (0, 0.5, 1, 2)]
    print(f"{text:8}" + "".join(f"{score:10.3f}" for score in scores))

# %%
alphas = torch.linspace(0, 4, 50)
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
for text in (".", "b.", "ab.", "aab."):
    axis.plot(alphas, log_probability(text) / len(text) ** alphas, label=text)
axis.set(xlabel="length penalty α", ylabel="score", title="the best text changes with α")
axis.legend();

# %% [markdown]
# ## 6. The search of this project finds the same
#
# `generate` takes a model with `start` and `advance`, as `Transformer` has them. Here a subclass has the table as its `forward`,
# which then computes each step, without a cache. Ids are 0 padding, 1 start, 2 end, 3 a, 4 b.

# %%
from torch import nn

from vit.generation import generate
from vit.models.seq2seq import EncoderDecoderConfig, Transformer


class Table(Transformer):
    """A model whose next token depends on the last one alone."""

    def forward(self, source, target_in, source_mask=None, target_mask=None, source_logits=False):
        rows = torch.zeros(5, 5)
        rows[[1, 3, 4]] = -torch.inf
        for last, row in ((1, NEXT[""]), (3, NEXT["a"]), (4, NEXT["b"])):
            rows[last, [2, 3, 4]] = torch.tensor([row["."], row["a"], row["b"]]).log()
        return rows[target_in]


model = Table(EncoderDecoderConfig(vocab_size=5, dim=8, num_heads=1, depth=1, decoder_depth=1, max_len=8))
source = torch.tensor([[3]])
for beam in (1, 2, 4):
    for alpha in (0.0, 4.0):
        best = generate(model, source, settings=Generation(beam=beam, max_len=4, length_penalty=alpha))[0][0]
        text = "".join(" ab"[i - 2] for i in best.ids) + ("." if best.ended else "")
        print(f"beam {beam}, α = {alpha}: {text:6} score {best.score:.3f}")

best = generate(model, source, settings=Generation(beam=4, max_len=4, length_penalty=0.0))[0][0]
assert math.isclose(best.score, max(map(log_probability, every)), abs_tol=1e-5)

# %% [markdown]
# ## 7. Sampling
#
# Search gives one text. To get different texts, draw each token with its probability. A temperature below 1 sharpens the
# distribution, above 1 it flattens it.

# %%
from collections import Counter

logits = torch.tensor([NEXT[""][token] for token in "ab."]).log()
for temperature in (0.5, 1.0, 2.0):
    print(f"temperature {temperature}:", [round(p, 2) for p in (logits / temperature).softmax(-1).tolist()])

drawn = generate(model, source, settings=Generation(sample=True, n_best=1000, max_len=4, seed=1))[0]
share = Counter("".join(" ab"[i - 2] for i in each.ids) + ("." if each.ended else "") for each in drawn)
for text in ("b.", "ab.", "a.", "."):
    print(f"{text:4} drawn {share[text] / 1000:.3f}, probability {math.exp(log_probability(text)):.3f}")

# %% [markdown]
# ## Exercises
#
# 1. Change the first row of `NEXT` so that greedy search finds the most probable text.
# 2. Why can a beam of 2 return a text that is *less* probable than that of greedy search? Is that possible here?
# 3. At which α does *ab.* overtake *b.*?
#
# ## Solutions

# %%
# 1. Make "b" the best beginning, for example 0.40 -> 0.55 and "a" 0.50 -> 0.35
NEXT[""] = {"a": 0.35, "b": 0.55, ".": 0.10}
print("1.", greedy()[0], max(every, key=log_probability))
NEXT[""] = {"a": 0.50, "b": 0.40, ".": 0.10}

# 2. The greedy text leaves the beam if two other texts are better at some step, and those may continue badly. It does not
#    happen here: the steps of part 3 show that the greedy text ab stays in the beam until it ends.

# 3. Where log p(b.) / 2^α = log p(ab.) / 3^α
alpha = math.log(log_probability("ab.") / log_probability("b.")) / math.log(3 / 2)
print("3.", round(alpha, 3))
