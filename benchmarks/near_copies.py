"""Recall of planted near copies and false pairs per 1,000 images of `vit audit --near-copies`, and its cost.

    VIT_TEST_DATA=DATA python benchmarks/near_copies.py [--images 5000] [--scale 20000] [--harder] [--model MODEL]

300 copies (smaller by 10 to 50 %, JPEG of quality 40, crop of 90 % of each side, mirror, brightness of 70 or 130 %; 60
each) are added to clothing_small and to a part of cifar10's test images. Every other pair counts as false, real copies
in the data included. --harder plants copies that the descriptors are not made for: crop of 70 % of each side, rotation
by 10 degrees, changed hue and saturation; 100 each. --model adds the pairs of `vit audit --model`, and reports how many
unplanted pairs the pixels alone do not find.
"""

import argparse
import io
import json
import os
import resource
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance

from vit.data import Preprocessing, cifar10, folder
from vit.data.quality.feature_copies import find_feature_pairs
from vit.data.quality.near_copies import find_pairs, thumbnail
from vit.exchange import open_model
from vit.inference.features import Featurizer

KINDS = ("smaller", "JPEG 40", "crop 90 %", "mirror", "brightness")
HARDER = ("crop 70 %", "rotation 10", "colour")
COPIES = 300


def images(source, limit=None, splits=None):
    preprocessing = Preprocessing((64, 64), mean=[0.5] * 3, std=[0.5] * 3)
    positions = [(split, i) for key, split in source.splits.items() if splits is None or key in splits
              for i in range(len(split))][:limit]
    return [preprocessing.decode(split.read(i), split.names[i]) for split, i in positions]


def planted(image, kind, rng):
    width, height = image.size
    if kind == 0:
        factor = rng.uniform(0.5, 0.9)
        return image.resize((max(8, int(width * factor)), max(8, int(height * factor))), Image.Resampling.BICUBIC)
    if kind == 1:
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=40)
        return Image.open(stream).convert("RGB")
    if kind == 2:
        w, h = round(0.9 * width), round(0.9 * height)
        x, y = int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1))
        return image.crop((x, y, x + w, y + h))
    if kind == 3:
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return ImageEnhance.Brightness(image).enhance(float(rng.choice([0.7, 1.3])))


def planted_harder(image, kind, rng):
    width, height = image.size
    if kind == 0:
        w, h = round(0.7 * width), round(0.7 * height)
        x, y = int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1))
        return image.crop((x, y, x + w, y + h))
    if kind == 1:
        return image.rotate(float(rng.choice([-10, 10])), Image.Resampling.BICUBIC)
    hue, saturation, value = image.convert("HSV").split()
    shifted = hue.point(lambda each: (each + 40) % 256)
    return Image.merge("HSV", (shifted, saturation.point(lambda each: each * 6 // 10), value)).convert("RGB")


def model_features(model, images):
    """The features of a model for PIL images, as of `vit audit --model`."""
    bundle = open_model(model, features_only=True)
    featurizer = Featurizer(bundle.model, bundle.preprocessing, torch.device("cpu"), "32-true")
    batches = (images[start : start + 64] for start in range(0, len(images), 64))
    return torch.cat([featurizer.of_images(torch.stack([bundle.preprocessing.image(image, "") for image in batch]))
                      for batch in batches]).numpy()


def measure(name, originals, seed=0, kinds=KINDS, plant=planted, model=None):
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(originals), COPIES, replace=False)
    copies = [plant(originals[c], number % len(kinds), rng) for number, c in enumerate(chosen)]
    pixels = np.stack([thumbnail(image) for image in (*originals, *copies)])
    expected = {(int(c), len(originals) + number): number % len(kinds) for number, c in enumerate(chosen)}
    begun = time.process_time()
    found = by_pixels = {(i, j) for i, j, _ in find_pairs(pixels)}
    if model is not None:
        pairs = find_feature_pairs(model_features(model, [*originals, *copies]), pixels)
        found = found.union(*({(i, j) for i, j, _ in each} for each in pairs.values()))
    seconds = time.process_time() - begun
    hits = [kind for pair, kind in expected.items() if pair in found]
    return {"data": name, "images": len(pixels), "recall": len(hits) / COPIES,
            "recall_by_kind": {kind: hits.count(k) / (COPIES // len(kinds)) for k, kind in enumerate(kinds)},
            "false_pairs": len(found - set(expected)), "false_pairs_of_model": len(found - by_pixels - set(expected)),
            "false_pairs_per_1000_images": 1000 * len(found - set(expected)) / len(pixels),
            "cpu_seconds": round(seconds, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5000, help="of cifar10's test images")
    parser.add_argument("--scale", type=int, default=0, help="also time so many of cifar10's training images")
    parser.add_argument("--harder", action="store_true", help="plant copies that change more")
    parser.add_argument("--model", help="also compare the features of this model")
    options = parser.parse_args()
    planting = {"kinds": HARDER, "plant": planted_harder} if options.harder else {}
    planting["model"] = options.model
    data = Path(os.environ["VIT_TEST_DATA"])
    cifar = cifar10(data / "cifar10")
    rows = [measure("clothing_small", images(folder(data / "clothing_small")), **planting),
            measure("cifar10", images(cifar, options.images, ("test",)), **planting)]
    if options.scale:
        pixels = np.stack([thumbnail(image) for image in images(cifar, options.scale, ("train",))])
        begun = time.process_time()
        count = len(find_pairs(pixels))
        rows.append({"data": "cifar10 train", "images": len(pixels), "pairs": count,
                     "cpu_seconds": round(time.process_time() - begun, 1),
                     "peak_memory_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2)})
    for row in rows:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
