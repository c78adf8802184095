"""Augmentation steps against torchvision's functions; a sample's augmentation does not depend on its batch."""

import math
import random
from itertools import product

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as tv
from PIL import Image
from scipy import stats
from timm.data import auto_augment
from torchvision.transforms import InterpolationMode

from vit.counters import hash_counters
from vit.data import (
    Augment,
    ColorJitter,
    HorizontalFlip,
    PadCrop,
    RandAugment,
    RandomErasing,
    RandomResizedCrop,
    ThreeAugment,
    TrivialAugment,
    VerticalFlip,
    uniform,
)
from vit.data.augment import image_ops, policies
from vit.data.augment.steps import SLOTS, Draw, noise_in_pixels, noise_in_slices

STEPS = [
    HorizontalFlip(),
    VerticalFlip(),
    PadCrop(4),
    PadCrop(3, reflect=True),
    ColorJitter(),
    RandAugment(2, 9),
    RandAugment(2, 9, std=0.5),
    RandAugment(2, 9, p=0.5),
    RandAugment(2, 27, std=1.5, fill=[124, 116, 104], p=0.5, operations="timm"),
    TrivialAugment(),
    ThreeAugment(),
    RandomErasing(p=0.5),
]


def batch(n=24, channels=3, height=20, width=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, 256, (n, channels, 5, 4), dtype=torch.uint8, generator=generator)
    return coarse.repeat_interleave(height // 5, 2).repeat_interleave(width // 4, 3).contiguous()


@pytest.mark.parametrize("step", STEPS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_sample_does_not_depend_on_its_batch(step, channels):
    images, index, augment = batch(channels=channels), torch.arange(24), Augment([step], seed=5)
    together = augment(images, index, 3)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    assert torch.equal(augment(images[order], index[order], 3), together[order])
    alone = torch.cat([augment(images[i : i + 1], index[i : i + 1], torch.tensor([3])) for i in range(24)])
    assert (alone.int() - together.int()).abs().max() <= 1
    assert together.dtype == torch.uint8 and together.shape == images.shape
    assert not torch.equal(augment(images, index, 4), together)
    assert torch.equal(augment(images, index, 3), together)


def test_half_of_the_samples_are_flipped():
    images, index = batch(400), torch.arange(400)
    for step, dim in ((HorizontalFlip(), -1), (VerticalFlip(), -2)):
        result = Augment([step])(images, index, 0)
        flipped = torch.tensor([torch.equal(r, i.flip(dim)) for r, i in zip(result, images, strict=True)])
        unchanged = torch.tensor([torch.equal(r, i) for r, i in zip(result, images, strict=True)])
        assert (flipped | unchanged).all() and 150 < int(flipped.sum()) < 250


@pytest.mark.parametrize("reflect", [False, True])
def test_pad_crop_equals_numpy_windows(reflect):
    images, pad = batch(64), 3
    result = Augment([PadCrop(pad, reflect=reflect)])(images, torch.arange(64), 0).numpy()
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (pad, pad), (pad, pad)), mode="reflect" if reflect else "constant")
    seen = set()
    for i in range(64):
        windows = [
            (y, x) for y in range(7) for x in range(7) if (padded[i, :, y : y + 20, x : x + 16] == result[i]).all()
        ]
        assert windows
        seen.update(windows)
    assert len(seen) > 30  # of 49 shifts


@pytest.mark.parametrize("name", ["brightness", "saturation", "contrast", "sharpness"])
def test_factors_equal_torchvision(name):
    images, factor = batch(8), torch.tensor([0.0, 0.01, 0.1, 0.7, 1.0, 1.3, 1.9, 100.0])
    expected = torch.stack([getattr(tv, f"adjust_{name}")(i, float(f)) for i, f in zip(images, factor, strict=True)])
    assert (getattr(image_ops, name)(images, factor).int() - expected.int()).abs().max() <= 1


def test_pixel_operations_equal_torchvision():
    images = torch.cat([batch(6), batch(1) // 128 * 50, torch.full((1, 3, 20, 16), 7, dtype=torch.uint8)])
    assert torch.equal(image_ops.equalize(images), torch.stack([tv.equalize(i) for i in images]))
    assert torch.equal(image_ops.autocontrast(images), torch.stack([tv.autocontrast(i) for i in images]))
    dropped = torch.arange(8)
    assert torch.equal(
        image_ops.posterize(images, dropped),
        torch.stack([tv.posterize(i, 8 - int(d)) for i, d in zip(images, dropped, strict=True)]),
    )
    threshold = torch.linspace(0, 255, 8)
    assert torch.equal(
        image_ops.solarize(images, threshold),
        torch.stack([tv.solarize(i, float(t)) for i, t in zip(images, threshold, strict=True)]),
    )
    values = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    for threshold in (*range(256), 0.5, 254.5, 254.99):
        found = image_ops.solarize(values, torch.tensor([threshold]))
        assert torch.equal(found, tv.solarize(values, threshold))
    for threshold in (255.5, 256):  # torchvision refuses numbers above 255
        assert torch.equal(image_ops.solarize(values, torch.tensor([threshold])), values)
    for bits in range(9):
        assert torch.equal(image_ops.posterize(values, torch.tensor([8 - bits])), tv.posterize(values, bits))
    assert (image_ops.gray(images).int() - tv.rgb_to_grayscale(images).int()).abs().max() <= 1


def test_blur_equals_torchvision_away_from_the_edge():
    images, sigma = torch.randint(0, 256, (4, 3, 30, 28), dtype=torch.uint8), torch.tensor([0.1, 0.7, 1.3, 2.0])
    expected = torch.stack([tv.gaussian_blur(i, [13, 13], [float(s)] * 2) for i, s in zip(images, sigma, strict=True)])
    difference = (image_ops.gaussian_blur(images, sigma).int() - expected.int()).abs()
    assert difference[:, :, 6:-6, 6:-6].max() <= 1


def test_three_augment_blurs_with_the_whole_kernel_of_a_large_sigma():
    images = torch.randint(0, 256, (32, 3, 90, 90), dtype=torch.uint8)
    found = Augment([ThreeAugment(sigma=(8, 8))])(images, torch.arange(32), 0)
    drawn = (uniform(0, 0, torch.arange(32), 0) * 3).long()
    blurred = drawn == 2
    expected = torch.stack([tv.gaussian_blur(image, [49, 49], [8.0] * 2) for image in images[blurred]])
    assert 0 < blurred.sum() < 32
    assert (found[blurred].int() - expected.int())[:, :, 24:-24, 24:-24].abs().max() <= 1


@pytest.mark.parametrize("ranges", [policies._NARROW, policies._WIDE], ids=["narrow", "wide"])
@pytest.mark.parametrize("operation", range(1, 6))
@pytest.mark.parametrize("signed", [-0.7, 0.3, 1.0])
def test_geometric_operations_equal_torchvision(ranges, operation, signed):
    image = torch.randint(0, 256, (1, 3, 20, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    chosen = (torch.tensor([operation]), torch.tensor([signed]), (20, 16), ranges)
    if operation in (3, 4):
        found = image_ops.translate(image, policies._offsets(*chosen), 0)
    else:
        found = image_ops.affine(image, policies._matrices(*chosen), 0)
    settings = {"interpolation": InterpolationMode.BILINEAR}
    if operation == 5:
        expected = tv.rotate(image, signed * ranges.degrees, **settings)
    else:
        shear = math.degrees(math.atan(ranges.shear * signed))
        move = [int(ranges.shift(16) * signed), 0] if operation == 3 else [0, int(ranges.shift(20) * signed)]
        expected = tv.affine(
            image,
            0.0,
            move if operation > 2 else [0, 0],
            1.0,
            [shear, 0.0] if operation == 1 else [0.0, shear] if operation == 2 else [0.0, 0.0],
            center=[0, 0],
            **settings,
        )
    assert (found.int() - expected.int()).abs().max() <= 1
    if operation in (1, 2):
        along_one_axis = (image_ops.shear_rows, image_ops.shear_columns)[operation - 1]
        slope = policies._matrices(*chosen)[:, operation - 1, 2 - operation]
        assert (along_one_axis(image, slope, 0).int() - expected.int()).abs().max() <= 1


@pytest.mark.parametrize("shape", [(5, 3, 90, 70), (3, 1, 9, 40), (2, 3, 1, 1)])
@pytest.mark.parametrize("steepest", [0.3, 3.0, 1000.0])
def test_shears_along_one_axis_are_linear_interpolation(shape, steepest):
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    slope, positions = torch.linspace(-steepest, steepest, len(images)), np.arange(shape[3])
    found, transposed = (
        shear(images.transpose(*dims), slope, 77).transpose(*dims).numpy()
        for shear, dims in ((image_ops.shear_rows, (3, 3)), (image_ops.shear_columns, (2, 3)))
    )
    assert np.array_equal(found, transposed)
    for image, channel, row in np.ndindex(shape[:3]):
        padded = np.concatenate([[77], images[image, channel, row].numpy(), [77]])
        moved = positions + slope[image].item() * (row + 0.5)
        exact = np.interp(moved, np.arange(-1, shape[3] + 1), padded, left=77, right=77)
        assert np.abs(found[image, channel, row] - exact).max() < 0.52


@pytest.mark.parametrize("policy", [RandAugment(2, 20, std=0.5), TrivialAugment()])
def test_large_images_are_augmented_as_small_ones(policy, monkeypatch):
    images = torch.randint(0, 256, (56, 3, 90, 84), dtype=torch.uint8, generator=torch.Generator().manual_seed(4))
    found = Augment([policy])(images, torch.arange(56), 0)
    monkeypatch.setattr(policies, "one_by_one", lambda images: False)
    expected = Augment([policy])(images, torch.arange(56), 0)
    changed = (found != expected).flatten(1).any(1)
    assert 0 < changed.sum() < 28 and (found != expected).float().mean() < 0.01


def test_the_fill_colour():
    image = torch.full((1, 3, 20, 16), 77, dtype=torch.uint8)
    matrix = policies._matrices(torch.tensor([5]), torch.tensor([0.7]), (20, 16), policies._WIDE)
    assert torch.equal(image_ops.affine(image, matrix, 77), image)
    assert image_ops.affine(image, matrix, 200)[0, 0, 0, 0] == 200


def test_translation_equals_resampling():
    images = batch(7)
    offset = torch.tensor([[3, -2], [-16, 0], [0, 20], [15, -19], [40, 1], [2, -40], [0, 0]])  # of 16x20 pixels
    matrix = torch.eye(2, 3).repeat(7, 1, 1)
    matrix[:, :, 2] = -offset
    assert torch.equal(image_ops.translate(images, offset, 99), image_ops.affine(images, matrix, 99))


def test_rand_augment_uses_all_operations_equally():
    images = batch(1).expand(2800, -1, -1, -1)
    operation = (uniform(0, 0, torch.arange(2800), 0) * 14).long()
    assert torch.bincount(operation, minlength=14).min() > 150
    result = Augment([RandAugment(1, 9)])(images, torch.arange(2800), 0)
    assert torch.equal(result[operation == 0], images[operation == 0])


def test_rand_augment_applies_each_operation_with_its_probability():
    images, index = batch(1).expand(2000, -1, -1, -1), torch.arange(2000)
    always, sometimes = (Augment([RandAugment(1, 20, p=p)])(images, index, 0) for p in (1.0, 0.25))
    left_out = (sometimes == images).flatten(1).all(1)
    assert torch.equal(sometimes[~left_out], always[~left_out])
    changes = (always != images).flatten(1).any(1)
    assert 0.22 < (~left_out[changes]).float().mean() < 0.28
    assert torch.equal(Augment([RandAugment(2, 20, p=0)])(images, index, 0), images)


def test_the_operations_of_rand_augment_can_be_chosen():
    images = batch()
    inverted = Augment([RandAugment(1, operations=["invert"])])(images, torch.arange(24), 0)
    assert torch.equal(inverted, 255 - images)
    chosen = (uniform(0, 0, torch.arange(24), 0) * 2).long()[:, None, None, None]
    found = Augment([RandAugment(1, operations=["identity", "invert"])])(images, torch.arange(24), 0)
    assert torch.equal(found, torch.where(chosen == 1, 255 - images, images))
    skipped = Augment([RandAugment(2, 30, p=0.0, operations="timm")])(images, torch.arange(24), 0)
    assert torch.equal(skipped, images)


TIMMS = {"autocontrast": "AutoContrast", "equalize": "Equalize", "invert": "Invert", "rotate": "Rotate",
         "posterize": "PosterizeIncreasing", "solarize": "SolarizeIncreasing", "solarize_add": "SolarizeAdd",
         "color": "ColorIncreasing", "contrast": "ContrastIncreasing", "brightness": "BrightnessIncreasing",
         "sharpness": "SharpnessIncreasing", "shear_x": "ShearX", "shear_y": "ShearY",
         "translate_x": "TranslateXRel", "translate_y": "TranslateYRel"}  # the order of timm


@pytest.mark.parametrize("name", TIMMS)
def test_operations_equal_timms_at_every_magnitude(name, monkeypatch):
    """Equal pixels, but a rounding error of one where factors blend; resampled images are compared away from edges."""
    assert list(TIMMS.values()) == auto_augment._RAND_INCREASING_TRANSFORMS
    rows, columns = torch.meshgrid(torch.arange(40), torch.arange(60), indexing="ij")
    smooth = torch.stack([4 * rows + columns, 255 - 3 * rows - columns, 2 * columns + rows]).to(torch.uint8)
    image = smooth if name[:5] in ("rotat", "shear") else batch(1, height=40, width=60)[0]
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    numbers, ranges = policies._operations("timm")
    number = torch.tensor([policies._NAMES.index(name)])
    assert number in numbers
    colour = (124, 116, 104)
    fill = torch.tensor(colour, dtype=torch.uint8).view(1, 3, 1, 1)
    for magnitude, negative in product(range(31), (False, True)):
        monkeypatch.setattr(random, "random", lambda drawn=float(negative): drawn)
        operation = auto_augment.AugmentOp(TIMMS[name], 1.0, magnitude / 3, {
            "img_mean": colour, "interpolation": Image.Resampling.BILINEAR})
        if name == "posterize" and magnitude == 30:
            result = np.zeros((40, 60, 3), np.uint8)  # recent versions of Pillow refuse timm's 0 bits
        else:
            result = np.array(operation(picture))
        expected = torch.from_numpy(result).permute(2, 0, 1).int()
        left = negative != name.startswith("translate")  # timm translates to the left by positive numbers
        sign, strength = torch.tensor([0.0 if left else 0.9]), torch.tensor([magnitude / 30])
        found = policies._apply(image[None], number, sign, strength, ranges, fill, False)[0].int()
        difference = (found - expected).abs()
        if name in ("rotate", "shear_x", "shear_y"):
            inside = (found - fill[0].int()).abs().sum(0) > 0
            assert difference[:, 1:-1, 1:-1].float().mean() < 1.5 and inside.any()
        elif not name.startswith("translate") or magnitude % 10 == 0:  # timm translates by fractions of pixels
            exact = name in ("equalize", "invert", "posterize", "solarize", "solarize_add")
            assert difference.max() <= (0 if exact else 1), magnitude


def test_the_fill_of_policies_is_a_colour_or_its_gray():
    images = torch.full((60, 3, 20, 16), 77, dtype=torch.uint8)
    for step in (RandAugment(1, 30, fill=[124, 116, 104]), TrivialAugment(fill=[124, 116, 104])):
        moved = Augment([step])(images, torch.arange(60), 0).flatten(2)
        colours = {tuple(pixel) for image in moved for pixel in image.T.tolist()}
        assert (124, 116, 104) in colours and (128, 128, 128) not in colours
        gray = Augment([step])(images[:, :1], torch.arange(60), 0)
        assert 117 in gray


def test_erasing_changes_one_rectangle_of_the_given_area():
    images = torch.zeros(200, 3, 32, 32, dtype=torch.uint8)
    result = Augment([RandomErasing(p=0.5)])(images, torch.arange(200), 0)
    changed = (result != 0).any(1)  # (B,H,W)
    erased = changed.any((1, 2))
    assert 70 < int(erased.sum()) < 130
    for mask in changed[erased]:
        rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
        area = int((rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1))
        assert 10 <= area <= 1024 * 0.37
        assert mask.sum() > 0.9 * area  # noise is rarely black in all three channels


@pytest.mark.parametrize(("make", "message"), [
    (lambda: HorizontalFlip(math.nan), "p=nan must be in 0..1"),
    (lambda: VerticalFlip(50), "p=50 must be in 0..1"),
    (lambda: PadCrop(-2), "padding=-2 must be a whole number of at least 0 pixels"),
    (lambda: PadCrop(4, fill=300), "fill=300 must be a whole number in 0..255"),
    (lambda: RandomErasing(1.5), "p=1.5 must be in 0..1"),
    (lambda: RandomErasing(area=(0.5, 0.1)), r"area=\(0.5, 0.1\) must be \[low, high\] with 0 <= low <= high <= 1"),
    (lambda: RandomErasing(ratio=(-1, 2)), r"ratio=\(-1, 2\) must be \[low, high\]"),
    (lambda: TrivialAugment(fill=300), "fill=300 must be one number in 0..255"),
    (lambda: RandAugment(fill=[1, 2]), r"fill=\[1, 2\] must be one number in 0..255, or three"),
    (lambda: RandAugment(operations="tim"), "operations=tim must be torchvision or timm, or a list of different names"),
    (lambda: RandAugment(operations=[]), r"operations=\[\] must be torchvision or timm, or a list of"),
    (lambda: RandAugment(operations=None), "operations=None must be torchvision or timm, or a list of"),
    (lambda: RandAugment(operations=["invert", "invert"]), "must be .*a list of different names"),
    (lambda: RandAugment(operations=["invert", "Invert"]), r"operations=.* names of identity, .* solarize_add"),
    (lambda: RandAugment(std=math.nan), "std=nan must be at least 0"),
    (lambda: RandAugment(p=1.5), "p=1.5 must be in 0..1"),
    (lambda: RandAugment(num_ops=1.5), "num_ops=1.5 must be a whole number in 1..10"),
    (lambda: ColorJitter(math.nan), "brightness=nan, .* must be at least 0"),
    (lambda: ThreeAugment(sigma=1.0), "sigma=1.0 must be"),
    (lambda: ThreeAugment(sigma=(2, 0.1)), r"sigma=\(2, 0.1\) must be"),
    (lambda: ThreeAugment(threshold=400), "threshold=400 must be in 0..255"),
    (lambda: HorizontalFlip("0.5"), "p=0.5 must be in 0..1"),
    (lambda: PadCrop(1.5), "padding=1.5 must be a whole number"),
    (lambda: PadCrop(math.nan), "padding=nan must be a whole number"),
    (lambda: PadCrop(True), "padding=True must be a whole number"),
    (lambda: RandomErasing(area=("0.1", "0.2")), "area=.* must be"),
    (lambda: RandAugment(magnitude=None), "magnitude=None must be in 0..30"),
    (lambda: RandAugment(num_ops=2.0), "num_ops=2.0 must be a whole number in 1..10"),
    (lambda: RandAugment(std="0.5"), "std=0.5 must be at least 0"),
    (lambda: RandAugment(fill=True), "fill=True must be one number in 0..255"),
    (lambda: ColorJitter(None), "brightness=None, .* must be at least 0"),
    (lambda: ThreeAugment(threshold="128"), "threshold=128 must be in 0..255"),
    (lambda: RandomResizedCrop(scale=("0.1", 1)), "scale=.* must be"),
])
def test_options_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="magnitude=31 must be in 0..30"):
        RandAugment(2, 31)
    with pytest.raises(TypeError, match="uint8"):
        Augment([])(torch.zeros(1, 3, 8, 8), torch.arange(1), 0)
    with pytest.raises(ValueError, match="padding 8 must be below the image size 8x8"):
        Augment([PadCrop(8, reflect=True)])(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), torch.arange(1), 0)


@pytest.mark.parametrize("channels", [1, 3])
def test_what_runs_on_a_gpu_has_the_same_pixels(channels):
    """Slices are copied on a CPU, single pixels elsewhere."""
    images = batch(channels=channels)
    offsets = torch.randint(-25, 26, (24, 2), generator=torch.Generator().manual_seed(2))
    by_slices = image_ops.translate_slices(images, offsets, 77)
    assert torch.equal(image_ops.translate_pixels(images, offsets, 77), by_slices)
    boxes = torch.tensor([[1, 0, 3, 5, 7, 11], [2, 19, 15, 1, 1, 12], [9, 0, 0, 20, 16, 13]]).T
    noisy, on_a_gpu = images.clone(), images.clone()
    noise_in_slices(noisy, boxes)
    noise_in_pixels(on_a_gpu, boxes)
    assert torch.equal(on_a_gpu, noisy)
    assert not torch.equal(noisy[9], images[9]) and torch.equal(noisy[3:9], images[3:9])


@pytest.mark.parametrize("side", [20, 100])
def test_steps_overwrite_results_of_others_without_a_difference(side):
    images, index = batch(height=side, width=side), torch.arange(24)
    steps = [RandomErasing(0.9), HorizontalFlip(), RandAugment(2, 9), TrivialAugment(), ThreeAugment(), VerticalFlip()]
    expected, original, samples = images, images.clone(), hash_counters(5, 3, index)
    for number, step in enumerate(steps):
        before = expected.clone()
        changed = step(expected, Draw(samples, number * SLOTS, images.device))
        assert torch.equal(expected, before)
        expected = changed
    assert torch.equal(Augment(steps, seed=5)(images, index, 3), expected)
    assert torch.equal(images, original)


class Passing(torch.nn.Module):
    """A step of another package, which returns its images and stores them."""

    def forward(self, images, draw):
        self.images, self.copy = images, images.clone()
        return images


def test_images_of_another_step_are_not_overwritten():
    images, passing = batch(height=100, width=100), Passing()
    changed = Augment([HorizontalFlip(), passing, RandomErasing(1.0)])(images, torch.arange(24), 0)
    assert torch.equal(passing.images, passing.copy) and not torch.equal(changed, passing.copy)


class Kept(HorizontalFlip):
    """A step of another package that keeps the images before and after its flips."""

    def forward(self, images, draw):
        self.kept = [images, super().forward(images, draw)]
        self.copies = [each.clone() for each in self.kept]
        return self.kept[1]


def test_images_of_a_class_that_is_derived_from_a_step_are_not_overwritten():
    images, kept = batch(height=100, width=100), Kept()
    Augment([RandomErasing(1.0), kept, RandomErasing(1.0)])(images, torch.arange(24), 0)
    assert all(torch.equal(each, copy) for each, copy in zip(kept.kept, kept.copies, strict=True))


def test_noise_differs_between_images_and_pixels():
    boxes = torch.tensor([[0, 0, 0, 30, 30, 4], [1, 0, 0, 30, 30, 5]]).T
    noisy = torch.zeros(2, 3, 30, 30, dtype=torch.uint8)
    noise_in_pixels(noisy, boxes)
    assert (noisy[0] != noisy[1]).float().mean() > 0.98 and noisy.unique().numel() == 256
    expected = uniform(0, 0, torch.tensor(5), torch.arange(2700)).mul(256).to(torch.uint8).view(3, 30, 30)
    assert torch.equal(noisy[1], expected)


def test_each_step_has_its_own_numbers_of_seed_epoch_and_sample():
    images, index = torch.arange(4, dtype=torch.uint8).view(1, 1, 2, 2).repeat(64, 1, 1, 1), torch.arange(100, 164)
    epoch = torch.arange(64) % 5
    found = Augment([HorizontalFlip(0.3), VerticalFlip(0.6)], seed=3)(images, index, epoch)
    wide, tall = uniform(3, epoch, index, 0) < 0.3, uniform(3, epoch, index, 50) < 0.6
    for image, flipped, mirrored, turned in zip(images, found, wide, tall, strict=True):
        dims = [-1] * bool(mirrored) + [-2] * bool(turned)
        assert torch.equal(flipped, image.flip(dims))


def test_a_probability_may_be_0_or_1():
    images = torch.arange(4, dtype=torch.uint8).view(1, 1, 2, 2).repeat(9, 1, 1, 1)
    for step, dim in ((HorizontalFlip, -1), (VerticalFlip, -2)):
        assert torch.equal(Augment([step(0.0)])(images, torch.arange(9), 0), images)
        assert torch.equal(Augment([step(1.0)])(images, torch.arange(9), 0), images.flip(dim))


def test_more_steps_than_random_numbers_are_an_error():
    Augment([HorizontalFlip()] * 20)
    with pytest.raises(ValueError, match="21 augmentation steps are too many; at most 20"):
        Augment([HorizontalFlip()] * 21)


def test_normal_numbers_are_the_quantiles_of_uniform_ones():
    u = torch.arange(200, dtype=torch.float32) / 200
    middle = u.double().numpy() + 2.0**-25  # of the interval of 24 bits
    np.testing.assert_allclose(policies._normal(u).numpy(), stats.norm.ppf(middle), atol=1e-5)
