# %% [markdown]
# # The encoder-decoder of 2017 on spelled numbers
#
# "Attention is all you need" translates sentences. Here a small version of the same model learns to spell numbers in words:
# 427 -> *four hundred twenty seven*. It has all parts of the paper, and training takes less than a minute.

# %%
# %matplotlib inline
# %config InlineBackend.figure_formats = ["svg"]
import matplotlib.pyplot as plt
import torch

from vit.data.sets.spelled_numbers import spell_out
from vit.models.seq2seq import EncoderDecoderConfig, Transformer

torch.manual_seed(0)
torch.set_num_threads(1)
plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "vit", "figure.facecolor": "white"})

# %% [markdown]
# ## 1. Texts as ids
#
# The source is the digits, the target is words. Ids 0, 1 and 2 stand for padding, the start and the end of a text.

# %%
PAD, BOS, EOS = 0, 1, 2
texts = {number: spell_out(number).replace("-", " ").split() for number in range(1000)}
words = ["<pad>", "<start>", "<end>", *"0123456789", *sorted({word for text in texts.values() for word in text})]
number_of = {word: i for i, word in enumerate(words)}


def padded(rows):
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


source = padded([[number_of[digit] for digit in str(number)] for number in texts])
target = padded([[BOS, *(number_of[word] for word in text), EOS] for text in texts.values()])
print("vocabulary of", len(words), "| source", tuple(source.shape), "| target", tuple(target.shape))
print("427:", source[427].tolist(), "->", target[427].tolist(), "=", " ".join(words[i] for i in target[427]))

order = torch.randperm(1000)
train, test = order[:800], order[800:]

# %% [markdown]
# ## 2. The model, layer by layer
#
# The defaults of `EncoderDecoderConfig` are those of the paper (width 512, 6 blocks, 8 heads, post-norm, ReLU, sin-cos
# positions, embeddings times √D, one matrix for both embeddings and the output layer). Only the sizes are smaller here.

# %%
model = Transformer(EncoderDecoderConfig(vocab_size=len(words), dim=64, depth=2, decoder_depth=2, num_heads=4, max_len=16,
                                         dropout=0.0, sincos_channels="interleaved"))
model.eval()
ids, mask = source[427:428], source[427:428] != PAD
inputs = target[427:428, :-1]

with torch.no_grad():
    x = model.embed.token(ids) * 64**0.5 + model.embed.pos_embed[:, :3]  # token embedding, √D, position
    torch.testing.assert_close(x, model.embed(ids))
    memory = model.encoder(x, mask)  # self-attention and MLP, twice
    y = model.decoder(model.target_embed(inputs), memory, None, mask)  # causal, and cross-attention to the memory
    logits = y @ model.target_embed.token.weight.T  # the output layer is the embedding once more
    torch.testing.assert_close(logits, model(ids, inputs, mask))
print("source", tuple(ids.shape), "-> memory", tuple(memory.shape), "-> decoder", tuple(y.shape), "-> logits", tuple(logits.shape))

# %% [markdown]
# The input of the encoder as a picture: a row per digit and a column per channel. The vector of a token represents the digit,
# the vector of its position the index, and the sum represents both. Two equal digits, as in 477, have the same token vector
# and different sums.

# %%
with torch.no_grad():
    token = model.embed.token(source[477])[:3] * 64**0.5
    position = model.embed.pos_embed[0, :3]
figure, axes = plt.subplots(3, 1, figsize=(9, 3.6), layout="constrained")
rows = {"token, times √D": (token, "477"), "position": (position, "012"), "their sum": (token + position, "477")}
for axis, (name, (vectors, labels)) in zip(axes, rows.items()):
    image = axis.imshow(vectors, cmap="RdBu_r", vmin=-2.5, vmax=2.5, aspect="auto")
    axis.set(title=name, xticks=[])
    axis.set_yticks(range(3), labels)
axes[-1].set_xlabel("channel")
figure.colorbar(image, ax=axes)
assert torch.equal(token[1], token[2]) and not torch.allclose((token + position)[1], (token + position)[2])

# %% [markdown]
# ## 3. One block of the decoder by hand
#
# Post-norm: each branch is added to its input, and the sum is normalized.

# %%
with torch.no_grad():
    t = model.target_embed(inputs)
    block = model.decoder.blocks[0]
    a = block.norm1(t + block.attn(t, causal=True))
    b = block.cross_norm(a + block.cross_attn(a, memory, mask))
    c = block.norm2(b + block.mlp(b))
    torch.testing.assert_close(c, block(t, None, memory, mask, True))
print("equal")

# %% [markdown]
# ## 4. Teacher forcing
#
# In training the input of the decoder is the reference, shifted by one: from *start four hundred* it has to predict *four
# hundred twenty*. With the causal mask no position attends to later ones, so that all positions are trained at once.

# %%
for previous, expected in zip(inputs[0].tolist(), target[427, 1:].tolist()):
    print(f"{words[previous]:10} -> {words[expected]}")

# %% [markdown]
# ## 5. Training, with label smoothing and the schedule of the paper

# %%
from vit.tasks.cross_entropy import cross_entropy
from vit.training.optimization.schedule import noam, noam_peak

STEPS, WARMUP = 500, 100
optimizer = torch.optim.Adam(model.parameters(), lr=0.3 * noam_peak(64, WARMUP), betas=(0.9, 0.98), eps=1e-9)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: noam(step, WARMUP))
model.train()
losses, rates = [], []
for step in range(STEPS):
    rows = train[torch.randint(len(train), (64,))]
    logits = model(source[rows], target[rows, :-1], source[rows] != PAD)
    count = (target[rows, 1:] != PAD).sum()
    loss = cross_entropy(logits.flatten(0, 1), target[rows, 1:].flatten(), PAD, label_smoothing=0.1) / count
    rates.append(optimizer.param_groups[0]["lr"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    losses.append(loss.item())

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained")
left.plot(losses[::4])
left.set(title="loss per word", xlabel="step / 4")
right.plot(rates[::4])
right.set(title="learning rate (Noam)", xlabel="step / 4")

V, s = len(words), 0.1
target_of_one = torch.full((V,), s / V)  # the smoothed target: 1 - s + s / V at the right word
target_of_one[0] += 1 - s
print(f"loss {losses[-1]:.2f}; the smallest possible one is {-(target_of_one * target_of_one.log()).sum():.2f}")

# %% [markdown]
# The loss cannot reach 0: label smoothing asks for a probability of 0.1 / 42 for each wrong word, and the entropy of that target
# remains. Without smoothing the optimum would need infinite logits.

# %% [markdown]
# ## 6. Generation
#
# Without a reference each predicted word becomes the next input. The test numbers are not among the training numbers.

# %%
from vit.generation import Generation, generate

model.eval()


def spelled(numbers, **settings):
    found = generate(model, source[numbers], source[numbers] != PAD, Generation(max_len=12, **settings))
    return [" ".join(words[i] for i in each[0].ids) for each in found]


predictions = spelled(test)
right = [prediction == " ".join(texts[int(number)]) for number, prediction in zip(test, predictions)]
print(f"{sum(right) / len(right):.1%} of {len(right)} unseen numbers are spelled without a mistake")
for number, prediction in list(zip(test.tolist(), predictions))[:6]:
    print(f"{number:4} {prediction}")
assert sum(right) / len(right) > 0.8

# %% [markdown]
# ## 7. Cross-attention
#
# Rows are the words that the decoder predicts, columns the digits that it attends to. The model has learned to
# read the digits in the right order.

# %%
from vit.nn import attention_maps

row = source[427:428]
with torch.no_grad(), attention_maps(model) as maps:
    model(row, target[427:428, :-1], row != PAD)
cross = [each[0][0].mean(0) for name, each in maps.items() if "cross_attn" in name]  # the mean of the heads
figure, axes = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
for number, (axis, weights) in enumerate(zip(axes, cross)):
    axis.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    axis.set(title=f"decoder block {number}", xlabel="digit")
    axis.set_xticks(range(3), list("427"))
    axis.set_yticks(range(len(texts[427]) + 1), [*texts[427], "<end>"])

# %% [markdown]
# ## Exercises
#
# 1. Why is the target shifted by one, and what would the model learn without the shift?
# 2. Train without the causal mask, the last argument of a block in part 3. What happens to the loss, and to generation?
# 3. Compare greedy search with a beam of 4 on the test numbers.
#
# ## Solutions

# %%
# 1. Without the shift the decoder would see the word that it has to predict, and learn to copy it.
# 2. The same happens through attention: the loss reaches the same minimum, a little sooner, and no text is spelled
#    correctly, because the later words, from which the model copied, do not exist yet in generation.
# 3. A beam rarely changes such certain predictions
beam = spelled(test, beam=4)
print("3. greedy", sum(right), "of", len(test), "right, beam",
      sum(prediction == " ".join(texts[int(number)]) for number, prediction in zip(test, beam)))
