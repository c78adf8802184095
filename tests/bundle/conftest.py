"""A small classifier and its bundle."""

import pytest
import torch

import vit
from vit.bundle import save_bundle
from vit.data import Preprocessing

CLASSES = ["cat", "dog", "hörse"]
PREPROCESSING = Preprocessing(size=(32, 48), resize="squash", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))


def tiny(**overrides):
    torch.manual_seed(0)
    options = {"image_size": (32, 48), "patch_size": 8, "num_classes": 3, "depth": 2}
    return vit.create_model("vit_tiny", **{**options, **overrides}).eval()


def images(count=2, height=32, width=48):
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def model():
    return tiny()


@pytest.fixture
def folder(tmp_path, model):
    metrics, extra = {"val/accuracy": 0.9}, {"data": ["data=digits"]}
    return save_bundle(tmp_path / "model", model, CLASSES, PREPROCESSING, metrics, extra)
