# %% [markdown]
# # Cost: attention against recurrence and convolution
#
# Table 1 of the 2017 paper compares the layers that can mix tokens by their operations, by how many of them must
# wait for each other, and by the number of layers until the first token can influence the last. Here all three are counted
# and measured on the layers of this project.

# %%
# %matplotlib inline
# %config InlineBackend.figure_formats = ["svg"]
import time
from functools import partial

import matplotlib.pyplot as plt
import torch
from torch import nn

from vit.models.flops import count_flops
from vit.nn import Attention, Convolution, Fourier, Heads, Local, Recurrent

torch.manual_seed(0)
plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "vit", "figure.facecolor": "white"})

D, KERNEL, WINDOW = 64, 3, 32
LAYERS = {
    "attention": lambda: Attention(D, 4),
    "local attention": lambda: Attention(D, 4, score=partial(Local, window=WINDOW)),
    "recurrence (LSTM)": lambda: Recurrent(D, nn.LSTM),
    "convolution": lambda: Convolution(D, KERNEL),
    "Fourier": lambda: Fourier(),
}

# %% [markdown]
# ## 1. The table
#
# For N tokens of width D, kernels of k tokens and windows of w tokens to each side:
#
# | Layer | Operations | Sequential operations | Longest path |
# | --- | --- | --- | --- |
# | attention | N² D | 1 | 1 |
# | local attention | N w D | 1 | N / w |
# | recurrence | N D² | N | N |
# | convolution | k N D² | 1 | N / k |
# | Fourier | N D log(N D) | log N | 1 |
#
# Attention is quadratic in the length, the others are linear or nearly so. In return every token is one step from every
# other, and nothing waits.
#
# ## 2. Operations, counted
#
# The scores and the weighted sum of attention cost 4 N² D (a multiply-add counts as two), the four projections 8 N D².
# Doubling N doubles the projections and quadruples the rest.

# %%
def attention_formula(N):
    return 8 * N * D**2 + 4 * N**2 * D


lengths = (64, 256, 1024, 4096)
print("    N    attention counted   by the formula   part of the N² term")
for N in lengths:
    counted = count_flops(Attention(D, 4), (1, N, D))
    print(f"{N:5} {counted:20,} {attention_formula(N):16,} {4 * N**2 * D / counted:21.0%}")
    assert counted == attention_formula(N)
print("the N² term is the larger one from N = 2 D =", 2 * D, "on")

# %% [markdown]
# ## 3. Path lengths, measured
#
# Change token 0 by a little and see through the gradient which outputs notice it. One layer of attention or Fourier reaches
# all tokens, one convolution only its neighbours. A recurrence reaches all, but through N steps in sequence, and its
# gradient shrinks at each of them: at the end float32 rounds it to zero.

# %%
def reach(layer, N=200):
    """The farthest token whose output depends on token 0."""
    x = torch.randn(1, N, D, requires_grad=True)
    y = layer(x)
    last = N - 1
    while last and not torch.autograd.grad(y[0, last].sum(), x, retain_graph=True)[0][0, 0].abs().max():
        last -= 1
    return last


for name, make in LAYERS.items():
    print(f"{name:20} reaches token {reach(make()):3} of 199")

# %%
deep = nn.Sequential(*(Convolution(D, KERNEL) for _ in range(5)))
print("5 convolutions reach token", reach(deep), "- one more per layer and side")

# %% [markdown]
# ## 4. Time, measured
#
# The processor time of a forward and backward pass, the best of three. Axes are logarithmic: a straight line of slope 2 is
# quadratic, slope 1 linear.

# %%
def seconds(layer, N):
    best = float("inf")
    for _ in range(3):
        x = torch.randn(1, N, D, requires_grad=True)
        start = time.process_time()
        layer(x).sum().backward()
        best = min(best, time.process_time() - start)
    return best


torch.set_num_threads(1)
lengths = (128, 256, 512, 1024, 2048, 4096)
times = {name: [seconds(make(), N) for N in lengths] for name, make in LAYERS.items()}
figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
for name, values in times.items():
    axis.loglog(lengths, values, marker="o", label=name)
axis.set(xlabel="tokens N", ylabel="seconds of processor time", title="forward and backward, width 64")
axis.set_xticks(lengths, lengths)
axis.minorticks_off()
axis.legend()
for name, values in times.items():
    print(f"{name:20} {1000 * values[-1]:8.1f} ms at 4,096 tokens, {values[-1] / values[-3]:5.1f} times that of 1,024")

# %% [markdown]
# Full attention grows towards 16-fold for 4-fold length; the others grow about 4-fold. The LSTM does few operations, but one
# after the other: on a GPU, where thousands can run at once, that is what makes it slow.
#
# ## 5. Local attention is the same where the window covers the text

# %%
full = Attention(D, 4)
wide = Attention(D, 4, score=partial(Local, window=300))
narrow = Attention(D, 4, score=partial(Local, window=WINDOW))
x = torch.randn(1, 300, D)
with torch.no_grad():
    for name, other in (("window 300", wide), ("window 32", narrow)):
        other.load_state_dict(full.state_dict())
        print(f"{name}: largest difference to full attention {(other(x) - full(x)).abs().max():.6f}")

# %%
figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
q = k = torch.randn(1, 1, 24, 16)
heads = Heads(1, 16, 16)
for axis, (title, local) in zip(axes, {"window 3": Local(heads, 3), "window 3, dilation 2": Local(heads, 3, dilation=2),
                                       "window 3, 1 global token": Local(heads, 3, global_tokens=1)}.items()):
    axis.imshow(local.weights(q, k)[0, 0] > 0, cmap="Blues")
    axis.set(title=title, xlabel="key", ylabel="query")

# %% [markdown]
# In a model this is `model.attention=local model.window=32`, and the other layers are `model.mixer=lstm`, `gru`, `conv1d`
# and `fnet`.
#
# ## Exercises
#
# 1. At which length do the two terms of attention cost the same for width 768?
# 2. How many convolutions of 3 tokens are needed until token 0 reaches token 1,000? And with dilations 1, 2, 4, ...?
# 3. What does local attention need in addition so that far tokens can exchange information within two layers?
#
# ## Solutions

# %%
# 1. 8 N D² = 4 N² D, N = 2 D
print("1.", 2 * 768)

# 2. One token per layer and side: 1,000. With doubled dilations the reach is 1 + 2 + 4 + ... = 2^layers - 1: 10 layers
print("2.", next(layers for layers in range(20) if 2**layers - 1 >= 1000))

# 3. A global token, which attends to all and to which all attend: every token is two steps from every other
