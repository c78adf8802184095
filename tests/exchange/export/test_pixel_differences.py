"""Measured differences between two preprocessings: libraries whose pixels differ by known numbers."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from vit.data import Preprocessing
from vit.exchange.export.pixel_differences import ProbabilityShift, _compared, synthetic_images

OURS = Preprocessing((24, 16), "squash", 1.0, "bilinear", (0.2, 0.4, 0.6), (0.3, 0.2, 0.25))


def prepared(image):
    return OURS.normalize(OURS.image(image)[None])


def levels(count, channel=1):
    """The normalized difference of a channel by a number of levels of 255."""
    change = torch.zeros(1, 3, 1, 1)
    change[0, channel] = count / 255 / OURS.std[channel]
    return change


def test_synthetic_images_have_many_shapes_and_some_are_grey():
    images = synthetic_images((24, 16))
    assert len(images) == 38 and [image.mode for image in images] == (["RGB"] * 3 + ["L"]) * 9 + ["RGB"] * 2
    shapes = [(image.height, image.width) for image in images]
    assert shapes[1:3] == [(31, 38), (46, 31)]  # 1.3 by 1.39 and 1.48 by 1.3 times 24, and 5 or 10 pixels more
    assert all((width > height) == number % 2 for number, (height, width) in enumerate(shapes[1:32], start=1))
    assert {max(shape) % 4 for shape in shapes[:32]} == {0, 1, 2, 3}
    assert min(map(min, shapes)) < 16 and max(map(max, shapes)) > 4 * 24
    again = synthetic_images((24, 16))
    assert all(one.tobytes() == other.tobytes() for one, other in zip(images, again, strict=True))
    assert all(np.asarray(image).std() > 20 for image in images)


@pytest.mark.parametrize(("difference", "found"), [
    (0, ""),
    (-0.4, ""),
    (0.6, "pixels of 38 of 38 synthetic images differ, by up to 1 of 255 levels"),
    (-3.0, "pixels of 38 of 38 synthetic images differ, by up to 3 of 255 levels"),
])
def test_differences_are_counted_in_levels(difference, found):
    for channel in range(3):
        assert _compared(OURS, lambda image, c=channel: prepared(image) + levels(difference, c), None) == found


def test_only_images_that_differ_are_counted_and_the_largest_ones_move_probabilities():
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
    large = synthetic_images(OURS.size)[30].size

    def library(image):
        assert image.mode == "RGB"
        wide = image.width > image.height
        return prepared(image) + levels(9 if image.size == large else 2) * wide

    found = _compared(OURS, library, ProbabilityShift(model))
    wide = sum(image.width > image.height for image in synthetic_images(OURS.size))
    assert found.startswith(f"pixels of {wide} of 38 synthetic images differ, by up to ")
    assert 0 < wide < 38 and f"by up to {9 if large[0] > large[1] else 2} of" in found
    weight = model[2].weight.detach()[:, 1] * levels(9 if large[0] > large[1] else 2)[0, 1]
    largest = math.tanh(2 * (weight.max() - weight.min()) / 4)
    assert found.endswith(f", which moves probabilities by up to {largest:.2g}")


def test_other_shapes_and_errors_are_named():
    assert _compared(OURS, lambda image: torch.zeros(1, 3, 8, 9), None) == "its images are (8, 9), these (24, 16)"

    def refuse(image):
        raise TypeError("no grey images")

    first = synthetic_images(OURS.size)[0]
    expected = f"it fails on a synthetic image of {first.width}x{first.height} (TypeError: no grey images)"
    assert _compared(OURS, refuse, None) == expected


@pytest.mark.parametrize("several", [False, True])
def test_no_probability_moves_by_more_than_the_bound(several):
    """The bound without its margin, tanh(d / 4), is reached by an undecided image."""
    generator = torch.Generator().manual_seed(0)
    change = torch.randn(5, dtype=torch.float64, generator=generator)
    model = nn.Flatten()  # whose outputs are the pixels
    start = torch.randn(2000, 5, dtype=torch.float64, generator=generator) * 2
    probabilities = torch.sigmoid if several else lambda logits: logits.softmax(-1)
    bound = ProbabilityShift(model, several).between(start[:1, :, None, None], (start[:1] + change)[:, :, None, None])
    moved = (probabilities(start + change) - probabilities(start)).abs().max().item()
    apart = change.abs().max() if several else change.max() - change.min()
    undecided = torch.sigmoid(apart / 2) - torch.sigmoid(-apart / 2)  # two classes, or one label
    assert moved <= undecided + 1e-12 and bound == pytest.approx(math.tanh(2 * math.atanh(undecided.item())))
    assert moved < bound
