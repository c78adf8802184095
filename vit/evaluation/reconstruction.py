"""Reconstruction error of a masked autoencoder (arXiv 2111.06377), with the same masks in every evaluation."""

import torch
from torch import Tensor

from vit.data import BadImage, ImageDataset, Preprocessing, Split
from vit.data.images.masked_patches import EVALUATION, patch_noise
from vit.evaluation.classification import readable_batches
from vit.evaluation.progress import Progress
from vit.inference import autocast, best_device
from vit.models.mae import MaskedAutoencoder, masked_error


@torch.inference_mode()
def evaluate_reconstruction(
    model: MaskedAutoencoder,
    preprocessing: Preprocessing,
    split: Split,
    batch_size: int = 64,
    precision: str = "32-true",
    on_bad_sample: str = "error",
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> tuple[dict[str, float], list[BadImage]]:
    """loss (mean squared error of the masked patches, averaged over a split), and the images that cannot be read.

    Raises:
        BadImage: an image cannot be read and `on_bad_sample` is "error", or no image can be read.
        ValueError: an unknown `precision`.
    """
    dataset = ImageDataset(split, preprocessing, cache=False, on_bad_sample=on_bad_sample)
    device = best_device(device)
    model = model.to(device).eval()
    unreadable: list[BadImage] = []
    total, images = 0.0, 0
    for pixels, _, rows in readable_batches(dataset, batch_size, unreadable):
        errors = reconstruction_errors(model, preprocessing, pixels.to(device), rows.to(device), precision)
        total, images = total + float(errors.cpu().double().sum()), images + len(errors)
        if progress:
            progress(len(errors))
    if not images:
        raise unreadable[0]
    return {"loss": total / images}, unreadable


def reconstruction_errors(
    model: MaskedAutoencoder, preprocessing: Preprocessing, images: Tensor, index: Tensor, precision: str
) -> Tensor:
    """uint8 (B,C,H,W), index (B,) in the split -> mean squared error of the masked patches (B,)"""
    images = preprocessing.normalize(images)
    rows, columns = model.config.grid
    with autocast(images.device, precision):
        pixels, mask = model(images, patch_noise(EVALUATION, 0, index, rows * columns))
    return masked_error(pixels, model.targets(images), mask)
