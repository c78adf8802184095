import subprocess
import sys

import numpy as np
from sklearn.datasets import load_digits

from vit.data import digits
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
