"""Former module names still work, in imports and in a `_target_`."""

import importlib
import sys

import pytest
from hydra.utils import get_object

import vit.data
from vit.moved_modules import MOVED

OLD = {  # the module that each target was in, before vit.data had packages
    "augment": ["Augment", "HorizontalFlip", "PadCrop", "RandomChannelPermutation", "RandomErasing", "VerticalFlip"],
    "corpus_files": ["corpus"],
    "folders": ["folder"],
    "hub_sets": ["hub"],
    "image_tables": ["image_text"],
    "named": ["cifar10", "cifar100", "digits", "fashion_mnist", "imagenet", "mnist"],
    "numbers": ["spelled_numbers"],
    "parallel_text": ["parallel"],
    "policies": ["ColorJitter", "RandAugment", "ThreeAugment", "TrivialAugment"],
    "stories": ["number_questions", "number_stories"],
    "strips": ["digit_strips"],
    "tables": ["table"],
    "text": ["BPETokenizer", "ByteTokenizer"],
    "text_tables": ["text_table"],
    "writing": ["RandomAffine", "RandomElastic", "RandomStrokeWidth"],
}
TARGETS = [(module, name) for module, names in OLD.items() for name in names]


@pytest.mark.parametrize("module, name", TARGETS)
def test_old_targets_name_the_same_function(module, name):
    assert get_object(f"vit.data.{name}") is get_object(f"vit.data.{module}.{name}") is getattr(vit.data, name)


def test_pictures_is_still_a_data_set():
    assert get_object("vit.data.pictures") is vit.data.unlabelled_images and vit.data.Pictures


@pytest.mark.parametrize("old, new", MOVED.items())
def test_a_former_name_is_the_same_module(old, new):
    assert importlib.import_module(old) is importlib.import_module(new)
    assert importlib.import_module(new).__spec__.name == new


def test_names_are_imported_from_a_former_module(caplog, monkeypatch):
    monkeypatch.delitem(sys.modules, "vit.evaluation.probe", raising=False)
    from vit.evaluation.probe import run_probes

    from vit.evaluation.features import probe

    assert run_probes is probe.run_probes and "vit.evaluation.probe is now vit.evaluation.features.probe" in caplog.text


def test_the_new_name_is_logged(caplog, monkeypatch):
    monkeypatch.delitem(sys.modules, "vit.data.stories", raising=False)
    monkeypatch.delattr(vit.data, "stories", raising=False)
    assert vit.data.stories.number_stories is vit.data.number_stories
    assert "vit.data.stories is now vit.data.sets.number_stories" in caplog.text
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        vit.data.nothing  # noqa: B018
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("vit.data.nothing")
