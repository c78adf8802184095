"""Built-in data sets: digits as in scikit-learn, and the splits of ImageNet."""

import numpy as np
from sklearn.datasets import load_digits

from vit.data import digits, imagenet
from vit.data.sets import builtin


def test_digits_are_those_of_scikit_learn(monkeypatch):
    expected, labels = load_digits(return_X_y=True)
    read, found = builtin.digits_of_scikit_learn()
    np.testing.assert_array_equal(read, expected)
    np.testing.assert_array_equal(found, labels)
    assert len(digits().splits["train"]) == 1257
    monkeypatch.setattr(builtin, "DIGITS_FILE", "nowhere.csv.gz")  # another release of scikit-learn
    np.testing.assert_array_equal(builtin.digits_of_scikit_learn()[0], expected)


def test_the_validation_images_of_imagenet_without_a_folder_of_them_are_the_requested_fraction(class_folders):
    root = class_folders({f"{split}/{name}": 20 for split in ("train", "test") for name in "ab"})
    sizes = {val: {key: len(split) for key, split in imagenet(root, val=val).splits.items()} for val in (0, 0.5)}
    assert sizes[0] == {"train": 40, "test": 40}
    assert 10 <= sizes[0.5].get("val") <= 30 and sizes[0.5]["test"] == 40
