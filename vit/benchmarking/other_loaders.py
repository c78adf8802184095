"""Training loaders of timm and torchvision, with the augmentation of `vit.benchmarking.loaders`."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Dataset

Areas = tuple[float, float]  # smallest and largest area of a random crop, as a fraction of the image
Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of each channel


def timm_photos(root: Path, batch: int, kind: str, crop: Areas, statistics: Statistics) -> Iterable:
    """timm's loader of a folder."""
    from timm.data import create_dataset, create_loader

    full = {"auto_augment": "rand-m9-n2-p1", "re_prob": 0.25, "re_mode": "pixel"} if kind == "full" else {}
    return create_loader(
        create_dataset("", str(root)),
        (3, 224, 224),
        batch,
        is_training=True,
        use_prefetcher=False,
        scale=crop,
        color_jitter=None,
        interpolation="bicubic",
        mean=statistics[0],
        std=statistics[1],
        num_workers=0,
        persistent_workers=False,
        pin_memory=False,
        **full,
    )


def torchvision_photos(root: Path, batch: int, kind: str, crop: Areas, statistics: Statistics) -> Iterable:
    """torchvision's ImageFolder and transforms."""
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import InterpolationMode, RandomResizedCrop

    first = RandomResizedCrop(224, crop, interpolation=InterpolationMode.BICUBIC)
    dataset = ImageFolder(str(root), augmentation(first, kind, statistics))
    return DataLoader(dataset, batch, shuffle=True, drop_last=True)


def torchvision_small(
    data: tuple[np.ndarray, np.ndarray], batch: int, kind: str, crop: Areas, statistics: Statistics
) -> Iterable:
    """torchvision's transforms of images in memory, as of its CIFAR10; `crop` is not used."""
    from torchvision.transforms import RandomCrop

    transform = augmentation(RandomCrop(data[0].shape[1], padding=4), kind, statistics)
    return DataLoader(SmallImages(*data, transform), batch, shuffle=True, drop_last=True)


def augmentation(first: Callable, kind: str, statistics: Statistics) -> Callable:
    """`first`, a flip and normalization by torchvision; with `kind="full"` also RandAugment and random erasing."""
    from torchvision import transforms as T

    policy, erase = [], []
    if kind == "full":
        policy = [T.RandAugment(2, 9, interpolation=T.InterpolationMode.BILINEAR)]
        erase = [T.RandomErasing(0.25, value="random")]
    return T.Compose([first, T.RandomHorizontalFlip(), *policy, T.ToTensor(), T.Normalize(*statistics), *erase])


class SmallImages(Dataset):
    """Images as in torchvision's CIFAR10: an array whose rows are converted to PIL images."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray, transform: Callable):
        self.pixels, self.labels, self.transform = pixels, labels, transform

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, i: int):
        return self.transform(Image.fromarray(self.pixels[i])), int(self.labels[i])


LOADER_PEERS: dict[str, dict[str, Callable[..., Iterable]]] = {  # library -> kind of images -> its loader
    "timm": {"photos": timm_photos},
    "torchvision": {"photos": torchvision_photos, "small": torchvision_small},
}
