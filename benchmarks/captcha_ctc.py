"""The usual baseline for reading captchas: a CNN with CTC loss, with or without an LSTM.

    OMP_NUM_THREADS=1 python train.py experiment=captcha data.root=CAPTCHAS
    OMP_NUM_THREADS=1 python benchmarks/captcha_ctc.py CAPTCHAS --minutes 34    the same processor time
    OMP_NUM_THREADS=1 python benchmarks/captcha_ctc.py CAPTCHAS --recurrent 2 --overrides recipe.optimizer.lr=0.003
    OMP_NUM_THREADS=1 python benchmarks/captcha_ctc.py CAPTCHAS --stem          only the stem of the image-to-text model

Images, split, augmentation, batches, optimizer, clipping, weight average and precision are those of experiment=captcha;
only the network and its loss differ. The test images are decoded once without and once with the test-time augmentation
of that experiment. Training stops after the given minutes of processor time, which other work on the machine does not
change, and the learning rate decays to zero by then. `--recurrent 2 --width 64` is the CRNN of arXiv 1507.05717 without
its last two convolutions; at half the width and without an LSTM, more steps fit into the same time and the error is
lower. The difference between `--stem` and the image-to-text model is due to its encoder blocks and its decoder.
"""

import argparse
import json
import math
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.data import LinePreprocessing, PairDataset, PairEvalBatches, PairTrainBatches
from vit.data.text.tokenizers import EOS, PAD, Tokenizer
from vit.evaluation import text_metrics
from vit.generation.text_image_tta import augmented_images
from vit.inference.images import autocast
from vit.nn import PooledConvStem
from vit.run.config.composing import compose, resolve
from vit.run.config.overrides import override_text
from vit.run.jobs import build_job
from vit.run.parts.devices import choose_precision, find_devices
from vit.run.resume import read_overrides
from vit.training import WeightAverage, clip_gradients

BLANK = PAD


class Crnn(nn.Module):
    """Images (B,C,H,W), H 32 or twice that -> log-probabilities (columns,B,V) of a token or blank in each column of
    4 pixels, or 8. Images of twice the height pass one more convolution before the others.

    Args:
        width: channels of the first convolution where H is 32.
        recurrent: layers of the LSTM, `hidden` wide in each direction.
    """

    def __init__(
        self, in_chans: int, vocab_size: int, high: bool, width: int = 32, hidden: int = 128, recurrent: int = 0
    ) -> None:
        super().__init__()
        widths, strides = [width, 2 * width, 4 * width, 4 * width], [(2, 2), (2, 2), (2, 1), (2, 1)]
        if high:
            widths, strides = [width // 2, *widths], [(2, 2), *strides]
        layers, before = [], in_chans
        for after, stride in zip(widths, strides, strict=True):
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
            layers += [nn.MaxPool2d(stride)]
            before = after
        self.cnn = nn.Sequential(*layers)
        self.rnn = None
        if recurrent:
            self.rnn = nn.LSTM(2 * before, hidden, num_layers=recurrent, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * (hidden if recurrent else before), vocab_size)

    def forward(self, images: Tensor) -> Tensor:
        x = self.cnn(images.contiguous(memory_format=torch.channels_last))  # as in the stem: channels_first is slower
        x = x.flatten(1, 2).transpose(1, 2)  # (B,columns,2*D)
        if self.rnn is not None:
            x, _ = self.rnn(x)  # (B,columns,2*hidden)
        return self.head(x).float().log_softmax(-1).transpose(0, 1)


class StemAlone(nn.Module):
    """Images (B,C,H,W) -> log-probabilities (columns,B,V) by the stem and one linear layer."""

    def __init__(self, in_chans: int, vocab_size: int, patch_size: tuple[int, int], dim: int) -> None:
        super().__init__()
        self.stem, self.head = PooledConvStem(in_chans, dim, patch_size), nn.Linear(dim, vocab_size)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.stem(images).relu()).float().log_softmax(-1).transpose(0, 1)


def ctc_loss(logits: Tensor, target: Tensor, columns: Tensor) -> Tensor:
    """target (B,T) with bos and eos -> mean CTC loss of the texts"""
    labels = target[:, 1:]
    lengths = ((labels != PAD) & (labels != EOS)).sum(1)
    return F.ctc_loss(logits, labels, columns, lengths, blank=BLANK, zero_infinity=True)


def read(logits: Tensor, columns: Tensor, tokenizer: Tokenizer) -> list[str]:
    """Greedy CTC decoding: the most probable token of each column, repeats merged, blanks removed."""
    best = logits.argmax(-1).transpose(0, 1)  # (B,columns)
    texts = []
    for row, width in zip(best.tolist(), columns.tolist(), strict=True):
        ids = [token for i, token in enumerate(row[:width]) if token != BLANK and (i == 0 or token != row[i - 1])]
        texts.append(tokenizer.decode(ids))
    return texts


def columns_of(batch: dict[str, Tensor], line: LinePreprocessing) -> Tensor:
    """Number of output columns of each image, (B,)."""
    return batch["source_mask"].view(len(batch["index"]), line.rows, -1)[:, 0].sum(1)


def evaluate(
    model: nn.Module, dataset: PairDataset, line: LinePreprocessing, tokenizer: Tokenizer, count: int
) -> dict[str, float]:
    """Metrics of texts decoded from the mean probabilities over `count` augmented copies of each image."""
    texts = {}
    model.eval()
    with torch.inference_mode():
        for batch in PairEvalBatches(dataset, batch_size=64):
            seen = augmented_images(line.normalize(batch["source"]), batch["source_mask"], count)
            likely = torch.stack([model(images) for images in seen]).logsumexp(0)
            found = read(likely, columns_of(batch, line), tokenizer)
            texts |= dict(zip(batch["index"].tolist(), found, strict=True))
    rows = range(len(dataset.split))
    return text_metrics([texts[i] for i in rows], [dataset.split.targets[i] for i in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root")
    parser.add_argument("--minutes", type=float, default=30, help="of processor time")
    parser.add_argument("--width", type=int, default=32, help="channels of the first convolution")
    parser.add_argument("--stem", action="store_true", help="the stem of the image-to-text model instead of the CNN")
    parser.add_argument("--recurrent", type=int, default=0, help="layers of an LSTM after the convolutions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--overrides", nargs="*", default=[], help="of the recipe of experiment=captcha")
    options = parser.parse_args()
    overrides = ["experiment=captcha", override_text("data.root", options.root), f"seed={options.seed}"]
    overrides += options.overrides
    config = read_overrides(resolve(compose(overrides)), overrides).config
    devices = find_devices(config["trainer"])
    job = build_job(config, devices)
    precision = choose_precision(config["precision"], devices.accelerator, job.model)
    line, tokenizer, recipe = job.preprocessing, job.tokenizers["target"], config["recipe"]
    if line.patch_size not in ((32, 4), (64, 8)):
        parser.error(f"data.patch_size={list(line.patch_size)}: the CNN supports [64,8] and [32,4]")
    torch.manual_seed(options.seed)
    if options.stem:
        model = StemAlone(line.channels, tokenizer.vocab_size, line.patch_size, config["model"]["dim"])
    else:
        model = Crnn(line.channels, tokenizer.vocab_size, line.height == 64, options.width, recurrent=options.recurrent)
        model = model.to(memory_format=torch.channels_last)
    optimizer = job.task.optimization.optimizer(model)
    rates = [group["lr"] for group in optimizer.param_groups]
    average = WeightAverage(model, recipe["ema"])
    batches = PairTrainBatches(job.datasets["train"], batch_size=recipe["batch_size"], seed=options.seed)
    start, end, step = time.process_time(), options.minutes * 60, 0
    while time.process_time() - start < end:
        for batch in batches:  # an epoch
            share = min(1.0, (time.process_time() - start) / end)
            factor = factor_at(share, recipe["schedule"]["warmup"])
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            model.train()
            with autocast(torch.device("cpu"), precision):
                logits = model(line.normalize(batch["source"]))
            loss = ctc_loss(logits, batch["target"], columns_of(batch, line))
            loss.backward()
            clip_gradients(model.parameters(), recipe["clip"])
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            average.update(step)
            if share >= 1:
                break
        print(f"{(time.process_time() - start) / 60:.1f} min, step {step}, loss {float(loss.detach()):.3f}", flush=True)
    average.swap_in()
    parameters = sum(p.numel() for p in model.parameters())
    facts = {"minutes": options.minutes, "seed": options.seed, "parameters": parameters, "steps": step}
    test = PairDataset(job.source.splits["test"], line, tokenizer)
    for count in sorted({1, config["task"]["decode"]["tta"]}):
        print(json.dumps(facts | {"tta": count} | evaluate(model, test, line, tokenizer, count)))


def factor_at(share: float, warmup: float) -> float:
    """Factor of the learning rate after a fraction of the time: linear warm-up, then cosine decay."""
    if share < warmup:
        return share / warmup
    return 0.5 * (1 + math.cos(math.pi * (share - warmup) / (1 - warmup)))


if __name__ == "__main__":
    main()
