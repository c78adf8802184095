# %% [markdown]
# # Pre-training without labels, and distillation
#
# Labels are expensive, images are not. A masked autoencoder (MAE) learns from images alone: most patches are masked and
# predicted from the rest. Afterwards fewer labels are needed. In the second part a small model is trained on the
# predictions of a larger one. The images are scikit-learn's digits.

# %%
# %matplotlib inline
# %config InlineBackend.figure_formats = ["svg"]
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from vit.models import create_model, model_from_config

torch.manual_seed(0)
torch.set_num_threads(1)
plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "vit", "figure.facecolor": "white"})
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
labels = torch.tensor(digits.target)
train, test = torch.arange(1437), torch.arange(1437, 1797)

# %% [markdown]
# ## 1. Masking
#
# Each image draws a random number per patch; the patches with the smallest numbers stay visible. Only these pass the encoder,
# so that pre-training costs less than training on whole images. A small decoder fills in mask tokens and predicts pixels.

# %%
mae = create_model("mae_tiny", image_size=8, patch_size=2, in_chans=1, dim=48, depth=4, num_heads=4, mlp_ratio=2,
                   decoder_dim=32, decoder_depth=1, decoder_num_heads=2, mask_ratio=0.5, norm_pixels=False)
visible, masked = mae.random_masking(1, torch.device("cpu"), None)
print("visible patches:", visible[0].tolist())
with torch.no_grad():
    print("tokens in the encoder:", mae.encode_visible(images[:1], visible).shape[1], "of", mae.encode(images[:1]).shape[1])

# %% [markdown]
# ## 2. Pre-training
#
# The loss is the squared error of the *masked* patches. No label is used.

# %%
from vit.models.mae import masked_error


def optimizer_for(model, steps, lr):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.05)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, steps, pct_start=0.1)


optimizer, schedule = optimizer_for(mae, 150 * 12, 3e-3)
losses = []
for epoch in range(150):
    for batch in train[torch.randperm(1437)].split(128):
        pixels, masked = mae(images[batch])
        loss = masked_error(pixels, mae.targets(images[batch]), masked).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
print(f"squared error per pixel {losses[0]:.3f} -> {losses[-1]:.3f}; the variance of a pixel is {images.var():.3f}")

# %% [markdown]
# Reconstructions of images that are not among the training images:

# %%
from vit.models.mae import from_patches, to_patches

with torch.no_grad():
    pixels, masked = mae.eval()(images[test[:6]])
    filled = mae.reconstruct(images[test[:6]], pixels, masked)
patches = to_patches(images[test[:6]], (2, 2)).masked_fill(masked[..., None], -0.3)
holes = from_patches(patches, (2, 2), (4, 4))
figure, axes = plt.subplots(3, 6, figsize=(8, 4.2), layout="constrained")
for line, (name, rows) in zip(axes, {"masked": holes, "predicted": filled, "original": images[test[:6]]}.items()):
    line[0].set_ylabel(name)
    for axis, each in zip(line, rows):
        axis.imshow(each[0], cmap="gray", vmin=-1, vmax=1)
        axis.set(xticks=[], yticks=[])

# %% [markdown]
# ## 3. Few labels
#
# Now 10 labelled images per class. One classifier starts from random weights, the other from the encoder of the MAE; the
# training is the same. Their parameters have the same names, so the encoder's weights are loaded by name.

# %%
few = torch.cat([train[labels[train] == digit][:10] for digit in range(10)])


def accuracy(model):
    with torch.no_grad():
        return (model.eval()(images[test]).argmax(-1) == labels[test]).float().mean().item()


def classifier(start=None, seed=0):
    torch.manual_seed(seed)
    model = model_from_config({**mae.config.classifier(), "num_classes": 10})
    if start is not None:
        state = {name: value for name, value in start.state_dict().items() if name.startswith(("embed.", "encoder."))}
        missing = model.load_state_dict(state, strict=False).missing_keys
        assert set(missing) == {"head.weight", "head.bias"}, missing
    return model


def fit(model, rows, epochs, loss_of, lr=1e-3):
    optimizer, schedule = optimizer_for(model, epochs * -(-len(rows) // 32), lr)
    for _ in range(epochs):
        model.train()
        for batch in rows[torch.randperm(len(rows))].split(32):
            optimizer.zero_grad()
            loss_of(model(images[batch]), batch).backward()
            optimizer.step()
            schedule.step()
    return accuracy(model)


def label_loss(logits, batch):
    return F.cross_entropy(logits, labels[batch], label_smoothing=0.1)


results = {name: [fit(classifier(start, seed), few, 40, label_loss) for seed in range(3)]
           for name, start in {"from scratch": None, "from the MAE": mae}.items()}
for name, values in results.items():
    print(f"{name:14} {sum(values) / 3:.1%} of the test images, with 100 labels ({', '.join(f'{v:.1%}' for v in values)})")

# %% [markdown]
# ## 4. Distillation
#
# A teacher that is trained on all 1,437 labels predicts targets for a smaller student. Its probabilities hold more than a
# label does: a 3 that looks a little like an 8 gets a little of both. The student minimizes the divergence from them, with a
# temperature τ that makes them softer.

# %%
from vit.tasks.distillation import Distillation

teacher = classifier(mae)
print(f"teacher: {fit(teacher, train, 25, label_loss):.1%}, {sum(p.numel() for p in teacher.parameters()):,} parameters")
with torch.no_grad():
    unsure = teacher(images[train]).softmax(-1).max(-1).values.argmin()
    print("its least certain training image, a", int(labels[unsure]), "has the probabilities",
          [round(p, 2) for p in teacher(images[unsure][None])[0].softmax(-1).tolist()])


@torch.no_grad()
def teacher_logits(batch):
    return teacher.eval()(batch)


distillation = Distillation(teacher_logits, "soft", alpha=0.9, tau=2.0)


def distilled_loss(logits, batch):
    each = distillation(logits, images[batch], lambda own: F.cross_entropy(own, labels[batch], reduction="none"))
    return each.mean()


def student(seed):
    torch.manual_seed(seed)
    return create_model("vit_tiny", image_size=8, patch_size=2, in_chans=1, num_classes=10, dim=16, depth=2, num_heads=2,
                        mlp_ratio=2)


print(f"student: {sum(p.numel() for p in student(0).parameters()):,} parameters")
for name, loss_of in (("labels alone", label_loss), ("with the teacher", distilled_loss)):
    values = [fit(student(seed), train, 15, loss_of, lr=3e-3) for seed in range(2)]
    print(f"{name:17} {sum(values) / 2:.1%} ({', '.join(f'{v:.1%}' for v in values)})")

# %% [markdown]
# The two students differ by no more than equal students with other seeds do: two seeds prove nothing here. In part 3 the
# worst seed with the MAE is better than the best one from scratch.
#
# ## Exercises
#
# 1. Why does the decoder of an MAE get mask tokens, and the encoder none?
# 2. What would the encoder learn with a mask ratio near 0, and what near 1?
# 3. With τ → ∞ the probabilities become uniform. Why is the loss multiplied by τ²?
#
# ## Solutions

# %%
# 1. The encoder is what remains after pre-training, when no patch is masked. It has no input token that does not exist
#    later, and it saves the cost of the masked ones.
# 2. Near 0 copying neighbours is enough; near 1 there is nothing left to predict from.
# 3. The gradient of the softened cross entropy shrinks with 1/τ²; the factor keeps both parts of the loss comparable.
logits, target = torch.tensor([[2.0, 0.0, -1.0]], requires_grad=True), torch.tensor([[0.5, 0.3, 0.2]])
for tau in (1.0, 4.0, 16.0):
    loss = Distillation(lambda _: target.log(), "soft", tau=tau).distillation_loss(logits, target.log()).sum()
    print("3. τ =", tau, "size of the gradient", round(torch.autograd.grad(loss, logits)[0].norm().item(), 3))
