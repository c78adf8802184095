"""RandomAffine against torchvision for single amounts and against its formula for all amounts together; RandomElastic
and RandomStrokeWidth against torchvision and Pillow.
"""

import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as tv
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2.functional import elastic

from vit.data import (
    Augment,
    RandomAffine,
    RandomChannelPermutation,
    RandomElastic,
    RandomLineAffine,
    RandomStrokeWidth,
    uniform,
)
from vit.data.augment.distortions import ink_box

SLOTS = ("turn", "across", "down", "shear", "right", "below")


def images(n=3, height=14, width=18):
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (n, 3, height, width), np.uint8))


class Fixed:
    """A replacement of `Draw` whose numbers are a function of the slots."""

    def __init__(self, numbers):
        self.numbers = self.on_host = numbers

    def __call__(self, slots):
        return self.numbers(slots)


def drawn(n=3, **amounts):
    """Draws with these amounts in -1..1 for every image, and 0 for the others."""
    values = torch.tensor([(amounts.get(name, 0.0) + 1) / 2 for name in SLOTS])
    return Fixed(lambda slots: values[slots].expand(*[-1] * (isinstance(slots, torch.Tensor)), n))


@pytest.mark.parametrize(
    ("step", "amounts", "angle", "translate", "scale", "shear"),
    [
        (RandomAffine(30, 0, 0, 0), {"turn": 0.5}, -15, (0, 0), 1, (0, 0)),
        (RandomAffine(30, 0, 0, 0), {"turn": -1}, 30, (0, 0), 1, (0, 0)),
        (RandomAffine(0, 0.2, 0, 0), {"across": 0.5, "down": 0.5}, 0, (0, 0), math.exp(-0.1), (0, 0)),
        (RandomAffine(0, 0, 0, 0.5), {"right": 2 / 9, "below": -2 / 7}, 0, (-2, 2), 1, (0, 0)),
        (RandomAffine(0, 0, 20, 0), {"shear": 0.5}, 0, (0, 0), 1, (10, 0)),
        (RandomAffine(20, 0.2, 0, 0), {"turn": 1, "across": -1, "down": -1}, -20, (0, 0), math.exp(0.2), (0, 0)),
    ],
)
def test_single_amounts_equal_torchvision(step, amounts, angle, translate, scale, shear):
    before = images()
    expected = tv.affine(before.float(), angle, list(translate), scale, list(shear), InterpolationMode.BILINEAR)
    after = step(before, drawn(**amounts))
    torch.testing.assert_close(after.float(), expected, rtol=0, atol=1)


def test_all_amounts_together_equal_the_formula():
    """Computes each output pixel from the source position of its centre and the four pixels around it."""
    step = RandomAffine(degrees=25, scale=0.3, shear=15, shift=0.2, fill=40)
    amounts = dict(zip(SLOTS, (0.7, -0.4, 0.9, -0.6, 0.5, -0.8), strict=True))
    before = images(1, 9, 7)
    after = step(before, drawn(1, **amounts))[0, 0].numpy()
    angle, slant = math.radians(25) * 0.7, math.tan(math.radians(15) * -0.6)
    sx, sy = math.exp(0.3 * -0.4), math.exp(0.3 * 0.9)
    pixels = np.pad(before[0, 0].numpy().astype(float), 50, constant_values=40)
    for row in range(9):
        for column in range(7):
            x, y = column + 0.5 - 3.5, row + 0.5 - 4.5  # from the centre
            source_x = math.cos(angle) * sx * x + (slant - math.sin(angle) * sy) * y + 3.5 + 0.2 * 7 * 0.5 - 0.5
            source_y = math.sin(angle) * sx * x + math.cos(angle) * sy * y + 4.5 + 0.2 * 9 * -0.8 - 0.5
            left, top = math.floor(source_x), math.floor(source_y)
            u, v = source_x - left, source_y - top
            around = pixels[top + 50 : top + 52, left + 50 : left + 52]
            expected = np.array([1 - v, v]) @ around @ np.array([1 - u, u])
            assert abs(after[row, column] - round(expected)) <= 1


def test_the_fill_colour():
    colour, far = (200, 100, 50), drawn(right=1)
    step = RandomAffine(0, 0, 0, 2, fill=colour)  # twice the width to the side: nothing of the image is left
    assert (step(images(), far) == torch.tensor(colour).view(1, 3, 1, 1)).all()
    gray = Image.new("RGB", (1, 1), colour).convert("L").getpixel((0, 0))
    assert (step(images()[:, :1], far) == gray).all()
    white = torch.full_like(images(), 255)
    assert torch.equal(RandomElastic(fill=255)(white, lambda slot: torch.tensor([0.1, 0.5, 0.9])), white)
    assert (RandomAffine(0, 0, 0, 2, fill=255)(images()[:, :1], far) == 255).all()
    with pytest.raises(ValueError, match=r"fill=\(1, 2\) must be one number in 0..255, or three"):
        RandomAffine(fill=(1, 2))


@pytest.mark.parametrize("fill", [3.5, None, (1.5, 2, 3), "abc", 256])
def test_an_invalid_fill_is_a_value_error(fill):
    with pytest.raises(ValueError, match="must be one number in 0..255, or three"):
        RandomAffine(fill=fill)


def test_zero_amounts_change_nothing():
    before = images()
    assert torch.equal(RandomAffine(0, 0, 0, 0)(before, drawn()), before)


@pytest.mark.parametrize("step", [RandomAffine, RandomElastic, RandomLineAffine, RandomStrokeWidth,
                                  RandomChannelPermutation])
def test_a_sample_does_not_depend_on_its_batch(step):
    before, index = images(8), torch.arange(100, 108)
    step = Augment([step()], seed=3)
    together = step(before, index, 2)
    for i in range(8):
        assert torch.equal(step(before[i : i + 1], index[i : i + 1], 2), together[i : i + 1])
    assert not torch.equal(step(before, index, 3), together)


def test_amounts_are_uniform_in_their_range():
    index = torch.arange(4000)
    affine = RandomAffine(degrees=10, scale=0, shear=0, shift=0.1)
    matrices = affine.matrices(Fixed(lambda slots: uniform(0, 0, index, slots)), 10, 20)
    angles = torch.rad2deg(torch.asin(matrices[:, 1, 0]))
    assert -10 <= angles.min() < -9.9 and 9.9 < angles.max() <= 10 and abs(angles.mean()) < 0.3
    assert torch.histc(angles, 4).min() > 850


def test_negative_amounts_are_refused():
    with pytest.raises(ValueError, match=r"degrees=-1.* must be at least 0"):
        RandomAffine(degrees=-1)


def test_elastic_equals_torchvision_for_the_same_displacement():
    step, before = RandomElastic(amount=0.3, cell=5), images(1, 14, 18)
    draw = lambda slot: torch.tensor([0.37])  # noqa: E731
    field = step.field(draw, 14, 18)
    shares = torch.stack([field[:, 0] * (2 / 18), field[:, 1] * (2 / 14)], dim=-1)  # theirs: half sides
    expected = elastic(before.float(), shares, InterpolationMode.BILINEAR)
    torch.testing.assert_close(step(before, draw).float(), expected, rtol=0, atol=1)
    assert (step(before, draw).float() - before.float()).abs().mean() > 20


def test_nodes_move_within_the_amount_with_linear_interpolation_between_them():
    index = torch.arange(500)
    step = RandomElastic(amount=0.25, cell=8)
    field = step.field(lambda slot: uniform(0, 0, index, slot), 16, 30)  # (500,2,16,30)
    nodes = field[:, :, ::8, ::8]
    assert 1.95 < nodes.abs().max() <= 2 and abs(nodes.mean()) < 0.05  # 0.25 * 8 pixels
    assert torch.histc(nodes, 4).min() > 0.23 * nodes.numel()  # of a quarter each, less four deviations
    torch.testing.assert_close(field[:, :, 4, 4], nodes[:, :, :2, :2].mean((2, 3)))
    torch.testing.assert_close(field[:, :, 8, 10], 0.75 * nodes[:, :, 1, 1] + 0.25 * nodes[:, :, 1, 2])


@pytest.mark.parametrize(("drawn", "filtered"), [(1.0, ImageFilter.MinFilter(3)), (0.0, ImageFilter.MaxFilter(3))])
def test_extreme_stroke_widths_equal_the_filters_of_pillow(drawn, filtered):
    before = images(2, 9, 11)
    after = RandomStrokeWidth(thicker=1, thinner=1)(before, lambda slot: torch.full((2,), drawn))
    for one, two in zip(before, after, strict=True):
        expected = np.asarray(Image.fromarray(one.permute(1, 2, 0).numpy()).filter(filtered))
        assert np.array_equal(two.permute(1, 2, 0).numpy(), expected)
    half = RandomStrokeWidth(thicker=0.5, thinner=0.5)(before, lambda slot: torch.full((2,), drawn))
    assert (half.float() - (before.float() + after.float()) / 2).abs().max() < 1  # rounded down
    assert torch.equal(RandomStrokeWidth()(before, lambda slot: torch.full((2,), 0.5)), before)


def test_channels_are_permuted_in_every_order():
    before, index = images(1).expand(600, -1, -1, -1), torch.arange(600)
    after = Augment([RandomChannelPermutation()])(before, index, 0)
    orders = [tuple((one[:, None] == before[0]).flatten(2).all(2).nonzero()[:, 1].tolist()) for one in after]
    assert sorted(set(orders)) == sorted(permutations(range(3)))
    assert min(Counter(orders).values()) > 60
    assert torch.equal(RandomChannelPermutation()(before[:, :1], lambda slot: torch.rand(1, 600)), before[:, :1])


@pytest.mark.parametrize(
    ("step", "options", "message"),
    [
        (RandomElastic, {"amount": 0.5}, r"amount=0.5 must be at least 0 and below 0.5"),
        (RandomElastic, {"cell": 1}, r"cell=1 must be a whole number of at least 2 pixels"),
        (RandomElastic, {"cell": math.nan}, r"cell=nan must be a whole number of at least 2 pixels"),
        (RandomElastic, {"amount": "0.1"}, r"amount=0.1 must be at least 0 and below 0.5"),
        (RandomAffine, {"degrees": None}, r"degrees=None, .* must be at least 0"),
        (RandomElastic, {"fill": True}, r"fill=True must be one number in 0..255, or three"),
        (RandomStrokeWidth, {"thinner": "1"}, r"must be weights in 0..1"),
        (RandomElastic, {"fill": 256}, r"fill=256 must be one number in 0..255, or three"),
        (RandomStrokeWidth, {"thinner": 1.5}, r"thicker=0.8 and thinner=1.5 must be weights in 0..1"),
    ],
)
def test_invalid_options_are_refused(step, options, message):
    with pytest.raises(ValueError, match=message):
        step(**options)


def printed_line(characters, paper=255, margin=2):
    """A line of 32 pixels in height, (1,1,32,W), whose last character is a filled block of 12x16 pixels."""
    font = ImageFont.load_default(22)
    text = "old print in long lines, with endings to be read "[:characters] * (characters // 49 + 1)
    start = margin + math.ceil(font.getlength(text[:characters]))
    image = Image.new("L", (start + 12 + margin, 32), paper)
    pencil = ImageDraw.Draw(image)
    pencil.text((margin, 2), text[:characters], fill=30, font=font)
    pencil.rectangle((start, 8, start + 11, 23), fill=30)
    return torch.from_numpy(np.array(image))[None, None]


@pytest.mark.parametrize("characters", [3, 12, 40, 90])
@pytest.mark.parametrize(("paper", "strong"), [(255, False), (255, True), (190, False)])
def test_the_last_character_of_a_line_is_never_cut_off(characters, paper, strong):
    line = printed_line(characters, paper).expand(300, -1, -1, -1)
    amounts = {"degrees": 10, "scale": 0.3, "shear": 15, "shift": 0.5} if strong else {}
    step = Augment([RandomLineAffine(**amounts, fill=paper)], seed=1)
    after = step(line, torch.arange(300), 0)
    total, before = ((paper - each.float()).clamp(min=0).sum((1, 2, 3)) for each in (after, line))
    left, top, right, bottom = ink_box(after).T
    assert (left >= 0).all() and (right <= line.shape[3]).all() and (bottom - top > (8 if strong else 14)).all()
    assert (total > (0.25 if strong else 0.6) * before).all()
    assert (block_of(after) > (0.25 if strong else 0.6) * 12 * 16).all()  # scaled, but whole
    if characters == 90:  # the amounts of the former recipe
        cut = block_of(Augment([RandomAffine(2, 0.1, 5, 0.03, fill=paper)], seed=1)(line, torch.arange(300), 0))
        assert (cut < 0.5 * 12 * 16).float().mean() > 0.2


def block_of(images):
    """Pixels (B,) of the filled block, by its dark squares of 5x5 pixels, which no letter has."""
    dark = torch.nn.functional.unfold((images < 100).float(), (5, 5)).mean(1) > 0.99
    return dark.sum(1) * (12 * 16) / ((12 - 4) * (16 - 4))


def test_line_augmentation_equals_the_formula_of_its_amounts_away_from_the_borders():
    """A point in the middle of a small box of ink, far from the borders."""
    step = RandomLineAffine(degrees=4, scale=0.2, shear=10, shift=0.3)
    amounts = dict(zip(SLOTS, (0.7, -0.4, 0.9, -0.6, 0.5, -0.8), strict=True))
    box = torch.tensor([[40.0, 20, 48, 26]])
    (matrix,) = step.matrices_within(drawn(1, **amounts), box, 60, 100).double()
    angle, slant = math.radians(4) * 0.7, math.tan(math.radians(10) * -0.6)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    forward = turn @ np.array([[1, slant], [0, 1]]) @ np.diag([math.exp(0.2 * -0.4), math.exp(0.2 * 0.9)])
    for corner in ((40, 20), (48, 20), (40, 26), (48, 26)):
        moved = forward @ (np.array(corner) - (44, 23)) + (44 + 0.3 * 60 * 0.5, 23 - 0.3 * 60 * 0.8 + 0)
        moved[1] += max(0, -0) + max(0.0, (np.abs(forward) @ (4, 3))[1] - (23 - 0.3 * 60 * 0.8))
        np.testing.assert_allclose(matrix.numpy() @ (*moved, 1), corner, atol=1e-3)


def test_the_box_of_the_ink():
    page = torch.full((3, 1, 20, 30), 240, dtype=torch.uint8)
    page[0, :, 5:9, 7:20] = 10
    page[1] = 12
    page[1, :, 3:4, 29:] = 200  # bright on dark
    page[2] += (torch.arange(30) % 2).to(torch.uint8)[None, None]  # nothing but noise
    assert ink_box(page).tolist() == [[7, 5, 20, 9], [29, 3, 30, 4], [1, 0, 30, 20]]
    assert ink_box(page[:1].expand(-1, 3, -1, -1)).tolist() == [[7, 5, 20, 9]]
    blank = torch.zeros(1, 1, 4, 5, dtype=torch.uint8)
    assert ink_box(blank).tolist() == [[0, 0, 5, 4]]
    with pytest.raises(ValueError, match=r"shift=-1 must be at least 0"):
        RandomLineAffine(shift=-1)
