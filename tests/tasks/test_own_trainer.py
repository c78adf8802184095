"""Tasks with a trainer and loaders of the user's own program, without `vit.train`."""

import pytest
import torch
from pytorch_lightning import Trainer
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

import vit
from vit.data import EvalBatches, ImageDataset, Preprocessing, TrainBatches, digits
from vit.tasks import Classification, CrossEntropy, Optimization

PREPROCESSING = Preprocessing((8, 8))


def task():
    model = vit.create_model("vit_micro", depth=1, image_size=8, patch_size=4, num_classes=10)
    optimization = Optimization(lambda model: torch.optim.AdamW(model.parameters(), 1e-3), CosineAnnealingLR)
    return Classification(model, PREPROCESSING, 10, CrossEntropy(), optimization)


def trainer(folder):
    return Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, default_root_dir=folder,
                   enable_progress_bar=False, enable_model_summary=False)


@pytest.mark.filterwarnings("ignore")  # advice of Lightning on the number of workers and on logging
def test_a_task_is_validated_and_then_trained(tmp_path):
    """`validate` runs in inference mode, the validation of `fit` does not."""
    train, val = (ImageDataset(digits().splits[name], PREPROCESSING) for name in ("train", "val"))
    module, loaders = task(), (TrainBatches(train, 64, workers=0), EvalBatches(val, 64, workers=0))
    before = trainer(tmp_path).validate(module, loaders[1], verbose=False)[0]["val/loss"]
    fitting = trainer(tmp_path)
    fitting.fit(module, *loaders)
    assert fitting.global_step == 19 and fitting.callback_metrics["val/loss"] < before


@pytest.mark.filterwarnings("ignore")
def test_batches_of_another_loader_are_named(tmp_path):
    images = TensorDataset(torch.zeros(8, 3, 8, 8, dtype=torch.uint8), torch.arange(8))
    with pytest.raises(TypeError, match="Classification needs batches of vit.data.TrainBatches .* but got a list;"):
        trainer(tmp_path).fit(task(), DataLoader(images, 4))
    records = [{"image": image, "label": label} for image, label in images]
    with pytest.raises(TypeError, match="but got a dict of image, label;"):
        trainer(tmp_path).validate(task(), DataLoader(records, 4))
