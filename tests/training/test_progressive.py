"""The stages of progressive training, and the scaling of images against torchvision."""

import pytest
import torch
from torchvision.transforms.functional import InterpolationMode, resize

from vit.training import Progressive, build_stages
from vit.training.progressive import Stage


def schedule(count, image_size=None, patch_drop=None, until=0.8, full=(32, 32), patch=(4, 4)):
    return Progressive(build_stages(count, image_size, patch_drop, full, patch), until)


def test_the_stages_are_those_of_the_papers_algorithm():
    """Algorithm 1 of arXiv 2104.00298: stage i of M has S_0 + (S_e - S_0) i / (M - 1); here in whole patches."""
    made = schedule(4, [128, 320], [0.6, 0.0], full=(320, 320), patch=(16, 16))
    assert made.image_sizes == [(128, 128), (192, 192), (256, 256), (320, 320)]
    assert made.patch_drops == pytest.approx([0.6, 0.4, 0.2, 0.0]) and made.patch_drops[-1] == 0.0
    assert [stage.image_size for stage in schedule(4, [24, 32]).stages] == [(24, 24), (28, 28), (28, 28), (32, 32)]


@pytest.mark.parametrize(("total", "until"), [(1000, 0.8), (37, 0.5), (4, 0.75), (1, 0.5)])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_last_stage_has_the_rest_of_the_steps_and_the_others_equal_parts(total, until, count):
    made = schedule(count, patch_drop=[0.5, 0.0], until=until)
    stages = [made.stages.index(made.stage(step, total)) for step in range(total)]
    assert stages == sorted(stages)
    last = sum(stage == count - 1 for stage in stages)
    assert last == pytest.approx((1 - until) * total, abs=1)
    for stage in range(count - 1):
        assert stages.count(stage) == pytest.approx(until * total / (count - 1), abs=1)
    assert made.stage(total + 5, total) is made.stages[-1]


def test_a_wide_image_keeps_its_shape():
    made = schedule(3, [16, 32], full=(32, 96), patch=(8, 16))
    assert made.image_sizes == [(16, 48), (24, 64), (32, 96)]
    assert schedule(2, [16, 32], full=(64, 32), patch=(4, 4)).image_sizes == [(32, 16), (64, 32)]


def test_scaling_is_that_of_torchvision():
    images = torch.randn(2, 3, 32, 48)
    scaled = Stage(image_size=(20, 28)).scale(images)
    expected = resize(images, [20, 28], InterpolationMode.BILINEAR, antialias=True)
    torch.testing.assert_close(scaled, expected)
    assert Stage(image_size=(32, 48)).scale(images) is images and Stage().scale(images) is images


@pytest.mark.parametrize(("values", "text"), [
    ({"image_size": [25, 32]}, "image_size 25 is not divisible by patch_size 4; nearest valid: 24, 28"),
    ({"image_size": [2, 32]}, "image_size 2 is not divisible by patch_size 4; nearest valid: 4"),
    ({"image_size": [24, 48]}, "image_size 48 is larger than the images of the run, which are 32x32; use 32 or less"),
    ({"image_size": [24]}, r"image_size is \[24\], but must be the first and the last value, such as \[128,224\]"),
    ({"patch_drop": 0.5}, r"patch_drop is 0.5, but must be the first and the last value, such as \[0.5,0.0\]"),
])
def test_values_that_no_stage_can_have(values, text):
    with pytest.raises(ValueError, match=text):
        schedule(4, **values)


def test_the_log_has_the_scheduled_values_only():
    assert Stage().values() == {} and Stage(patch_drop=0.0).values() == {"patch_drop": 0.0}
    assert Stage((20, 28), 0.5).values() == {"patch_drop": 0.5, "image_size": 20}
