"""Loading weights into models of other sizes, and the key report."""

import pytest
import timm
import torch
from timm.layers import resample_abs_pos_embed

from vit import weights
from vit.models import create_model
from vit.weights import load_weights, to_timm
from vit.weights.loading import copy_tensors

TINY = {"dim": 24, "depth": 2, "num_heads": 3, "patch_size": 4, "image_size": 16, "num_classes": 5}


def tiny(seed: int = 0, **options) -> torch.nn.Module:
    torch.manual_seed(seed)
    return create_model("vit_tiny", **{**TINY, **options}).eval()


def statuses(report) -> dict[str, str]:
    return {row.name: row.status for row in report.rows}


def test_a_model_of_the_same_size_loads_everything() -> None:
    source, model = tiny(0), tiny(1)
    report = load_weights(model, source.state_dict())
    assert set(statuses(report).values()) == {"loaded"}
    assert report.table() == f"{len(report.rows)} loaded, 0 resized, 0 new, 0 unused"
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(model(x), source(x))


def test_other_resolution_and_other_classes() -> None:
    source, model = tiny(0), tiny(1, image_size=(24, 40), num_classes=3)
    head = model.head.weight.clone()
    report = load_weights(model, source.state_dict())
    status = statuses(report)
    assert status["embed.pos_embed"] == "resized"
    assert status["head.weight"] == status["head.bias"] == "new"
    assert set(status.values()) == {"loaded", "resized", "new"}
    assert torch.equal(model.head.weight, head)
    expected = resample_abs_pos_embed(source.embed.pos_embed, [6, 10], [4, 4], num_prefix_tokens=1)
    assert torch.equal(model.embed.pos_embed, expected)
    assert "resized embed.pos_embed  (1, 17, 24) -> (1, 61, 24)" in report.table()


def test_back_from_a_grid_that_is_not_square() -> None:
    source, model = tiny(0, image_size=(8, 24)), tiny(1)
    with pytest.raises(ValueError, match="13 rows.*source_grid"):
        load_weights(model, source.state_dict())
    report = load_weights(model, source.state_dict(), source_grid=(2, 6))
    assert statuses(report)["embed.pos_embed"] == "resized"


def test_a_transposed_grid_of_equal_length_is_resampled() -> None:
    source, model = tiny(0, image_size=(8, 24)), tiny(1, image_size=(24, 8))
    load_weights(model, source.state_dict(), source_grid=(2, 6))
    expected = resample_abs_pos_embed(source.embed.pos_embed, [6, 2], [2, 6], num_prefix_tokens=1)
    assert torch.equal(model.embed.pos_embed, expected)


def test_a_head_can_keep_its_initial_values() -> None:
    source, model = tiny(0), tiny(1)
    assert statuses(load_weights(model, source.state_dict(), head=False))["head.weight"] == "new"


def test_a_head_of_the_same_classes_in_another_order_is_the_same_function() -> None:
    source, model, order = tiny(0), tiny(1), [2, 0, 1, 4, 3]
    images = torch.randn(2, 3, 16, 16)
    report = load_weights(model, source.state_dict(), class_order=order)
    assert torch.equal(model.head.weight, source.head.weight[order])
    torch.testing.assert_close(model(images), source(images)[:, order])
    assert "head.weight, head.bias: rows in the order of the model's classes" in report.table()
    assert load_weights(model, source.state_dict(), class_order=range(5)).count("new") == 0
    report = load_weights(model, source.state_dict(), head=False)
    assert "new     head.weight  (5, 24) -> (5, 24)  for other or unnamed classes" in report.table()


def test_registers_that_the_source_lacks_keep_their_initial_values() -> None:
    source, model = tiny(0), tiny(1, registers=2, patch_size=2, image_size=8)
    status = statuses(load_weights(model, source.state_dict()))
    assert status["embed.reg_token"] == "new"
    assert status["embed.pos_embed"] == "resized"  # the rows of the registers keep their values
    assert status["embed.proj.weight"] == "resized"
    assert torch.equal(model.embed.pos_embed[:, 3:], source.embed.pos_embed[:, 1:])


@pytest.mark.parametrize("ours_first", [True, False])
def test_vit_and_timm_models_load_each_others_weights(ours_first: bool) -> None:
    ours = tiny(0, dim=192)
    theirs = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=4, depth=2, num_classes=5).eval()
    source, model = (ours, theirs) if ours_first else (theirs, ours)
    assert set(statuses(load_weights(model, source.state_dict())).values()) == {"loaded"}
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(model(x), source(x), rtol=0, atol=1e-5)


def test_any_timm_model_with_another_class_count() -> None:
    source = create_model("timm:resnet18", num_classes=5, image_size=32)
    model = create_model("timm:resnet18", num_classes=3, image_size=32)
    report = load_weights(model, source.state_dict())
    assert {row.name for row in report.rows if row.status == "new"} == {"fc.weight", "fc.bias"}


def test_another_network_is_refused() -> None:
    with pytest.raises(ValueError, match=r"only 0 of \d+ tensors fit; names such as conv1.weight are unknown"):
        load_weights(tiny(), create_model("timm:resnet18", num_classes=5, image_size=32).state_dict())
    with pytest.raises(ValueError, match="the model has another size"):
        load_weights(tiny(), tiny(dim=48).state_dict())


def test_unused_tensors_are_named() -> None:
    source, model = tiny(0, depth=3), tiny(1)
    report = load_weights(model, to_timm(source.state_dict()))
    unused = [row.name for row in report.rows if row.status == "unused"]
    assert report.count("unused") == len(unused) == 12 and all(name.startswith("encoder.blocks.2.") for name in unused)
    assert "... and 4 more" in report.table()


def test_former_statuses_are_still_counted() -> None:
    report = load_weights(tiny(), tiny().state_dict())
    with pytest.warns(DeprecationWarning, match="the status 'taken' is now 'loaded'"):
        assert report.count("taken") == len(report.rows)
    with pytest.warns(DeprecationWarning, match="'left out' is now 'excluded'"):
        assert report.named("left out") == []


@pytest.mark.parametrize(("old", "new"), weights.FORMER_NAMES.items())
def test_former_names_are_aliases(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"vit.weights.{old} is now {new}"):
        assert getattr(weights, old) is getattr(weights, new)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        weights.nothing  # noqa: B018


def test_tensors_are_assigned_only_to_parameters_of_one_name() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)).half()
    loaded, first = {"0.weight": torch.ones(2, 2).half(), "1.weight": torch.eye(2)}, model[0].weight.data_ptr()
    copy_tensors(model, loaded, model.state_dict(), assign=False)
    assert model[0].weight.data_ptr() == first and torch.equal(model[1].weight, torch.eye(2).half())
    copy_tensors(model, loaded, model.state_dict(), assign=True)
    assert model[0].weight.data_ptr() == loaded["0.weight"].data_ptr()
    assert torch.equal(model[1].weight, torch.eye(2).half()) and model[1].weight.dtype == torch.float16
    model[1].weight = model[0].weight
    copy_tensors(model, {**loaded, "1.weight": loaded["0.weight"]}, model.state_dict(), assign=True)
    assert model[1].weight is model[0].weight
