"""Images that keep their aspect ratio: their grids, their pixels, their crops and their augmentation."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.naflex_transforms import get_image_size_for_seq

from vit.data import (
    Augment,
    HorizontalFlip,
    ImageDataset,
    PackedAugment,
    PackedImageDataset,
    PackedPreprocessing,
    Preprocessing,
    RandAugment,
    RandomErasing,
    RandomPatches,
    RandomResizedCrop,
    Split,
)
from vit.data.images.packed import nearest_grid
from vit.packed_images import PackedImages

PATCH = (8, 8)
SIZES = ((40, 40), (30, 90), (100, 50), (21, 22), (64, 64), (33, 66))  # height, width


def pictures(sizes=SIZES) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]


def split(folder, sizes=SIZES) -> Split:
    names = []
    for i, pixels in enumerate(pictures(sizes)):
        names.append(str(folder / f"{i}.png"))
        Image.fromarray(pixels).save(names[-1])
    return Split(np.arange(len(names)), names, lambda i: open(names[i], "rb").read())


def packed(**values) -> PackedPreprocessing:
    return PackedPreprocessing((32, 32), patch_size=PATCH, **values)


@pytest.mark.parametrize("limit", [1, 7, 16, 49, 196])
def test_a_grid_has_the_aspect_ratio_of_its_image_and_uses_the_patches(limit: int) -> None:
    for height in range(10, 400, 23):
        for width in range(10, 400, 29):
            rows, columns = nearest_grid(height, width, (16, 16), limit)
            assert 1 <= rows * columns <= limit
            if limit * min(height / width, width / height) >= 4:  # a shorter side of two patches or more
                assert abs(math.log(rows * width / (columns * height))) <= 0.75 / min(rows, columns)
                assert rows * columns >= 0.5 * limit
            if limit >= 49 and 0.5 <= height / width <= 2:
                assert rows * columns >= 0.6 * limit


def test_the_distortion_is_at_most_that_of_timm() -> None:
    """timm rounds both sides up, which distorts more and never less on average."""
    ours, timms = [], []
    for height in range(100, 600, 37):
        for width in range(100, 600, 41):
            rows, columns = nearest_grid(height, width, (16, 16), 196)
            ours.append(abs(math.log(rows * width / (columns * height))))
            tall, wide = get_image_size_for_seq((height, width), 16, 196)[1]
            timms.append(abs(math.log(tall * width / (wide * height))))
    assert np.mean(ours) <= np.mean(timms)


@pytest.mark.parametrize(("size", "patch", "limit", "grid"), [
    ((224, 224), (16, 16), 196, (14, 14)),
    ((7, 7), (16, 16), 196, (14, 14)),  # enlarged, as with one size
    ((1000, 1000), (16, 16), 199, (14, 14)),
    ((600, 800), (16, 16), 192, (12, 16)),
    ((10, 100), (16, 16), 16, (1, 10)),
    ((1, 1000), (16, 16), 16, (1, 16)),
    ((1000, 1), (16, 16), 16, (16, 1)),
    ((64, 64), (16, 8), 32, (4, 8)),  # patches that are not square
])
def test_grids_of_special_images(size, patch, limit, grid) -> None:
    assert nearest_grid(*size, patch, limit) == grid


def test_pixels_are_pillows_at_the_size_of_the_grid() -> None:
    for pixels in pictures():
        made = packed().image(pixels)
        size = packed().size_of(*pixels.shape[:2])
        expected = np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BICUBIC))
        assert np.array_equal(made.permute(1, 2, 0).numpy(), expected)
        assert made.shape[1] % 8 == made.shape[2] % 8 == 0 and made[0].numel() <= 32 * 32


def test_square_images_are_those_of_one_size() -> None:
    for side in (7, 32, 100):
        (pixels,) = pictures([(side, side)])
        assert torch.equal(packed().image(pixels), Preprocessing((32, 32), "squash").image(pixels))


def test_the_stored_values_are_loaded_unchanged() -> None:
    made = packed(mean=(0.1, 0.2, 0.3), max_patches=20)
    assert PackedPreprocessing.from_dict(made.to_dict()) == made
    assert made.to_dict()["resize"] == "aspect" and packed().to_dict()["max_patches"] == 16
    square = made.of_one_size()
    assert type(square) is Preprocessing and square.resize == "shorter" and square.mean == made.mean
    assert PackedPreprocessing.of(square, PATCH, 20) == made


@pytest.mark.parametrize(("values", "text"), [
    ({"resize": "squash"}, "resize='squash' is not one of aspect"),
    ({"crop_pct": 0.9}, "crop_pct=0.9 crops images"),
    ({"draft": True}, "draft=true needs images of one size"),
    ({"max_patches": 0}, "max_patches=0 must be at least 1"),
    ({"patch_size": (0, 8)}, r"patch_size \(0, 8\) must be"),
])
def test_invalid_values_are_named(values, text) -> None:
    with pytest.raises(ValueError, match=text):
        PackedPreprocessing(**{"size": (32, 32), "patch_size": PATCH, **values})


def test_only_a_packed_preprocessing_keeps_the_aspect_ratio() -> None:
    with pytest.raises(ValueError, match="resize='aspect' is not one of shorter, squash, pad, none"):
        Preprocessing((32, 32), "aspect")


def test_normalized_pixels_are_those_of_each_image_alone() -> None:
    preprocessing = packed(mean=(0.2, 0.4, 0.6), std=(0.1, 0.2, 0.3))
    images = [preprocessing.image(pixels) for pixels in pictures()]
    found = preprocessing.normalize(preprocessing.batch(images))
    assert all(torch.equal(got, preprocessing.normalize(image[None])[0])
               for got, image in zip(found, images, strict=True))


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("sizing", [None, RandomResizedCrop((0.3, 1.0), seed=3, relative=True)])
def test_a_sample_depends_on_its_counters_only(tmp_path, cache, sizing) -> None:
    samples = split(tmp_path)
    dataset = PackedImageDataset(samples, packed(), sizing, cache=cache)
    keys = [(2, 3), (0, 0), (1, 2), (0, 5)]
    batch = dataset.__getitems__(keys)
    assert isinstance(batch["image"], PackedImages) and batch["label"].tolist() == [3, 0, 2, 5]
    again = PackedImageDataset(samples, packed(), sizing, cache=not cache)
    for image, key in zip(batch["image"], keys, strict=True):
        assert torch.equal(image, again.__getitems__([key])["image"][0])
    if sizing is None:
        assert torch.equal(batch["image"][1], packed().image(pictures()[0]))


def test_crops_have_ratios_around_that_of_the_image(tmp_path) -> None:
    wide = split(tmp_path, [(30, 90)])
    dataset = PackedImageDataset(wide, packed(max_patches=100), RandomResizedCrop((0.5, 1.0), (0.9, 1.1), 0, True))
    grids = [dataset.__getitems__([(epoch, 0)])["image"].grids[0] for epoch in range(20)]
    assert all(2.4 <= columns / rows <= 3.8 for rows, columns in grids) and len(set(grids)) > 1


@pytest.mark.parametrize("crop", [None, RandomResizedCrop((0.5, 1.0), (1.0, 1.0), 0, relative=True)])
@pytest.mark.parametrize("cache", [True, False])
def test_a_random_number_of_patches_is_drawn_for_each_image_and_epoch(tmp_path, crop, cache) -> None:
    samples = split(tmp_path, [(50, 50), (64, 64)])
    dataset = PackedImageDataset(samples, packed(max_patches=49), RandomPatches(4, crop, seed=1), cache=cache)
    keys = [(epoch, index) for epoch in range(60) for index in range(2)]
    batch = dataset.__getitems__(keys)
    assert {grid[0] for grid in batch["image"].grids} == {2, 3, 4, 5, 6, 7} and 15 < np.mean(batch["image"].counts) < 30
    assert torch.equal(dataset.__getitems__(keys[7:8])["image"][0], batch["image"][7])


def test_without_a_crop_the_whole_image_is_used() -> None:
    assert RandomPatches(4).box(30, 90, (32, 32), [0.5]) == (0, 0, 30, 90)
    assert [RandomPatches(4).patches(16, [number]) for number in (0.0, 0.5, 0.999)] == [4, 10, 16]


def test_square_crops_are_those_of_one_size(tmp_path) -> None:
    samples = split(tmp_path, [(50, 50), (64, 64)])
    crop = RandomResizedCrop((0.3, 1.0), (1.0, 1.0), 0, relative=True)
    keys = [(epoch, index) for epoch in range(4) for index in range(2)]
    ours = PackedImageDataset(samples, packed(), crop).__getitems__(keys)
    one_size = ImageDataset(samples, packed().of_one_size(), crop).__getitems__(keys)
    assert all(map(torch.equal, ours["image"], one_size["image"]))


@pytest.mark.parametrize("cache", [True, False])
def test_unreadable_images_are_left_out_of_a_batch(tmp_path, cache) -> None:
    samples = split(tmp_path)
    (tmp_path / "1.png").write_bytes(b"broken")
    dataset = PackedImageDataset(samples, packed(), cache=cache, on_bad_sample="skip")
    batch = dataset.__getitems__([(0, 0), (0, 1), (0, 2)])
    assert batch["index"].tolist() == [0, 2] and len(batch["image"]) == 2 and batch["bad"][0][0].endswith("1.png")
    empty = dataset.__getitems__([(0, 1)])
    assert len(empty["image"]) == len(empty["index"]) == 0
    assert dataset.filler()["image"].grids == ((4, 4),)


def test_augmentation_is_that_of_each_image_alone() -> None:
    steps = [HorizontalFlip(), RandAugment(), RandomErasing(p=1.0)]
    preprocessing = packed()
    images = [preprocessing.image(pixels) for pixels in pictures()]
    index, epoch = torch.tensor([4, 0, 9, 2, 7, 5]), torch.tensor([1, 0, 2, 1, 0, 3])
    found = PackedAugment(steps, seed=3)(preprocessing.batch(images), index, epoch)
    alone = Augment(steps, seed=3)
    for row, (got, image) in enumerate(zip(found, images, strict=True)):
        assert torch.equal(got, alone(image[None], index[row : row + 1], epoch[row : row + 1])[0])


def test_a_preview_shows_the_whole_image() -> None:
    for pixels in pictures():
        shown = packed().preview(pixels, side=60)
        height, width = packed().size_of(*pixels.shape[:2])
        assert shown.shape[0] / shown.shape[1] == pytest.approx(height / width, rel=0.05)


def test_the_cache_counts_the_patches_that_an_image_may_have(tmp_path):
    samples, each = split(tmp_path), 3 * 32 * 32  # bytes of 16 patches
    options = {"cache_bytes": len(samples) * each}
    assert PackedImageDataset(samples, packed(), **options).cached
    assert not PackedImageDataset(samples, packed(max_patches=32), **options).cached
    assert PackedImageDataset(samples, packed(max_patches=8), cache_bytes=len(samples) * each // 2).cached
