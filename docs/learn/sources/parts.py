# %% [markdown]
# # The small parts
#
# Norms, activations, regularization, targets and schedules: one formula, one picture each, and the function of this project
# beside it.

# %%
# %matplotlib inline
# %config InlineBackend.figure_formats = ["svg"]
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_printoptions(precision=3, sci_mode=False)
plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "vit", "figure.facecolor": "white"})

# %% [markdown]
# ## 1. Three norms
#
# They differ in what is averaged. Rows below are tokens, columns are channels; the second token is ten times as long, the
# third channel is shifted. LayerNorm makes every *row* have mean 0 and variance 1, RMSNorm only length √D, and BatchNorm
# makes every *column* have mean 0 and variance 1.

# %%
from vit.nn import BatchNorm, LayerNorm, RMSNorm

x = torch.randn(6, 8)
x[1] *= 10
x[:, 2] += 4
with torch.no_grad():
    results = {"tokens": x} | {norm.__name__: norm(8)(x[None])[0] for norm in (LayerNorm, RMSNorm, BatchNorm)}
figure, axes = plt.subplots(1, 4, figsize=(10, 2.6), layout="constrained")
for axis, (name, values) in zip(axes, results.items()):
    image = axis.imshow(values, cmap="RdBu_r", vmin=-3, vmax=3)
    axis.set(title=name, xlabel="channel", ylabel="token")
figure.colorbar(image, ax=axes)

torch.testing.assert_close(results["LayerNorm"].mean(1), torch.zeros(6), atol=1e-5, rtol=0)
torch.testing.assert_close(results["RMSNorm"].square().mean(1), torch.ones(6), atol=1e-4, rtol=0)
torch.testing.assert_close(results["BatchNorm"].mean(0), torch.zeros(8), atol=1e-5, rtol=0)

# %% [markdown]
# With BatchNorm a token depends on all others of the batch, so texts of different lengths disturb each other. That is why
# transformers use the other two.
#
# ## 2. Activations
#
# GELU is x times the probability that a normal number is below x; SiLU is x times a sigmoid. SwiGLU multiplies a SiLU by a
# second linear layer, so that one half opens and closes the other.

# %%
from vit.nn import quick_gelu

line = torch.linspace(-4, 4, 120)
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
for name, function in (("ReLU", F.relu), ("GELU", F.gelu), ("x σ(1.702 x)", quick_gelu), ("SiLU", F.silu)):
    axis.plot(line, function(line), label=name)
axis.set(xlabel="x", title="activations")
axis.legend();

# %% [markdown]
# ## 3. Dropout and DropPath
#
# Dropout sets single numbers to zero, DropPath the whole branch of a sample. Both divide what is left by 1 - p, so that the
# mean stays. White is zero.

# %%
from vit.nn import Dropout, DropPath

ones = torch.ones(8, 4, 4)  # 8 samples of 4 tokens
figure, axes = plt.subplots(1, 2, figsize=(9, 2.4), layout="constrained")
for axis, layer in zip(axes, (Dropout(0.3), DropPath(0.3))):
    axis.imshow(layer(ones).permute(1, 0, 2).reshape(4, 32), cmap="Blues", vmin=0, vmax=2)
    axis.set(title=f"{type(layer).__name__}(0.3), 8 samples side by side", xticks=[4 * i - 0.5 for i in range(9)], yticks=[])
    axis.set_xticklabels([])
print("means of many draws:", [round(layer(torch.ones(20000, 1, 1)).mean().item(), 2) for layer in (Dropout(0.3), DropPath(0.3))])

# %% [markdown]
# ## 4. Targets: labels, smoothing, mixup, a teacher
#
# The loss compares the prediction with a distribution. A label is a single 1. Label smoothing moves a part s of it to all
# classes; mixup mixes two images and their labels in the same ratio; a teacher gives its own probabilities, softer with a
# temperature τ.

# %%
from vit.data import Mixup

label = F.one_hot(torch.tensor(2), 5).float()
smooth = label * 0.9 + 0.1 / 5
images = torch.zeros(2, 1, 1, 1)
mixed = Mixup(5, mixup=0.8, cutmix=0.0)(images, torch.tensor([2, 4]), step=3, seed=0)[1][0]
teacher = torch.tensor([0.0, 1.0, 4.0, 2.5, -1.0])
targets = {"label": label, "smoothing 0.1": smooth, "mixup": mixed, "teacher, τ = 1": teacher.softmax(-1),
           "teacher, τ = 3": (teacher / 3).softmax(-1)}
figure, axes = plt.subplots(1, 5, figsize=(10, 2.2), sharey=True, layout="constrained")
for axis, (name, target) in zip(axes, targets.items()):
    axis.bar(range(5), target)
    axis.set(title=name, xlabel="class", ylim=(0, 1.05))

# %% [markdown]
# The smoothed loss by hand and by the function of this project:

# %%
from vit.tasks.cross_entropy import cross_entropy

logits = torch.tensor([[0.5, 0.0, 2.0, 1.0, -1.0]])
by_hand = -(smooth * logits.log_softmax(-1)).sum()
ours = cross_entropy(logits, torch.tensor([2]), ignored=-1, label_smoothing=0.1)
torch.testing.assert_close(ours, by_hand)
print(f"by hand {by_hand:.4f}, ours {ours:.4f}")

# %% [markdown]
# ## 5. Learning-rate schedules
#
# All warm up, because the first gradients of a transformer are large and the statistics of Adam not yet known. Then they
# differ: a cosine, the square root of the 2017 paper (Noam), or constant with a linear end (warmup-stable-decay).

# %%
from vit.training.optimization.schedule import cosine, noam, noam_peak, wsd

steps = range(1000)
curves = {"cosine": [cosine(t, 1000, 100) for t in steps], "noam": [noam(t, 100) for t in steps],
          "wsd": [wsd(t, 1000, 100, 200) for t in steps]}
figure, axis = plt.subplots(figsize=(7, 3), layout="constrained")
for name, values in curves.items():
    axis.plot(values[::5], label=name)
axis.set(xlabel="step / 5", ylabel="rate / peak", title="100 steps of warm-up, 1,000 steps")
axis.legend()
print(f"the peak of Noam for width 512 and 4,000 steps of warm-up: {noam_peak(512, 4000):.6f}")

# %% [markdown]
# ## 6. The average of the weights
#
# Weights jump around from step to step; their exponential moving average is smoother and usually predicts better. With a
# warm-up the average forgets its start quickly.

# %%
from torch import nn

from vit.training.averaging.ema import WeightAverage

weight = nn.Linear(1, 1, bias=False)
averages = {warmup: WeightAverage(weight, 0.98, warmup) for warmup in (False, True)}
path, smooth_paths = [], {False: [], True: []}
with torch.no_grad():
    weight.weight.fill_(3.0)
    for average in averages.values():
        average.average["weight"].fill_(0.0)
    for step in range(1, 200):
        weight.weight.mul_(0.98).add_(0.25 * torch.randn(1))
        path.append(weight.weight.item())
        for warmup, average in averages.items():
            average.update(step)
            smooth_paths[warmup].append(average.average["weight"].item())
figure, axis = plt.subplots(figsize=(7, 3), layout="constrained")
axis.plot(path, color="#9aa5b1", label="weight")
for warmup, values in smooth_paths.items():
    axis.plot(values, label="average, with warm-up" if warmup else "average, without")
axis.set(xlabel="step", title="decay 0.98, the average starts at 0")
axis.legend();

# %% [markdown]
# ## Exercises
#
# 1. Multiply a token by 10. Which of the three norms give the same result as before?
# 2. What is the smallest possible loss with label smoothing 0.1 and 5 classes? Why is it not 0?
# 3. At which step is the Noam schedule back at half of its peak, with 100 steps of warm-up?
#
# ## Solutions

# %%
token = torch.randn(1, 6, 8)
with torch.no_grad():
    for norm in (LayerNorm(8), RMSNorm(8), BatchNorm(8)):
        longer = token.clone()
        longer[0, 0] *= 10
        print("1.", type(norm).__name__, torch.allclose(norm(token)[0, 0], norm(longer)[0, 0], atol=1e-3))

# 2. The entropy of the target: a prediction equal to the target still has it
print("2.", round(-(smooth * smooth.log()).sum().item(), 4))

# 3. sqrt(100 / t) = 1/2, t = 400
print("3.", round(noam(399, 100), 3))
