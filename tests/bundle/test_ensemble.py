"""Members of an ensemble must be alike, and the ensemble predicts the mean of their probabilities."""

import json

import pytest
import torch

import vit
from tests.bundle.conftest import CLASSES, PREPROCESSING, images, tiny
from vit.bundle import BundleError, Calibration, LabelCalibration, load_bundle, save_bundle, save_ensemble
from vit.data import PackedPreprocessing

OTHER = {  # what differs -> the message
    "classes": (["a", "b", "c"], PREPROCESSING, "has other classes than .*: more: a, b, c; fewer: cat, dog, "),
    "order": (CLASSES[::-1], PREPROCESSING, "has other classes .*: another order, from number 1 on: hörse, .*of cat"),
    "depth": (CLASSES, PREPROCESSING, "has another architecture than .*: depth is 1 and 2; the members"),
    "crop": (CLASSES, PREPROCESSING.replace(crop_pct=0.5),
             "preprocesses images in another way than .*: crop_pct is 0.5 and 1.0; set data.preprocessing.crop_pct"),
    "rounding": (CLASSES, PREPROCESSING.replace(rounding="timm"),
                 "preprocesses images in another way than .*: rounding is timm and torchvision; set data.pre"),
}


@pytest.mark.parametrize("part", OTHER)
def test_members_that_differ_are_refused_with_both_values(tmp_path, model, folder, part):
    classes, preprocessing, message = OTHER[part]
    other = save_bundle(tmp_path / "other", tiny(depth=1) if part == "depth" else model, classes, preprocessing)
    with pytest.raises(BundleError, match=f"other {message}"):
        save_ensemble(tmp_path / "both", [folder, other])
    assert not (tmp_path / "both").exists()


def test_members_may_differ_in_dropout_which_has_no_effect_on_predictions(tmp_path, model, folder):
    rates = {"dropout": 0.1, "attention_dropout": 0.2, "drop_path": 0.3, "patch_dropout": 0.4,
             "drop_path_schedule": "constant"}
    other = tiny(**rates)
    other.load_state_dict(model.state_dict())
    member = save_bundle(tmp_path / "other", other, CLASSES, PREPROCESSING)
    for members in ([folder, member], [member, folder]):
        both = load_bundle(save_ensemble(tmp_path / members[0].name / "both", members)).model
        with torch.no_grad():
            pixels = torch.rand(2, 3, *PREPROCESSING.size)
            alone = load_bundle(save_ensemble(tmp_path / members[0].name / "one", [folder])).model
            torch.testing.assert_close(both(pixels), alone(pixels))


def test_members_without_classes_are_refused(tmp_path):
    member = save_bundle(tmp_path / "features", tiny(num_classes=0), [], PREPROCESSING)
    with pytest.raises(BundleError, match="features has no classes, but an ensemble averages the probabilities of"):
        save_ensemble(tmp_path / "both", [member, member])
    with pytest.raises(BundleError, match="needs one or more models"):
        save_ensemble(tmp_path / "both", [])
    with pytest.raises(TypeError, match="sources"):
        save_ensemble(tmp_path / "both", str(member))


def test_members_of_other_kinds_are_refused(tmp_path):
    sizes = {"image_size": (32, 48), "patch_size": 8, "dim": 16, "depth": 1, "num_heads": 2}
    masked = vit.create_model("mae_tiny", **sizes, decoder_dim=16, decoder_depth=1, decoder_num_heads=2)
    member = save_bundle(tmp_path / "masked", masked, [], PREPROCESSING)
    assert json.loads((member / "config.json").read_text()).keys() == {"vit"}  # no other library loads it
    with pytest.raises(BundleError, match=r"masked is of kind mae; .* classifiers of images \(vit, timm\)"):
        save_ensemble(tmp_path / "both", [member])


def test_members_that_keep_aspect_ratios_are_refused(tmp_path, model):
    packed = PackedPreprocessing.of(PREPROCESSING, (8, 8))
    with pytest.warns(UserWarning, match="keeps its aspect ratio"):
        member = save_bundle(tmp_path / "packed", model, CLASSES, packed)
    with pytest.raises(BundleError, match=r"packed is for images that keep their aspect ratio \(data.pack=true\)"):
        save_ensemble(tmp_path / "both", [member, member])


@pytest.mark.parametrize("several", [False, True])
def test_an_ensemble_of_one_member_predicts_as_it_does(tmp_path, model, several):
    member = save_bundle(tmp_path / "a", model, CLASSES, PREPROCESSING, thresholds=[0.2, 0.5, 0.8] if several else ())
    one, same = load_bundle(save_ensemble(tmp_path / "one", [member])), load_bundle(member)
    pixels = torch.randint(256, (2, 3, 32, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    ours, theirs = (each.model(each.preprocessing.normalize(pixels)) for each in (one, same))
    probabilities = torch.sigmoid if several else lambda logits: logits.softmax(-1)
    torch.testing.assert_close(probabilities(ours), probabilities(theirs))
    assert one.thresholds == same.thresholds


@pytest.mark.parametrize("several", [False, True], ids=["one label per image", "several labels per image"])
def test_calibrated_and_other_members_are_averaged_as_probabilities(tmp_path, model, several):
    numbers = (0.5, 0.25), (0.125, 0.0625)
    record = LabelCalibration(9, (2.0, 0.5, 4.0), *numbers) if several else Calibration(9, 3.0, *numbers)
    probabilities = torch.sigmoid if several else lambda logits: logits.softmax(-1)
    other = PREPROCESSING.replace(mean=(0.1, 0.2, 0.3), std=(0.5, 0.4, 0.3))
    thresholds = [[0.25, 0.5, 0.75], [0.5, 0.25, 0.25]] if several else [(), ()]
    members = [save_bundle(tmp_path / "a", model, CLASSES, PREPROCESSING, thresholds=thresholds[0], calibration=record),
               save_bundle(tmp_path / "b", model, CLASSES, other, thresholds=thresholds[1])]
    bundle = load_bundle(save_ensemble(tmp_path / "both", members, {"val/f1": 0.5}, {"data": ["data=digits"]}))
    pixels = images().sigmoid()
    one, two = (model((pixels - torch.tensor(each.mean).view(-1, 1, 1)) / torch.tensor(each.std).view(-1, 1, 1))
                for each in (PREPROCESSING, other))
    divisor = torch.tensor(record.temperatures if several else record.temperature)
    expected = (probabilities(one / divisor) + probabilities(two)) / 2
    torch.testing.assert_close(probabilities(bundle.model(bundle.preprocessing.normalize(pixels * 255))), expected)
    assert bundle.thresholds == ((0.375, 0.375, 0.5) if several else ())
    assert (bundle.classes, bundle.metrics) == (CLASSES, {"val/f1": 0.5}) and bundle.calibration is None
    assert bundle.extra == {"data": ["data=digits"], "members": [str(member) for member in members]}


@pytest.mark.parametrize("order", [1, -1])
def test_members_with_one_and_with_several_labels_per_image_are_not_combined(tmp_path, model, folder, order):
    several = save_bundle(tmp_path / "several", model, CLASSES, PREPROCESSING, thresholds=[0.5, 0.4, 0.3])
    with pytest.raises(BundleError, match="several assigns several labels per image, but .*model assigns one; the"):
        save_ensemble(tmp_path / "both", [folder, several][::order])
