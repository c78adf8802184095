"""The difference between a model's preprocessing and that of timm and transformers for the folder it is saved as."""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from vit.data import Preprocessing
from vit.exchange.preprocessing import to_transformers

Prepare = Callable[[Image.Image], Tensor]  # an image as another library prepares it -> (1,C,H,W)

# (height, width) as parts of the model's input: landscape and portrait, whose crop leaves every remainder when it is
# divided by 4, narrow ones, and images smaller than the crop
SHAPES = tuple((1.3, 1.3 + 0.09 * i) if i % 2 else (1.3 + 0.09 * i, 1.3) for i in range(32))
ODD_SHAPES = ((0.6, 0.8), (0.8, 0.6), (0.3, 1.1), (4.1, 1.2), (1.2, 4.1), (3.3, 2.2))
MORE_PIXELS = 5  # of the longer side from one image to the next, so that remainders differ for every input size
GREY = 4  # every fourth image is grey
BLOCKS = (6, 12, 24)  # blocks along a side: 6 in the first image, 12 in the second, and so on
MEASURED = 12  # images with the largest pixel differences, for which the model's outputs are computed
MARGIN = 2  # factor on the measured change of the logits, since photos may differ more than these images
SAME = 0.5  # levels of 255 up to which pixels count as equal


@dataclass(frozen=True)
class ProbabilityShift:
    """The effect of pixel differences on a model's probabilities.

    `multi_label`: classes are independent of each other.
    """

    model: nn.Module
    multi_label: bool = False

    @torch.inference_mode()
    def between(self, ours: Tensor, others: Tensor) -> float:
        """Upper bound of the change of a probability between two versions of an image, (1,C,H,W) each.

        It is computed from the change of the logits for an undecided image, because most models are certain of a
        synthetic one: a logit difference of d between classes moves a probability by at most tanh(d / 4).
        """
        change = self.model.eval()(others) - self.model(ours)
        logits = float(change.abs().max() if self.multi_label else change.max() - change.min())
        return math.tanh(MARGIN * logits / 4)


def transformers_difference(preprocessing: Preprocessing, folder: Path, shift: ProbabilityShift | None) -> str:
    """A sentence on how `pipeline("image-classification")` prepares images differently; "" if it does not."""
    if find_spec("transformers") is None:
        return "transformers is not installed, so its outputs and preprocessing were not compared with this model's"
    auto = importlib.import_module("transformers").AutoImageProcessor
    gap = to_transformers(preprocessing)[1]
    if preprocessing.mode != "RGB" or preprocessing.resize == "none":
        return f"transformers prepares images differently: {gap}"
    found = _compared(preprocessing, _processor(auto.from_pretrained(folder)), shift)
    if not found and not gap:
        return ""
    exact = not _compared(preprocessing, _processor(auto.from_pretrained(folder, backend="pil")), None)
    other = ('image_processor=AutoImageProcessor.from_pretrained(FOLDER, backend="pil"), passed to the pipeline, '
             "computes the same pixels") if exact else ""
    return f"transformers prepares images differently: {'; '.join(each for each in (gap, found, other) if each)}"


def timm_difference(preprocessing: Preprocessing, folder: Path, shift: ProbabilityShift | None) -> str:
    """A sentence on how `create_transform` of the folder's data config prepares images differently; or ""."""
    if find_spec("timm") is None:
        return "timm is not installed, so its outputs and preprocessing were not compared with this model's"
    if preprocessing.resize == "none":  # images of the size that timm resizes to
        return ""
    import timm

    config = timm.data.resolve_model_data_config(timm.create_model(f"local-dir:{folder}"))
    transform = timm.data.create_transform(**config, is_training=False)
    found = _compared(preprocessing, lambda image: transform(image)[None], shift)
    return f"timm, and transformers by way of timm, prepare images differently: {found}" if found else ""


def _processor(processor: Callable) -> Prepare:
    return lambda image: processor(image, return_tensors="pt")["pixel_values"]


def _compared(preprocessing: Preprocessing, prepare: Prepare, shift: ProbabilityShift | None) -> str:
    """The measured difference between the preprocessing of a library and ours; "" if there is none."""
    scale, differing = torch.tensor(preprocessing.std).view(-1, 1, 1) * 255, []
    images = synthetic_images(preprocessing.size)
    for image in images:
        ours = preprocessing.normalize(preprocessing.image(image)[None])
        try:
            others = prepare(image.convert(preprocessing.mode))
        except Exception as error:
            return f"it fails on a synthetic image of {image.width}x{image.height} ({type(error).__name__}: {error})"
        if ours.shape != others.shape:
            return f"its images are {tuple(others.shape[2:])}, these {tuple(ours.shape[2:])}"
        levels = ((ours - others).abs() * scale).max().item()
        if levels > SAME:
            differing.append((levels, ours, others))
    if not differing:
        return ""
    differing.sort(key=lambda each: -each[0])
    found = (f"pixels of {len(differing)} of {len(images)} synthetic images differ, by up to {differing[0][0]:.0f} of "
             "255 levels")
    if shift is None:
        return found
    largest = max(shift.between(ours, others) for _, ours, others in differing[:MEASURED])
    return f"{found}, which moves probabilities by up to {largest:.2g}"


def synthetic_images(size: tuple[int, int]) -> list[Image.Image]:
    """Images of many aspect ratios, some of them grey."""
    edge, images = max(size), []
    for number, (height, width) in enumerate((*SHAPES, *ODD_SHAPES)):
        more = MORE_PIXELS * number
        rows, columns = (round(part * edge) + (more if part == max(height, width) else 0) for part in (height, width))
        image = _synthetic(max(1, rows), max(1, columns), number)
        images.append(image.convert("L") if number % GREY == GREY - 1 else image)
    return images


def _synthetic(height: int, width: int, seed: int) -> Image.Image:
    """Blocks of random colours with hard edges, which react most to a moved crop, and some fine noise."""
    generator = torch.Generator().manual_seed(seed)
    side = BLOCKS[seed % len(BLOCKS)]
    blocks = torch.rand(1, 3, side, side, generator=generator)
    blocks = torch.nn.functional.interpolate(blocks, (height, width), mode="nearest")[0]
    noise = torch.rand(3, height, width, generator=generator)
    return Image.fromarray(((0.8 * blocks + 0.2 * noise) * 255).byte().permute(1, 2, 0).numpy())
