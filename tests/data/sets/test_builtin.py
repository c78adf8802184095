"""Built-in data sets: digits as in scikit-learn, and the splits of ImageNet."""

import subprocess
import sys

import numpy as np
from sklearn.datasets import load_digits

from vit.data import digits, imagenet
from vit.data.sets import builtin


def test_digits_are_those_of_scikit_learn(monkeypatch):
    expected, labels = load_digits(return_X_y=True)
    read, found = builtin.digits_of_scikit_learn()
    np.testing.assert_array_equal(read, expected)
    np.testing.assert_array_equal(found, labels)
    monkeypatch.setattr(builtin, "DIGITS_FILE", "nowhere.csv.gz")  # another release of scikit-learn
    np.testing.assert_array_equal(builtin.digits_of_scikit_learn()[0], expected)


def test_a_run_on_digits_does_not_import_scikit_learn():
    """Its import takes a second of the time until the first step."""
    code = ("import sys; import vit.run.training_run, vit.run.jobs.images; from vit.data import digits; digits(); "
            "sys.exit('sklearn' in sys.modules or 'pandas' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(digits().splits["train"]) == 1257


def test_the_validation_images_of_imagenet_without_a_folder_of_them_are_the_requested_fraction(class_folders):
    root = class_folders({f"{split}/{name}": 20 for split in ("train", "test") for name in "ab"})
    sizes = {val: {key: len(split) for key, split in imagenet(root, val=val).splits.items()} for val in (0, 0.5)}
    assert sizes[0] == {"train": 40, "test": 40}
    assert 10 <= sizes[0.5].get("val") <= 30 and sizes[0.5]["test"] == 40
