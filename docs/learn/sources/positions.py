# %% [markdown]
# # Positions
#
# Attention compares every token with every other and does not depend on their order. Positions put the order back: as vectors
# that are added to the tokens, as rotations of queries and keys, or as numbers that are added to the scores.

# %%
# %matplotlib inline
# %config InlineBackend.figure_formats = ["svg"]
import math

import matplotlib.pyplot as plt
import torch

from vit.nn import Attention, Rotary, sincos_1d, sincos_2d

torch.manual_seed(0)
torch.set_printoptions(precision=3, sci_mode=False)
plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "vit", "figure.facecolor": "white"})

# %% [markdown]
# ## 1. Without positions a text is a bag of words

# %%
layer, text = Attention(16, 2).eval(), torch.randn(1, 5, 16)
order = torch.tensor([3, 0, 4, 1, 2])
with torch.no_grad():
    torch.testing.assert_close(layer(text[:, order]), layer(text)[:, order])
print("shuffled tokens give the shuffled result")

# %% [markdown]
# ## 2. Sine and cosine
#
# The paper of 2017 adds a fixed vector to the token at position p. Channels 2i and 2i+1 hold the sine and the cosine of
# p / 10000^(2i/D): fast waves in the first channels, slow ones in the last.

# %%
table = sincos_1d(64, 32, interleaved=True)[0]  # (positions, channels)
print("position 3, channels 0 and 1:", table[3, :2], "by hand:", math.sin(3), math.cos(3))

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
image = left.imshow(table, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
left.set(title="the table", xlabel="channel", ylabel="position")
figure.colorbar(image, ax=left)
for channel in (0, 8, 16):
    right.plot(table[:, channel], label=f"channel {channel}")
right.set(title="three of its columns", xlabel="position", ylabel="value")
right.legend(loc="lower left");

# %% [markdown]
# It is a clock with many hands. One hand alone repeats; all hands together name each position.
#
# ## 3. The dot product of two positions depends on their distance alone
#
# sin a sin b + cos a cos b = cos(a - b): each pair of channels contributes the cosine of the difference.

# %%
products = table @ table.T
for distance in (0, 1, 5):
    print(f"distance {distance}:", products.diagonal(distance)[:4])

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
figure.colorbar(left.imshow(products, cmap="viridis"), ax=left)
left.set(title="dot products of all positions", xlabel="position", ylabel="position")
right.plot(range(-31, 32), products[31, :63])
right.set(title="position 31 with the others", xlabel="offset", ylabel="dot product");

# %% [markdown]
# ## 4. The same on a grid
#
# For images half of the channels hold the row and the other half the column. Below, the cosine of one patch with all
# others: rows and columns near it light up.

# %%
grid = sincos_2d((14, 14), 64)[0]
unit = grid / grid.norm(dim=-1, keepdim=True)
figure, axes = plt.subplots(1, 4, figsize=(9, 2.6), layout="constrained")
for axis, (row, column) in zip(axes, [(0, 0), (3, 10), (7, 7), (13, 4)]):
    image = axis.imshow((unit @ unit[row * 14 + column]).view(14, 14), vmin=0, vmax=1)
    axis.set(title=f"row {row}, column {column}", xticks=[0, 13], yticks=[0, 13])
figure.colorbar(image, ax=axes, label="cosine");

# %% [markdown]
# ## 5. Rotary positions
#
# Instead of adding something, turn each pair of channels of the query and of the key by an angle that grows with the
# position. A dot product depends on the angle between two vectors, so that only the difference of the positions remains.

# %%
def turned(vector, angle):
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, -s], [s, c]]) @ vector


a, b = torch.tensor([1.0, 0.3]), torch.tensor([0.8, 0.6])
figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
for axis, (m, n) in zip(axes, [(0, 2), (1, 3), (4, 6)]):
    for vector, position, colour, name in ((a, m, "tab:blue", "query"), (b, n, "tab:orange", "key")):
        end = turned(vector, position * 0.5)
        axis.annotate("", end.tolist(), (0, 0), arrowprops={"arrowstyle": "->", "color": colour, "lw": 2})
        axis.text(*(end * 1.12).tolist(), f"{name} {position}", color=colour, ha="center")
    product = float(turned(a, m * 0.5) @ turned(b, n * 0.5))
    axis.set(title=f"positions {m} and {n}: {product:.3f}", xlim=(-1.7, 1.7), ylim=(-1.7, 1.7), aspect="equal",
             xticks=[-1, 0, 1], yticks=[-1, 0, 1])

# %% [markdown]
# The same with the layer of the project: one query and one key, put at all positions.

# %%
rotary = Rotary((32,), head_dim=16, theta=10_000)()
q, k = torch.randn(2, 1, 1, 1, 16)
rotated = rotary(q.expand(1, 1, 32, 16)) @ rotary(k.expand(1, 1, 32, 16)).transpose(-1, -2)  # (1,1,32,32)
for offset in (-3, 0, 3):
    diagonal = rotated[0, 0].diagonal(offset)
    torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5, rtol=0)
    print(f"key {offset:+} from the query: {diagonal[0]:.3f} at each of {len(diagonal)} positions")

# %% [markdown]
# The mean over many random keys that equal their query shows the tendency: near tokens match best, and the match decays
# with the distance.

# %%
many = torch.randn(200, 1, 1, 16).expand(200, 1, 128, 16)
long = Rotary((128,), head_dim=16, theta=10_000)()
decay = (long(many)[:, :, :1] * long(many)).sum(-1).mean(0)[0]
figure, axis = plt.subplots(figsize=(6, 2.8), layout="constrained")
axis.plot(decay)
axis.set(title="rotated query · rotated key, query = key", xlabel="distance", ylabel="mean dot product");

# %% [markdown]
# ## 6. Relative bias
#
# The third way adds a learned number per head and offset to the scores. T5 puts offsets into ranges: near offsets have a
# number each, far ones share it.

# %%
from vit.nn import TextRelativePositions

bias = TextRelativePositions(num_heads=2, buckets=16, longest=64)
offsets = torch.arange(-64, 65)
figure, axis = plt.subplots(figsize=(6, 2.8), layout="constrained")
axis.step(offsets, bias.bucket(offsets), where="mid")
axis.set(title="the range of each offset", xlabel="offset of the key from the query", ylabel="index of the number");

# %% [markdown]
# ## Which one?
#
# `model.positions=learned`, `sincos`, `rotary`, `relative` or `none`. Tables are the simplest and belong to a fixed length;
# rotary positions depend on offsets alone, cost no parameters and are the usual choice of language models today.
#
# ## Exercises
#
# 1. A table has 32 channels. After how many positions does channel 0 repeat, and channel 30?
# 2. Show that moving a sin-cos vector by 5 positions is a linear map that does not depend on the position.
# 3. Why are values not rotated?
#
# ## Solutions

# %%
# 1. The wavelength of channel 2i is 2π · 10000^(2i/D)
print("1.", [round(2 * math.pi * 10_000 ** (channel / 32), 1) for channel in (0, 30)])

# 2. Each pair (sin, cos) turns by the angle 5 · frequency: a rotation matrix, the same at every position
frequency = 10_000 ** (-4 / 32)  # of channels 4 and 5
c, s = math.cos(5 * frequency), math.sin(5 * frequency)
moved = table[:-5, 4:6] @ torch.tensor([[c, -s], [s, c]])
print("2.", torch.allclose(moved, table[5:, 4:6], atol=1e-5))

# 3. Values are what is passed on. Rotated, the same content would differ from position to position.

# %%
assert torch.allclose(moved, table[5:, 4:6], atol=1e-5)
