"""Augmentation draws its numbers on the host, wherever the batch is."""

import torch
from torch import nn

from vit.data import Augment, Preprocessing, RandAugment
from vit.tasks import Classification
from vit.tasks.base import counters


def batch():
    images = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return {"image": images, "label": torch.arange(6), "index": torch.arange(6) + 10, "epoch": torch.full((6,), 3)}


def test_the_counters_of_a_batch_stay_on_the_host():
    model, preprocessing = nn.Linear(1, 1), Preprocessing((8, 8), mean=(0.5,) * 3, std=(0.5,) * 3)
    task = Classification(model, preprocessing, 6, nn.Identity(), optimization=None)
    moved = task.transfer_batch_to_device(batch(), torch.device("meta"), 0)
    assert {moved[key].device.type for key in ("image", "label", "index", "epoch")} == {"meta"}
    index, epoch = counters(moved)
    assert index.tolist() == [10, 11, 12, 13, 14, 15] and epoch.tolist() == [3] * 6
    augmented = Augment([RandAugment()], seed=0)(batch()["image"], index, epoch)
    assert torch.equal(augmented, Augment([RandAugment()], seed=0)(batch()["image"], *counters(batch())))


def test_what_has_no_epoch_is_moved_unchanged():
    task = Classification(nn.Linear(1, 1), Preprocessing((8, 8), mean=(0.5,) * 3, std=(0.5,) * 3), 6, nn.Identity(),
                          optimization=None)
    evaluation = {key: value for key, value in batch().items() if key != "epoch"}
    assert task.transfer_batch_to_device(evaluation, torch.device("meta"), 0).keys() == evaluation.keys()
