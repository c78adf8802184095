"""Predictions from several threads of a process, and in its forks."""

import copy
import os
import pickle
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

import vit
from tests.inference.tiny_models import save_translator
from tests.slow_values import quick_and_slow
from vit.bundle import save_bundle
from vit.data import Preprocessing
from vit.inference.calibrated import captured_features
from vit.inference.fast import FastMode, Mode

FORK = """
import multiprocessing, sys
import numpy as np
import torch
import vit
from vit.data import Split
from vit.evaluation import evaluate
from vit.inference.features import Featurizer

torch.set_num_threads(2)
model, images = vit.load(sys.argv[1]), np.random.default_rng(0).integers(0, 255, (32, 32, 32, 3), np.uint8)
batch = torch.from_numpy(images).permute(0, 3, 1, 2)
split = Split(np.zeros(32, np.int64), [str(i) for i in range(32)], lambda i: images[i])

def compute():
    if sys.argv[2] == "predict":
        return [each.probabilities for each in model.predict(list(images))]
    if sys.argv[2] == "evaluate":
        return evaluate(model.model, model.preprocessing, split, model.classes).probabilities
    return Featurizer(model.model, model.preprocessing, model.device, "32-true").of_images(batch)

expected = compute()

def predict(queue):
    found = compute()
    queue.put((np.allclose(found, expected, atol=1e-5), torch.get_num_threads()))

context = multiprocessing.get_context("fork")
queue = context.Queue()
worker = context.Process(target=predict, args=(queue,), daemon=True)
worker.start()
print(*queue.get(timeout=60), torch.get_num_threads())
"""


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    model = vit.create_model("vit_tiny", image_size=32, patch_size=4, num_classes=3, dim=192, depth=2, num_heads=3)
    save_bundle(folder, model, ["a", "b", "c"], Preprocessing((32, 32), "squash"))
    return folder


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX has forks")
@pytest.mark.parametrize("action", quick_and_slow(["predict", "evaluate", "features"], "predict"))
def test_a_fork_of_a_process_that_has_computed_computes_the_same(classifier, action):
    """As a worker of `gunicorn --preload`; with the threads of GNU OpenMP it waited forever."""
    result = subprocess.run([sys.executable, "-c", FORK, str(classifier), action], capture_output=True, text=True,
                            timeout=200, env={**os.environ, "OMP_NUM_THREADS": "2"})
    assert result.stdout.split() == ["True", "1", "2"], result.stderr


def test_several_threads_predict_the_same_as_one(classifier, tmp_path):
    save_translator(tmp_path / "translator")
    images = list(np.random.default_rng(0).integers(0, 255, (12, 20, 30, 3), np.uint8))
    for path, inputs in ((classifier, images), (tmp_path / "translator", ["ab", "ba", "aab"])):
        model, found = vit.load(path), []

        def predict(model=model, inputs=inputs, found=found):
            found.extend(str(model.predict(inputs)) for _ in range(4))

        expected = str(model.predict(inputs))
        threads = [threading.Thread(target=predict) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert found == [expected] * 16


def test_no_thread_computes_while_another_one_chooses_the_fast_mode(classifier, monkeypatch):
    """The choice switches the layers of the model, with which other threads computed meanwhile."""
    model, computing, choices = vit.load(classifier, fast=True), [], []
    compute = model._logits
    some, many = (list(np.random.default_rng(0).integers(0, 255, (n, 32, 32, 3), np.uint8)) for n in (8, 64))
    started = threading.Event()

    def logits(network, images, mode, tta=1):
        computing.append(1)
        started.set()
        time.sleep(0.005)
        found = compute(network, images, mode, tta)
        computing.pop()
        return found

    def choose(*_):
        choices.append(len(computing))
        time.sleep(0.05)
        choices.append(len(computing))
        return FastMode(Mode("bf16-mixed"), {Mode(): 1.0, Mode("bf16-mixed"): 0.5}, (), 64)

    assert pickle.loads(pickle.dumps(model)).fast and copy.deepcopy(model).fast  # which locks do not prevent
    monkeypatch.setattr(model, "_logits", logits)
    monkeypatch.setattr("vit.inference.images.choose_mode", choose)
    threads = [threading.Thread(target=lambda: [model.predict(some, batch_size=1) for _ in range(2)])]
    threads += [threading.Thread(target=model.predict, args=(many,)) for _ in range(2)]
    threads[0].start()
    assert started.wait(30)
    for each in threads[1:]:
        each.start()
    for each in threads:
        each.join()
    assert choices == [0, 0] and not computing and model.fast_mode.mode.precision == "bf16-mixed"


def test_what_a_thread_captures_is_of_its_own_forward_passes(classifier):
    model, pixels = vit.load(classifier).model, torch.rand(2, 3, 32, 32)
    with torch.inference_mode(), captured_features(model) as captured:
        other = threading.Thread(target=model, args=(pixels[:1],))
        other.start()
        other.join()
        model(pixels)
    assert [each.shape for each in captured] == [(2, 192)]
