# %% [markdown]
# # BERT: masking, next sentence, fine-tuning
#
# A decoder predicts the next word from those before it. BERT ([1810.04805](https://arxiv.org/abs/1810.04805)) has only an
# encoder: each word attends to all others, so some of them are masked and have to be predicted. The texts here are generated
# stories about people who gain and lose things. Pre-training needs no labels; afterwards a few labels are enough.

# %%
# %matplotlib inline
# %config InlineBackend.figure_formats = ["svg"]
import csv
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from IPython.utils.capture import capture_output

import vit
from vit.data.sets.number_stories import number_stories

torch.set_num_threads(1)
plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "vit", "figure.facecolor": "white"})
folder = Path(tempfile.mkdtemp())
splits = number_stories().splits
stories = {key: list(split.texts) for key, split in splits.items()}
for text in stories["train"][:5]:
    print(text)

# %% [markdown]
# ## 1. Masking
#
# 15 % of the tokens are selected. Of these 80 % are replaced by `[MASK]`, 10 % by a random token, and 10 % are unchanged: if
# all were masked, the model would learn nothing about words that are not masked. The selection changes from epoch to epoch.
# A random token may be a part of a word or a single byte, which is printed as �.

# %%
from vit.data.text.masked_tokens import MaskedDataset
from vit.data.text.tokenizers import MASK, BPETokenizer

tokenizer = BPETokenizer.train(stories["train"])
dataset = MaskedDataset(splits["train"], tokenizer)
for epoch in range(3):
    pair = dataset.__getitems__(np.array([(epoch, 7)]))
    print(f"epoch {epoch}: ", "".join(tokenizer.tokens(pair["source"][0].tolist())))
    chosen = pair["masked"][0] >= 0
    print("  to predict:", tokenizer.tokens(pair["masked"][0][chosen].tolist()))

batch = dataset.__getitems__(np.stack([np.zeros(500, int), np.arange(500)], 1))
selected = batch["masked"] >= 0
words = batch["source_mask"] & (batch["source"] > 4) | selected
kept = (batch["source"] == batch["masked"])[selected].float().mean()
masked = (batch["source"][selected] == MASK).float().mean()
print(f"{selected.sum() / words.sum():.1%} of the tokens are selected; {masked:.0%} of them masked, {kept:.0%} unchanged")

# %% [markdown]
# ## 2. Next sentence
#
# Two sentences go in together. In half of the pairs the second one follows the first in its story (class 0), in the others it
# is any other sentence (class 1). A vector per *segment* marks the sentence of a token.

# %%
pair = dataset.__getitems__(np.array([(0, 7)]))
print("segments:", pair["segment"][0].tolist())
print(f"{(batch['next'] == 0).float().mean():.0%} of the pairs follow each other")

# %% [markdown]
# The loss is the sum of both tasks: the cross entropy of the selected tokens, and that of the pair. A model that has learned
# nothing starts near log V + log 2.

# %%
from vit.models.masked import Bert, MaskedTextConfig

torch.manual_seed(0)
small = Bert(MaskedTextConfig(vocab_size=tokenizer.vocab_size, dim=64, depth=2, num_heads=4, max_len=128))
positions = selected.flatten().nonzero()[:, 0]  # the tokens to predict
with torch.no_grad():
    tokens, pairs = small.eval()(batch["source"], batch["source_mask"], batch["segment"], positions)
print("token logits", tuple(tokens.shape), "| pair logits", tuple(pairs.shape))
token_loss, pair_loss = F.cross_entropy(tokens, batch["masked"][selected]), F.cross_entropy(pairs, batch["next"])
print(f"loss {token_loss:.2f} + {pair_loss:.2f}; log V = {np.log(tokenizer.vocab_size):.2f}, log 2 = {np.log(2):.2f}")

# %% [markdown]
# ## 3. Pre-training
#
# `vit.train` takes the overrides of the command line. This is a smaller version of `python train.py experiment=bert`, which
# takes eight minutes on one core. The log is in the run folder; here it is not shown.

# %%
SHORT = ["precision=32-true", "logger=csv", "report=false", "calibrate=none"]


def train(name, *overrides):
    with capture_output():
        return vit.train([*SHORT, *overrides, f"run_dir={folder / name}"])


SIZE = ["model.dim=64", "model.depth=2", "model.num_heads=4", "model.dropout=0.0"]
pretrained = train("bert", "data=corpus", *SIZE, "model.attention_dropout=0.0", "recipe.epochs=3", "recipe.batch_size=64",
                   "recipe.optimizer.lr=0.003", "recipe.ema=0.98")
print(f"masked tokens {pretrained.metrics['test/token_accuracy']:.1%}, pairs {pretrained.metrics['test/pair_accuracy']:.1%}")

# %% [markdown]
# ## 4. What it has learned
#
# Write `[MASK]` for a word. On the command line: `vit predict BERT_RUN "ann has [MASK] coins"`.

# %%
bert = vit.load(pretrained.path, device="cpu")
questions = ["ann has ten [MASK]", "with two coins ann [MASK] three and has five",
             "of nine pears ben [MASK] four and has five", "of nine pears ben loses four and [MASK] five"]
for filled in bert.predict(questions, top_k=3):
    mask = filled.masks[0]
    found = ", ".join(f"{name} {p:.0%}" for name, p in zip(mask.names, mask.probabilities))
    print(f"{filled.source:46} {found}")

# %% [markdown]
# A word before the mask and one behind it decide: *with* begins a gain, *of* a loss. That is what an encoder without a causal
# mask is for. A tab separates two sentences; then the prediction has the probability that the second one follows.

# %%
first = "of twelve coins ann sells two and has ten"
for second in ("of ten coins ann loses [MASK] and has seven", "of ten coins ben loses [MASK] and has seven",
               "of ten pears ann loses [MASK] and has seven", "of six coins ann loses [MASK] and has three"):
    print(f"{bert.predict([first + chr(9) + second])[0].masks[0].next:6.1%}  {first} | {second}")

# %% [markdown]
# The second sentence must continue with the same number of the same thing. This small model has not learned that it must
# also be about the same person (exercise 4).
#
# The attention from the masked word, as the mean of the heads of each layer.

# %%
from vit.nn import attention_maps

sample = bert.encode("with two coins ann [MASK] three and has five")
names = tokenizer.tokens(sample.ids)
with torch.inference_mode(), attention_maps(bert.model) as maps:
    bert.model(*bert.batch([sample]))
rows = np.stack([each[0][0].mean(0)[sample.positions[0]].numpy() for each in maps.values()])
figure, axis = plt.subplots(figsize=(8, 1.8), layout="constrained")
axis.imshow(rows, cmap="Blues", vmin=0)
axis.set_yticks(range(len(rows)), [f"layer {number}" for number in range(len(rows))])
axis.set_xticks(range(len(names)), names, rotation=45, ha="right");

# %% [markdown]
# In the table of embeddings *five* is one vector. In a sentence it is a number before, a change or a result, and the vector
# after a block depends on it. Below, the cosine between the vectors of *five* in two sentences: 1 in the table; then with the position
# added; then after each block.

# %%
changed = "with two coins ann buys five and has seven", "of nine pears ben loses five and has four"
result, before = "with two coins ann buys three and has five", "with five coins ann buys two and has seven"


def vectors(text):
    """The vector of *five* in the table, with its position, and after each block."""
    sample = bert.encode(text)
    source, mask, segment = bert.batch([sample])
    position, blocks = next(i for i, token in enumerate(tokenizer.tokens(sample.ids)) if token.strip() == "five"), []
    with torch.inference_mode():
        x = bert.model.embed(source, segment=segment)
        bert.model.encoder(x, mask, features=blocks)
        return torch.stack([bert.model.embed.token.weight[sample.ids[position]], *(each[0, position] for each in (x, *blocks))])


figure, axis = plt.subplots(figsize=(7, 3), layout="constrained")
for name, (one, other) in {"a change in both": changed, "a change, a result": (changed[0], result),
                           "before, a result": (before, result)}.items():
    cosines = F.cosine_similarity(vectors(one), vectors(other), dim=-1)
    axis.plot(cosines, marker="o", label=name)
    print(f"{name:20}", "  ".join(f"{value:.2f}" for value in cosines))
axis.set_xticks(range(4), ["table", "+ position", "block 0", "block 1"])
axis.set(title="the vectors of one word in two sentences", ylabel="cosine", ylim=(0, 1.05))
axis.legend();

# %% [markdown]
# If *five* means the same in both sentences, its vectors stay close, although all other words except *and has* differ. Such
# vectors are called contextual, and fine-tuning starts from them.
#
# ## 5. Fine-tuning on classes
#
# A new task with 200 labels: are two sentences about the same thing? Without pre-training this is hard, because the model
# has to find two words and compare them. `init_from` loads embedding, encoder and pooler; only the head is new. The task was
# chosen to suit what was learned: whether two sentences are about the same person remains guessing, with and without
# pre-training (43 to 47 % correct in four runs).

# %%
things = ("apples", "books", "coins", "pears", "shells", "stamps")


def thing(text):
    return next(word for word in text.split() if word in things)


def labelled(split, count, seed):
    """Pairs of sentences of different stories; half of them are about the same thing."""
    random, texts = np.random.default_rng(seed), stories[split]
    while count:
        first, second = random.choice(texts, 2)
        if (thing(first) == thing(second)) == bool(count % 2):
            count -= 1
            yield first, second, "same" if count % 2 == 0 else "other"


with open(folder / "pairs.csv", "w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["text", "second", "label", "split"])
    for split, count in (("train", 200), ("val", 100), ("test", 300)):
        table.writerows([*row, split] for row in labelled(split, count, 0))

PAIRS = ["data=text_table", f"data.path={folder / 'pairs.csv'}", "data.second=second", "recipe.batch_size=16",
         "recipe.epochs=15", "recipe.ema=null", "recipe.optimizer.lr=0.001"]
tuned = train("tuned", *PAIRS, f"init_from={pretrained.path}", "model.pool=pooler")
scratch = train("scratch", *PAIRS, *SIZE, "model.pool=pooler")
for name, run in (("from scratch", scratch), ("from BERT", tuned)):
    print(f"{name:13} {run.metrics['test/accuracy']:.1%} of 300 test pairs")

# %% [markdown]
# ## Exercises
#
# 1. Why is the token that is to be predicted sometimes left as it is?
# 2. A decoder of the same size predicts every word of a text. How many predictions does BERT learn from per 100 words?
# 3. Two masks in one text are predicted independently of each other. Show a text where that matters.
# 4. In part 4 *ben* may continue a story about *ann*. Why does next sentence prediction hardly punish this?
#
# ## Solutions

# %%
# 1. After pre-training no word is masked. If a word in the input were never the answer, the model could ignore it there.
# 2. About 15, a seventh of what a decoder learns from; in return each prediction sees both sides.
# 3. The number before and after a change must fit together; each mask has the most probable number on its own.
filled = bert.predict(["ann has [MASK] coins\twith [MASK] coins ann buys two and has twelve"], top_k=3)[0]
for mask in filled.masks:
    print("3. mask", mask.mask, ", ".join(f"{name} {p:.0%}" for name, p in zip(mask.names, mask.probabilities)))
# 4. The wrong sentences are random ones: few of them have the right number of the same thing, so it is enough to compare
#    number and thing.
sentences = stories["train"]
ends, things_of = [text.split()[-1] for text in sentences], [thing(text) for text in sentences]
random = np.random.default_rng(0).integers(len(sentences), size=(10_000, 2))
fitting = [things_of[a] == things_of[b] and f" {ends[a]} " in sentences[b][:20] for a, b in random]
print(f"4. {np.mean(fitting):.1%} of random pairs have the same thing and begin with the right number")
assert pretrained.metrics["test/token_accuracy"] > 0.3
