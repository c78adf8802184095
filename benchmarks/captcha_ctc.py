"""The baseline that captcha readers are usually built as: a CNN, a recurrent layer and CTC (CRNN, arXiv 1507.05717).

    python benchmarks/captcha_ctc.py CAPTCHAS --minutes 30        the time that `experiment=captcha` took
    python train.py experiment=captcha data.root=CAPTCHAS

The same images at the same size, the same split, the same optimizer, schedule and averaging as the reader of this
project; only the network and its loss differ. It stops after the given time; the schedule ends there.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.data import (
    ByteTokenizer,
    LinePreprocessing,
    PairDataset,
    PairEvalBatches,
    PairSplit,
    PairTrainBatches,
    image_text,
)
from vit.data.text import EOS, PAD
from vit.evaluation import text_metrics
from vit.training import WeightAverage, build_optimizer, clip_gradients

BLANK = 0


class Crnn(nn.Module):
    """Images (B,C,32,W) -> log-probabilities (W/4,B,signs+1) of a sign or blank at each place along the line."""

    def __init__(self, in_chans: int, signs: int, width: int = 64, hidden: int = 128) -> None:
        super().__init__()
        widths, strides = [width, 2 * width, 4 * width, 4 * width], [(2, 2), (2, 2), (2, 1), (2, 1)]
        layers, before = [], in_chans
        for after, stride in zip(widths, strides, strict=True):
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
            layers += [nn.MaxPool2d(stride)]
            before = after
        self.cnn = nn.Sequential(*layers)
        self.rnn = nn.LSTM(2 * before, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * hidden, signs + 1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.cnn(images)  # (B,D,2,W/4)
        x, _ = self.rnn(x.flatten(1, 2).transpose(1, 2))  # (B,W/4,2*hidden)
        return self.head(x).log_softmax(-1).transpose(0, 1)


def ctc_loss(logits: Tensor, target: Tensor, places: dict[int, int], columns: Tensor) -> Tensor:
    """target (B,T) with bos and eos -> the mean over the batch of each text's loss"""
    texts = [[places[i] for i in row if i not in (PAD, EOS)] for row in target[:, 1:].tolist()]
    lengths = torch.tensor([len(text) for text in texts])
    flat = torch.tensor([sign for text in texts for sign in text])
    return F.ctc_loss(logits, flat, columns, lengths, blank=BLANK, zero_infinity=True)


def read(logits: Tensor, columns: Tensor, signs: list[int], tokenizer: ByteTokenizer) -> list[str]:
    """The likeliest sign at each place, repeats joined, blanks left out."""
    best = logits.argmax(-1).transpose(0, 1)  # (B,W/4)
    texts = []
    for row, width in zip(best.tolist(), columns.tolist(), strict=True):
        kept = [sign for i, sign in enumerate(row[:width]) if sign != BLANK and (i == 0 or sign != row[i - 1])]
        texts.append(tokenizer.decode([signs[sign - 1] for sign in kept]))
    return texts


def columns_of(batch: dict[str, Tensor], line: LinePreprocessing) -> Tensor:
    """How many places of the output belong to each image."""
    return batch["source_mask"].view(len(batch["index"]), line.rows, -1)[:, 0].sum(1) * line.patch_size[1] // 4


def evaluate(
    model: Crnn, batches: PairEvalBatches, line: LinePreprocessing, signs: list[int], split: PairSplit
) -> dict[str, float]:
    tokenizer, answers = ByteTokenizer(), {}
    model.eval()
    with torch.inference_mode():
        for batch in batches:
            found = read(model(line.normalize(batch["source"])), columns_of(batch, line), signs, tokenizer)
            answers |= dict(zip(batch["index"].tolist(), found, strict=True))
    rows = range(len(split))
    return text_metrics([answers[i] for i in rows], [split.targets[i] for i in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    source = image_text(options.root / "labels.csv")
    line = LinePreprocessing(32, 320, (8, 8))
    tokenizer = ByteTokenizer()
    sets = {key: PairDataset(split, line, tokenizer) for key, split in source.splits.items()}
    signs = sorted({i for text in source.splits["train"].targets for i in tokenizer.encode(text)})
    places = {sign: place for place, sign in enumerate(signs, 1)}
    model = Crnn(3, len(signs))
    optimizer = build_optimizer(model, "adamw", options.lr, weight_decay=0.01)
    average = WeightAverage(model, 0.998)
    batches = PairTrainBatches(sets["train"], batch_size=options.batch, seed=options.seed)
    start, end, step = time.perf_counter(), options.minutes * 60, 0
    while (spent := time.perf_counter() - start) < end:
        for batch in batches:
            share = min(1.0, (time.perf_counter() - start) / end)
            for group in optimizer.param_groups:
                group["lr"] = options.lr * min(share / 0.1, 0.5 * (1 + math.cos(math.pi * max(0.0, share - 0.1) / 0.9)))
            model.train()
            loss = ctc_loss(model(line.normalize(batch["source"])), batch["target"], places, columns_of(batch, line))
            loss.backward()
            clip_gradients(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            average.update(step)
            if share >= 1:
                break
        print(f"{spent / 60:.1f} min, step {step}, loss {float(loss.detach()):.3f}", flush=True)
    average.swap_in()
    test = evaluate(model, PairEvalBatches(sets["test"], batch_size=64), line, signs, source.splits["test"])
    parameters = sum(p.numel() for p in model.parameters())
    facts = {"minutes": options.minutes, "seed": options.seed, "parameters": parameters, "steps": step}
    print(json.dumps(facts | test))


if __name__ == "__main__":
    main()
