# %% [markdown]
# # Attention by hand
#
# Three tokens, two channels each, and matrices so small that every number can be checked on paper. At the end the layer of
# this project gives the same numbers.

# %%
# %matplotlib inline
# %config InlineBackend.figure_formats = ["svg"]
import matplotlib.pyplot as plt
import torch

torch.set_printoptions(precision=3, sci_mode=False)
plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "vit", "figure.facecolor": "white"})

TOKENS = ["the", "cat", "sat"]
x = torch.tensor([[1.0, 0.0],   # the
                  [0.0, 2.0],   # cat
                  [1.0, 1.0]])  # sat

# %% [markdown]
# ## 1. Without any parameter
#
# The similarity of two tokens is their dot product. All of them at once are one matrix product:
# row i, column j holds x_i · x_j.

# %%
similarity = x @ x.T
similarity

# %% [markdown]
# Check one by hand: cat · sat = 0·1 + 2·1 = 2. The softmax turns each row into weights that sum to 1, and the result for a
# token is the weighted mean of all tokens.

# %%
weights = similarity.softmax(dim=-1)
print(weights)
print("row sums", weights.sum(dim=-1))
print(weights @ x)

# %% [markdown]
# This already is self-attention. It has two limits: nothing can be learned, and the scores are symmetric: *cat* compares with
# *sat* exactly as *sat* compares with *cat*.

# %% [markdown]
# ## 2. Queries, keys and values
#
# Three learned matrices give each token three roles: the *query* is compared with the *key* of each token, whose *value* is
# passed on.

# %%
W_Q = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
W_K = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # exchanges the channels
W_V = torch.tensor([[2.0, 0.0], [0.0, 1.0]])

q, k, v = x @ W_Q, x @ W_K, x @ W_V
print("queries", q, "keys", k, "values", v, sep="\n")

# %% [markdown]
# The scores, divided by the square root of the width of a key (here √2 ≈ 1.414). Without the division, scores grow with the
# width, and the softmax saturates.

# %%
scores = q @ k.T / 2**0.5
print("q · k", q @ k.T, "divided by 1.414", scores, sep="\n")

# %% [markdown]
# One row in full. The query of *the* is (1, 0); its dot products with the keys (0, 1), (2, 0), (1, 1) are 0, 2, 1.
# Divided: 0, 1.414, 0.707. Exponentials: 1, 4.113, 2.028, sum 7.141. Weights: 0.140, 0.576, 0.284.

# %%
weights = scores.softmax(dim=-1)
exponentials = torch.tensor([1.0, 4.113, 2.028])
torch.testing.assert_close(weights[0], exponentials / exponentials.sum(), atol=1e-3, rtol=0)
weights

# %%
def show(matrices, titles, queries=TOKENS, keys=TOKENS):
    """Attention weights as coloured matrices with their numbers."""
    figure, axes = plt.subplots(1, len(matrices), figsize=(3.1 * len(matrices), 3.1), squeeze=False, layout="constrained")
    for axis, matrix, title in zip(axes[0], matrices, titles):
        axis.imshow(matrix, cmap="Blues", vmin=0, vmax=1)
        axis.set(title=title, xlabel="key", ylabel="query")
        axis.set_xticks(range(len(keys)), keys)
        axis.set_yticks(range(len(queries)), queries)
        for i, row in enumerate(matrix.tolist()):
            for j, value in enumerate(row):
                axis.text(j, i, f"{value:.2f}", ha="center", va="center", color="white" if value > 0.6 else "black")


show([similarity.softmax(-1), weights], ["x · x (symmetric scores)", "with queries and keys"])

# %% [markdown]
# The output: each row of weights times the values.

# %%
by_hand = weights @ v
by_hand

# %% [markdown]
# ## 3. The layer of this project gives the same
#
# `Attention` holds the three matrices stacked in one linear layer, `qkv`. A linear layer computes x Wᵀ, hence the
# transposes.

# %%
from functools import partial

from vit.nn import Attention, attention_maps, stacked

layer = Attention(2, 1, projection=partial(stacked, bias=False), output=None)
with torch.no_grad():
    layer.qkv.weight.copy_(torch.cat([W_Q.T, W_K.T, W_V.T]))
    with attention_maps(layer) as maps:
        ours = layer(x[None])[0]  # a batch of one text

torch.testing.assert_close(ours, by_hand)
torch.testing.assert_close(maps[""][0][0, 0], weights)
ours

# %% [markdown]
# ## 4. Masks
#
# A mask removes keys: their score becomes -∞, and exp(-∞) = 0. Padding is masked for every query. A *causal* mask lets a
# token see only itself and the tokens before it, which a model that generates text needs.

# %%
causal = torch.ones(3, 3).tril().bool()
padding = torch.tensor([True, True, False])  # the third token is padding
masked = {name: scores.masked_fill(~mask, -torch.inf).softmax(-1) for name, mask in
          {"causal": causal, "third token is padding": padding}.items()}
show([weights, *masked.values()], ["no mask", *masked])

with torch.no_grad():
    torch.testing.assert_close(layer(x[None], causal=True)[0], masked["causal"] @ v)
    torch.testing.assert_close(layer(x[None], mask=padding[None])[0], masked["third token is padding"] @ v)

# %% [markdown]
# ## 5. Heads
#
# Two heads of one channel each attend independently, and their results are concatenated. Head 1 uses the first channel of
# q, k and v, head 2 the second.

# %%
heads = [(q[:, [h]] @ k[:, [h]].T).softmax(-1) for h in range(2)]  # the width of a key is 1, so its root is 1
by_hand = torch.cat([heads[h] @ v[:, [h]] for h in range(2)], dim=-1)
show(heads, ["head 1", "head 2"])

two = Attention(2, 2, projection=partial(stacked, bias=False), output=None)
two.load_state_dict(layer.state_dict())
with torch.no_grad():
    torch.testing.assert_close(two(x[None])[0], by_hand)

# %% [markdown]
# The parameters are the same: more heads do not cost more. What changes is that there are two patterns instead of one.
#
# ## 6. Other scores
#
# How a query is compared with a key is exchangeable. On the command line this is `model.attention=dot`, `cosine`,
# `bilinear` or `additive`.

# %%
cosine = q @ k.T / (q.norm(dim=-1)[:, None] * k.norm(dim=-1))
w = torch.tensor([1.0, 1.0])
every = {"scaled dot product": scores, "dot product": q @ k.T, "10 · cosine": 10 * cosine,
         "additive": torch.tanh(q[:, None] + k[None]) @ w}
show([each.softmax(-1) for each in every.values()], every)

# %%
from vit.nn import Additive, Cosine, DotProduct

for score, expected in ((DotProduct, "dot product"), (Cosine, "10 · cosine"), (Additive, "additive")):
    other = Attention(2, 1, projection=partial(stacked, bias=False), score=score, output=None)
    other.load_state_dict(layer.state_dict(), strict=False)
    with torch.no_grad():
        if score is Additive:
            other.score.vector.copy_(w[None])
        torch.testing.assert_close(other(x[None])[0], every[expected].softmax(-1) @ v)
print("all equal")

# %% [markdown]
# ## 7. Why the division by √K
#
# For independent numbers of variance 1, the dot product of K of them has variance K. The wider the head, the more one key
# takes everything, and the gradient of the softmax vanishes.

# %%
torch.manual_seed(0)
print("    K   variance q·k   largest weight of 16: unscaled   scaled")
for K in (4, 16, 64, 256):
    many_q, many_k = torch.randn(2, 500, 16, K)
    products = many_q @ many_k.transpose(1, 2)
    largest = [each.softmax(-1).amax(-1).mean().item() for each in (products, products / K**0.5)]
    print(f"{K:5}   {products.var():12.1f}   {largest[0]:30.2f}   {largest[1]:6.2f}")

# %% [markdown]
# ## Exercises
#
# 1. Compute the weights of the query *cat* in part 2 on paper.
# 2. Exchange the tokens *the* and *cat*. What happens to the result of the layer, and why do transformers need positions?
# 3. Which mask makes every token attend only to itself, and what is the result then?
#
# ## Solutions

# %%
# 1. q = (0, 2); dot products with (0, 1), (2, 0), (1, 1): 2, 0, 2; divided by 1.414: 1.414, 0, 1.414
exponentials = torch.tensor([4.113, 1.0, 4.113])
print("1.", exponentials / exponentials.sum(), weights[1])

# 2. The rows of the result are exchanged too and otherwise the same: attention does not depend on the order
with torch.no_grad():
    print("2.", torch.equal(layer(x[None, [1, 0, 2]])[0], layer(x[None])[0, [1, 0, 2]]))

# 3. The identity; the result is the values
with torch.no_grad():
    print("3.", torch.equal(layer(x[None], mask=torch.eye(3).bool()[None])[0], v))
