"""The format of a state dict, with the prefixes of wrappers and several copies of the model."""

from dataclasses import replace

import pytest
import torch

from vit.models import create_model
from vit.weights import detect_format, to_timm
from vit.weights.format_detection import VIT, DetectedWeights
from vit.weights.formats.timm import TIMM

STATE = dict(create_model("vit_tiny", dim=24, depth=2, num_heads=3, patch_size=4, image_size=16).state_dict())


def prefixed(prefix: str, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {prefix + name: tensor for name, tensor in state.items()}


def test_names_without_a_prefix() -> None:
    assert detect_format(STATE).format is VIT and detect_format(STATE).notes() == []
    found = detect_format(to_timm(STATE))
    assert found.format is TIMM and found.notes() == ["format: timm"]
    assert found.converted.keys() == STATE.keys()


def test_a_prefix_of_several_components_is_removed() -> None:
    found = detect_format({**prefixed("module.net.backbone.", to_timm(STATE)), "step": torch.zeros(())})
    assert found.format is TIMM and found.prefix == "module.net.backbone."
    assert found.state.keys() == {*to_timm(STATE), "step"}
    assert "the prefix module.net.backbone. was removed from the names" in found.notes()


def test_the_average_is_preferred_to_other_copies() -> None:
    average = {name: tensor + 1 for name, tensor in STATE.items()}
    found = detect_format(prefixed("student.", STATE) | prefixed("ema.", average))
    assert found.prefix == "ema." and found.copies == ("student.",)
    assert torch.equal(found.state["head.weight"], average["head.weight"])
    assert found.state.keys() == STATE.keys()
    assert "another copy under student. was ignored" in found.notes()


def test_the_order_of_copies_is_not_that_of_their_names() -> None:
    copies = ["backup.", "momentum_encoder.", "ema.", "teacher."]
    found = detect_format({name: tensor for copy in copies for name, tensor in prefixed(copy, STATE).items()})
    assert (found.prefix, *found.copies) == ("teacher.", "ema.", "momentum_encoder.", "backup.")


@pytest.mark.parametrize("copy", ["net_ema.", "ema_net.", "model.ema_encoder."])
def test_an_average_is_recognized_by_a_part_of_its_name(copy: str) -> None:
    found = detect_format(prefixed("encoder_of_all.", STATE) | prefixed("net.", STATE) | prefixed(copy, STATE))
    assert found.prefix == copy


def test_timms_names_in_an_attribute_encoder_are_those_of_timm() -> None:
    found = detect_format({**prefixed("encoder.", to_timm(STATE)), "projector.weight": torch.zeros(2, 2)})
    assert found.format is TIMM and found.prefix == "encoder."
    assert found.converted.keys() == {*STATE, "projector.weight"}


def test_a_conversion_that_depends_on_the_heads_gets_their_number() -> None:
    name = "encoder.norm.weight"
    halved = replace(VIT, with_heads=lambda converted, state, heads: {**converted, name: state[name] / heads})
    assert torch.equal(DetectedWeights(halved, STATE).converted[name], STATE[name])
    assert torch.equal(DetectedWeights(halved, STATE, num_heads=2).converted[name], STATE[name] / 2)
    assert torch.equal(DetectedWeights(VIT, STATE, num_heads=2).converted[name], STATE[name])


def test_other_names_have_no_format() -> None:
    assert detect_format({"conv1.weight": torch.zeros(1), "fc.bias": torch.zeros(1)}) is None
    assert detect_format({}) is None
