"""Members of an ensemble must be of one kind."""

import pytest

from tests.bundle.conftest import CLASSES, PREPROCESSING
from vit.bundle import BundleError, save_bundle, save_ensemble


@pytest.mark.parametrize("order", [1, -1])
def test_members_with_one_and_with_several_labels_per_image_are_not_combined(tmp_path, model, folder, order):
    several = save_bundle(tmp_path / "several", model, CLASSES, PREPROCESSING, thresholds=[0.5, 0.4, 0.3])
    with pytest.raises(BundleError, match="several assigns several labels per image and .*model one; the members"):
        save_ensemble(tmp_path / "both", [folder, several][::order])
