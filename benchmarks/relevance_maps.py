"""Deletion curves of attention maps: class-specific maps against plain rollout and random order.

    python train.py data.patch_size=2 run_dir=runs/maps
    python benchmarks/relevance_maps.py runs/maps

For each correctly classified test image the patches are removed in the order of the map, those with the highest values
first. The result is the mean probability of the predicted class over the curve; lower is better (arXiv 1806.07421).
Differences are paired, with a bootstrap over images. Grad-CAM needs captum.
"""

import argparse
import json

import numpy as np
import torch

import vit
from vit.cli.data.data_sets import compose_data, evaluation_split
from vit.evaluation.attribution.deletion import deletion_curve
from vit.evaluation.attribution.grad_cam import grad_cam
from vit.evaluation.attribution.integrated_gradients import integrated_gradients
from vit.evaluation.attribution.relevance import class_relevance
from vit.inference import Predictor
from vit.report.attention.recording import image_attention

DRAWS = 2000


def read(predictor: Predictor, limit: int) -> tuple[list, torch.Tensor, torch.Tensor]:
    """Test images, normalized inputs (B,C,H,W), and the predicted classes (B,), of those classified correctly."""
    source, split = evaluation_split(compose_data([], predictor.bundle)["data"], predictor.bundle, None)
    samples = source.splits[split]
    images = [samples.read(i) for i in range(min(limit, len(samples)))]
    pixels = torch.stack([predictor.preprocessing.image(image, "") for image in images])
    inputs = predictor.preprocessing.normalize(pixels)
    with torch.inference_mode():
        predicted = predictor.model(inputs).argmax(-1)
    right = [i for i in range(len(images)) if predicted[i] == samples.labels[i]]
    return [images[i] for i in right], inputs[right].clone(), predicted[right].clone()


def areas(predictor: Predictor, images: list, inputs: torch.Tensor, classes: torch.Tensor) -> dict[str, np.ndarray]:
    """Name of the map -> the mean of the deletion curve of each image."""
    generator = torch.Generator().manual_seed(0)
    rollout = torch.tensor(np.stack([image_attention(predictor, image).pooled_rollout() for image in images]))
    maps = {"random": torch.rand(rollout.shape, generator=generator), "rollout": rollout,
            "gradient rollout": class_relevance(predictor.model, inputs, classes),
            "integrated gradients": integrated_gradients(predictor.model, inputs, classes)}
    try:
        maps["Grad-CAM"] = grad_cam(predictor.model, inputs, classes)
    except ValueError as error:
        print(error)
    return {name: deletion_curve(predictor.model, inputs, classes, each, steps=16).mean(dim=1).numpy()
            for name, each in maps.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--images", type=int, default=500)
    arguments = parser.parse_args()
    predictor = vit.load(arguments.model, "cpu")
    found = areas(predictor, *read(predictor, arguments.images))
    random, rows = np.random.default_rng(0), {}
    for name, values in found.items():
        change = values - found["rollout"]
        drawn = change[random.integers(0, len(change), (DRAWS, len(change)))].mean(axis=1)
        low, high = np.quantile(drawn, [0.025, 0.975])
        rows[name] = {"images": len(values), "area": float(values.mean()), "minus_rollout": float(change.mean()),
                      "interval": [float(low), float(high)]}
        print(f"{name:20} {values.mean():.4f}   minus rollout {change.mean():+.4f} ({low:+.4f} to {high:+.4f})")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
