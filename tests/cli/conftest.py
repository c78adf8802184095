"""Models that several tests of commands read."""

import pytest

from tests.inference.tiny_models import save_classifier, save_image_to_text, save_translator


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder with a translator, a text classifier and an image-to-text model."""
    folder = tmp_path_factory.mktemp("models")
    save_translator(folder / "translator")
    save_classifier(folder / "classifier")
    save_image_to_text(folder / "image_to_text")
    return folder
