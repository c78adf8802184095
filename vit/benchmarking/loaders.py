"""Loading of augmented, normalized training batches, without a model.

Photos are decoded from a folder of classes: random crop to 224x224 and horizontal flip ("crop"); in addition
RandAugment and random erasing ("full"). Small images are in memory: shift by up to 4 pixels and horizontal flip, or the
same "full". All loaders, those of the peers too, run in this process with the memory allocation of a training run. The
time includes the augmentation that a run does on the device.
"""

import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

from vit.benchmarking.other_loaders import LOADER_PEERS
from vit.benchmarking.peers import MissingPeer, check_installed
from vit.benchmarking.photos import make_photos
from vit.benchmarking.results import OURS, Case, Settings
from vit.benchmarking.timing import Program, in_turns
from vit.data import (
    Augment,
    HorizontalFlip,
    ImageDataset,
    PadCrop,
    Preprocessing,
    RandAugment,
    RandomErasing,
    RandomResizedCrop,
    Split,
    TrainBatches,
    folder,
)
from vit.data.images.preprocessing_values import IMAGENET_MEAN, IMAGENET_STD
from vit.data.sample_names import RowNames
from vit.data.splits.split import ReadArray
from vit.files.machine import keep_freed_memory

__all__ = ["LOADER_PEERS", "bench_loader"]
CROP = (0.2, 1.0)  # areas of the random crop
KINDS = ("crop", "full")
SMALL, SMALL_COUNT, CLASSES = 32, 50_000, 10  # pixels, images and classes of the small images
Pixels = tuple[np.ndarray, np.ndarray]  # images (N,H,W,C), labels (N,)


def bench_loader(
    photos: Path | None, settings: Settings, cases: list[Case], progress: Callable[[str], None] = print,
    batches: int = 1, small_count: int = SMALL_COUNT,
) -> None:
    """Measure the loaders of photos and of small images.

    Args:
        photos: a folder with a folder per class, or whose folder `train` has them; None for synthetic photos.
        batches: batches of photos per round; of small images there are 8 times as many.
    """
    keep_freed_memory()  # as in a run
    pixels = small_images(small_count)
    with folder_of_photos(photos) as root:
        data = {"photos": (root, our_photos, "photos", batches),
                "small": (pixels, our_small, f"{SMALL}x{SMALL} in memory", 8 * batches)}
        for batch, (images, (source, ours, name, count)), kind in itertools.product(
            settings.batches, data.items(), KINDS
        ):
            setting = {"images": name, "augmentation": kind, "batch": batch}
            case = Case("loader", setting, "images", count * batch)
            progress(case.key)
            cases.append(case)
            others = peers(images, source, kind, batch, settings, case)
            measure(case, {OURS: partial(ours, source, batch, kind), **others}, count, settings)


@contextmanager
def folder_of_photos(photos: Path | None) -> Iterator[Path]:
    """The folder that has a folder per class: `photos` or its folder `train`; for None, a folder of synthetic photos.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    if photos is None:
        with tempfile.TemporaryDirectory() as folder:
            yield make_photos(Path(folder))
        return
    if not photos.is_dir():
        raise FileNotFoundError(f"{photos} is not a folder of photos")
    yield photos / "train" if (photos / "train").is_dir() else photos


def peers(
    images: str, data: Path | Pixels, kind: str, batch: int, settings: Settings, case: Case
) -> dict[str, Callable[[], Iterable]]:
    """Builders of the loaders of the peers; the case records those that are missing."""
    builders = {}
    for name in settings.against:
        try:
            build = peer_loader(name, images, str(case.setting["images"]))
        except MissingPeer as error:
            case.missing[name] = str(error)
        else:
            builders[name] = partial(build, data, batch, kind, CROP, (IMAGENET_MEAN, IMAGENET_STD))
    return builders


def peer_loader(name: str, images: str, description: str) -> Callable[..., Iterable]:
    """The loader of a library for a kind of images.

    Raises:
        MissingPeer: the library is not installed, or has no such loader.
    """
    check_installed(name)
    if (build := LOADER_PEERS.get(name, {}).get(images)) is None:
        raise MissingPeer(f"{name} has no loader of {description}")
    return build


def measure(case: Case, builders: dict[str, Callable[[], Iterable]], batches: int, settings: Settings) -> None:
    """Measure the seconds until the first batch, then time the rounds; the case records both."""
    programs: dict[str, Program] = {}
    for name, build in builders.items():
        next(iter(build()))  # imports and first calls of libraries do not count
        start = time.perf_counter()
        endless = itertools.chain.from_iterable(itertools.repeat(build()))
        next(endless)
        case.facts[name] = {"first_batch_seconds": time.perf_counter() - start}
        programs[name] = lambda endless=endless: [next(endless) for _ in range(batches)] and None
    in_turns(programs, settings.rounds, settings.read_clock, warmup=0, times=case.times)


class VitBatches:
    """Loading in `vit.data` and augmentation of whole batches as in `vit.tasks`."""

    def __init__(self, dataset: ImageDataset, augment: Augment, batch: int):
        self.loader = TrainBatches(dataset, batch, workers=0)
        self.augment, self.normalize = augment, dataset.preprocessing.normalize

    def __iter__(self) -> Iterator:
        for batch in self.loader:
            yield self.normalize(self.augment(batch["image"], batch["index"], batch["epoch"])), batch["label"]


def full(kind: str) -> list[nn.Module]:
    return [RandAugment(2, 9), RandomErasing(0.25)] if kind == "full" else []


def photo_dataset(root: Path, cache: str | bool = False, cache_dir: Path | None = None) -> ImageDataset:
    split = folder(root, fractions=(0.998, 0.001, 0.001)).splits["train"]
    preprocessing = Preprocessing((224, 224), mean=IMAGENET_MEAN, std=IMAGENET_STD)
    return ImageDataset(split, preprocessing, RandomResizedCrop(CROP), cache, cache_bytes=10**11, cache_dir=cache_dir)


def our_photos(
    root: Path, batch: int, kind: str, cache: str | bool = False, cache_dir: Path | None = None
) -> VitBatches:
    dataset = photo_dataset(root, cache, cache_dir)
    return VitBatches(dataset, Augment([HorizontalFlip(), *full(kind)]), batch)


def our_small(data: Pixels, batch: int, kind: str) -> VitBatches:
    pixels, labels = data
    split = Split(labels, RowNames("image", np.arange(len(labels))), ReadArray(pixels), pixels)
    preprocessing = Preprocessing((SMALL, SMALL), mean=IMAGENET_MEAN, std=IMAGENET_STD)
    return VitBatches(ImageDataset(split, preprocessing), Augment([PadCrop(4), HorizontalFlip(), *full(kind)]), batch)


def small_images(count: int = SMALL_COUNT) -> Pixels:
    """Images of noise, as many and as large as those of CIFAR-10."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (count, SMALL, SMALL, 3), dtype=np.uint8)
    return pixels, random.integers(0, CLASSES, count)
