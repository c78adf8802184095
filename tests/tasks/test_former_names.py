"""Public names of earlier versions stay importable."""

from vit import tasks


def test_former_names_of_classes_stay_importable():
    assert tasks.Optimizing is tasks.Optimization and tasks.Writing is tasks.ValidationTexts
