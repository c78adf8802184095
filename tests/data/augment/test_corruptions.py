"""Common corruptions: against their definitions and other libraries, and their properties."""

import colorsys
import io
import itertools

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from vit.data.augment import corruptions
from vit.data.augment.corruptions import CORRUPTIONS, SEVERITIES, corrupt, corrupt_batch

GROUPS = {"noise": 3, "blur": 4, "weather": 4, "digital": 4}
WEATHER = ["snow", "frost", "fog"]  # whose textures differ from image to image
STEADY = sorted(set(CORRUPTIONS) - {"elastic_transform", "glass_blur", *WEATHER})  # those two change their character


def photo(height=96, width=96, channels=3):
    """A smooth image with edges, of middle brightness."""
    rows, columns = np.mgrid[:height, :width]
    waves = [np.sin(rows / (7 + 2 * c)) + np.cos(columns / (5 + c)) for c in range(channels)]
    image = 110 + 35 * np.stack(waves, 2) + 40 * (columns > width // 2)[..., None]
    return image.clip(0, 255).astype(np.uint8)


def flat(value, size=224):
    return np.full((size, size, 3), value, np.uint8)


def error(image, other):
    return ((image.astype(float) - other) ** 2).mean()


def test_there_are_the_fifteen_kinds_of_the_paper():
    assert len(CORRUPTIONS) == sum(GROUPS.values()) == 15


@pytest.mark.parametrize("shape", [(8, 8, 1), (9, 14, 3), (1, 1, 3), (33, 20, 3)])
@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_images_of_any_size_keep_shape_and_type(kind, shape):
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    before = image.copy()
    for severity in SEVERITIES:
        found = corrupt(image, kind, severity, 0, 3)
        assert found.shape == shape and found.dtype == np.uint8
    assert (image == before).all()


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_the_result_is_a_function_of_the_counters(kind):
    image = photo(64, 80)
    first = corrupt(image, kind, 3, 5, 7)
    assert (first == corrupt(image, kind, 3, 5, 7)).all() and (first != image).any()
    is_random = kind not in ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression")
    assert (first != corrupt(image, kind, 3, 5, 8)).any() == is_random
    assert (first != corrupt(image, kind, 3, 6, 7)).any() == is_random


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_an_image_is_corrupted_alike_in_any_batch(kind, monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (5, 17, 24, 3), np.uint8)
    counters = [(1, i) for i in (4, 0, 9, 2, 7)]
    alone = [corrupt(image, kind, 4, *each) for image, each in zip(images, counters, strict=True)]
    assert (corrupt_batch(images, kind, 4, counters) == alone).all()
    monkeypatch.setattr(corruptions, "CHUNK_VALUES", 2 * images[0].size)
    assert (corrupt_batch(images, kind, 4, counters) == alone).all()


@pytest.mark.parametrize("kind", STEADY)
def test_a_higher_severity_changes_the_image_more(kind):
    image = photo(224, 224)
    errors = [error(image, corrupt(image, kind, severity)) for severity in SEVERITIES]
    assert errors[-1] > 1.5 * errors[0] and all(b > 0.9 * a for a, b in itertools.pairwise(errors)), errors


@pytest.mark.parametrize("kind", WEATHER)
def test_severe_weather_leaves_less_of_the_image(kind):
    image = photo(64, 64)

    def correlation(severity):
        found = [corrupt(image, kind, severity, i) for i in range(10)]
        return np.mean([np.corrcoef(image.ravel(), each.ravel())[0, 1] for each in found])

    assert correlation(5) < 0.85 * correlation(1)


def test_noise_has_the_stated_strength():
    image = flat(128)
    normal = corrupt(image, "gaussian_noise", 1).astype(float) / 255
    assert normal.std() == pytest.approx(0.08, rel=0.02) and normal.mean() == pytest.approx(128 / 255, abs=0.002)
    shot = corrupt(image, "shot_noise", 1).astype(float) / 255
    assert shot.var() == pytest.approx(128 / 255 / 60, rel=0.05)
    impulse = corrupt(image, "impulse_noise", 5)
    assert (impulse != 128).mean() == pytest.approx(0.27, abs=0.01)
    assert set(np.unique(impulse)) == {0, 128, 255}
    assert (impulse == 0).sum() == pytest.approx((impulse == 255).sum(), rel=0.05)


def test_brightness_is_the_value_of_hsv():
    image = np.random.default_rng(0).integers(0, 256, (6, 7, 3), np.uint8)
    found = corrupt(image, "brightness", 2)
    for (row, column) in np.ndindex(6, 7):
        hue, saturation, value = colorsys.rgb_to_hsv(*image[row, column] / 255)
        expected = np.array(colorsys.hsv_to_rgb(hue, saturation, min(value + 0.2, 1))) * 255
        assert np.abs(found[row, column] - expected).max() <= 0.51


def test_contrast_keeps_the_mean_of_each_channel():
    image = photo(60, 60)
    found = corrupt(image, "contrast", 3)
    assert found.mean(axis=(0, 1)) == pytest.approx(image.mean(axis=(0, 1)), abs=0.5)
    assert found.std(axis=(0, 1)) == pytest.approx(0.2 * image.std(axis=(0, 1)), rel=0.05)


def test_jpeg_and_pixelate_are_those_of_pillow():
    image, stream = photo(50, 40), io.BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=7)
    assert (corrupt(image, "jpeg_compression", 5) == np.asarray(Image.open(stream))).all()
    found = corrupt(image, "pixelate", 5)
    assert len(np.unique(found.reshape(-1, 3), axis=0)) <= (50 // 4 + 1) * (40 // 4 + 1)


def test_kernels_are_means_over_the_right_pixels():
    kernel = corruptions.disk(5.0)
    rows, columns = np.mgrid[-5:6, -5:6]
    assert kernel.sum() == pytest.approx(1) and kernel.shape == (11, 11) and (kernel >= 0).all()
    assert (kernel * (rows**2 + columns**2)).sum() == pytest.approx(5.0**2 / 2, rel=0.02)  # of a uniform disk
    assert corruptions.disk(0.1).tolist() == [[1.0]]
    right, down = corruptions.line(10, 1e9, np.array([0.0, 90.0]))
    assert right.sum() == pytest.approx(1) and right[len(right) // 2].sum() == pytest.approx(1)  # in one row
    assert np.abs(down - right.T).max() < 1e-9


def test_a_blur_is_that_of_scipy():
    x, kernel = photo(40, 30).astype(float) / 255, corruptions.disk(2.3)
    blurred, filtered = corruptions.blurred(x[None], 1.5)[0], corruptions.filtered(x[None], kernel[None])[0]
    assert blurred[..., 1] == pytest.approx(ndimage.gaussian_filter(x[..., 1], 1.5, mode="nearest"))
    assert filtered[..., 2] == pytest.approx(ndimage.convolve(x[..., 2], kernel))


def test_a_zoom_keeps_the_centre_and_enlarges():
    x = np.zeros((1, 41, 41, 1))
    x[:, 16:25, 16:25] = 1
    found = corruptions.zoomed(x, 2.0)
    assert found.sum() == pytest.approx(4 * x.sum(), rel=0.15) and found[0, 20, 20] == 1
    assert np.abs(found - found[:, ::-1, ::-1]).max() < 1e-9
    assert corruptions.zoomed(x, 1.0) == pytest.approx(x)


def test_a_plasma_is_smooth_on_the_scale_of_pixels_and_rough_on_that_of_the_image():
    (field,) = corruptions.plasma((100, 128), 2.0, [np.random.default_rng(0)])
    assert field.shape == (100, 128) and field.min() >= 0 and field.max() <= 1
    near, far = np.abs(field[:, 1:] - field[:, :-1]).mean(), np.abs(field[:, 40:] - field[:, :-40]).mean()
    assert near < far / 4


def test_an_elastic_transform_moves_pixels_and_keeps_their_values():
    image = photo(128, 128)
    found = corrupt(image, "elastic_transform", 4)
    assert np.abs(np.sort(found.ravel()).astype(float) - np.sort(image.ravel())).mean() < 8 < error(image, found)
    assert (corrupt(flat(90, 64), "elastic_transform", 5) == 90).all()


@pytest.mark.parametrize(("arguments", "message"), [
    ((photo(), "rain", 1), "'rain' is not a kind of corruption: gaussian_noise"),
    ((photo(), "fog", 6), "severity 6 must be one of 1 to 5"),
    ((photo().astype(float), "fog", 1), "got float64"),
    ((photo()[..., :2], "fog", 1), r"\(96, 96, 2\)"),
])
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        corrupt(*arguments)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_an_empty_batch(kind):
    assert corrupt_batch(np.zeros((0, 8, 8, 3), np.uint8), kind, 1, []).shape == (0, 8, 8, 3)


def test_each_image_has_its_counters():
    with pytest.raises(ValueError, match="3 images and as many counters are needed, got 2"):
        corrupt_batch(np.zeros((3, 8, 8, 3), np.uint8), "fog", 1, [(0, 0), (0, 1)])


def test_frost_on_a_single_pixel_is_a_number():
    with np.errstate(invalid="raise"):
        for seed in range(20):
            assert corrupt(np.full((1, 1, 3), 255, np.uint8), "frost", 3, seed).min() > 0
