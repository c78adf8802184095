"""Loading of augmented, normalized training batches on one core, compared with timm and torchvision.

Photos are decoded from a folder (PHOTOS/CLASS/*.jpg; by default synthetic JPEGs of 400x534 are created): random crop to
224x224 and horizontal flip ("crop"); in addition RandAugment (bilinear) and random erasing ("full"). Small images are
in memory: shift by up to 4 pixels and horizontal flip, or the same "full". Everything runs in this process on one
thread, including the augmentation that `vit` does on the device: images/s are those of one core, by processor time.

"vit, cached" reads photos from `data.cache=disk`. The last rows are the least that a photo costs: reading the file and
decoding it by each decoder, and reading its pixels from the cache.

    python benchmarks/loading.py
    python benchmarks/loading.py --photos ~/photos --rounds 9
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from pairs import in_turns, report, times_as_fast
from PIL import Image
from timm.data import create_dataset, create_loader
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode

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
from vit.data.sample_names import RowNames
from vit.data.split import ReadArray

OURS, CACHED = "vit", "vit, cached"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CROP = (0.2, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, help="a folder of photos, a folder per class; created by default")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=1, help="photo batches per round; 8 times as many small ones")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as made:
        photos = options.photos or make_photos(Path(made))
        for kind in ("crop", "full"):
            loaders = {
                OURS: our_photos(photos, options.batch, kind),
                CACHED: our_photos(photos, options.batch, kind, cache="disk", cache_dir=Path(made) / "cache"),
                "timm": timm_photos(photos, options.batch, kind),
                "torchvision": torchvision_photos(photos, options.batch, kind),
            }
            rows += measure("photos", kind, loaders, options.batches, options)
        rows += measure_floor(photos, Path(made) / "cache", options)
    pixels, labels = small_images()
    for kind in ("crop", "full"):
        loaders = {
            OURS: our_small(pixels, labels, options.batch, kind),
            "torchvision": torchvision_small(pixels, labels, options.batch, kind),
        }
        rows += measure("50,000 x 32x32 in memory", kind, loaders, 8 * options.batches, options)
    report("loading, one core", rows)


def measure(
    images: str, kind: str, loaders: dict[str, Iterable], batches: int, options: argparse.Namespace
) -> list[dict]:
    readers = {name: batch_reader(loader, batches) for name, loader in loaders.items()}
    seconds = in_turns(readers, options.rounds, clock=time.process_time)
    rate = {name: batches * options.batch / statistics.median(times) for name, times in seconds.items()}
    return [
        {
            "images": images,
            "augmentation": kind,
            "library": name,
            "images/s": rate[name],
            **{f"{ours} is times as fast": None if name in (OURS, CACHED) else times_as_fast(seconds, ours, name)
               for ours in (OURS, CACHED) if ours in seconds},
        }
        for name in loaders
    ]


def measure_floor(photos: Path, cache: Path, options: argparse.Namespace) -> list[dict]:
    """Reading and decoding alone, of the first batch."""
    dataset = photo_dataset(photos, cache="disk", cache_dir=cache)
    names, read = range(min(options.batch, len(dataset))), dataset.split.read
    decoders = [name for name in ("pillow", "simplejpeg", "torchcodec") if name == "pillow" or find_spec(name)]
    programs = {name: partial(decode_all, dataset, names, name) for name in decoders}
    programs["pixels of the cache"] = lambda: [dataset.store.get(i).sum() for i in names]
    seconds = in_turns(programs, options.rounds, clock=time.process_time)
    kilobytes = sum(len(read(i)) for i in names) / len(names) / 1e3
    cached = sum(dataset.store.get(i).nbytes for i in names) / len(names) / 1e3
    return [
        {
            "images": f"photos, {cached if name.startswith('pixels') else kilobytes:.0f} kB",
            "augmentation": "floor",
            "library": name,
            "images/s": len(names) / statistics.median(times),
        }
        for name, times in seconds.items()
    ]


def decode_all(dataset: ImageDataset, names: range, decoder: str) -> None:
    for i in names:
        dataset.preprocessing.pixels(dataset.split.read(i), decoder=decoder)


def batch_reader(loader: Iterable, batches: int) -> Callable[[], None]:
    """A function that reads the next batches, epoch after epoch."""
    endless = itertools.chain.from_iterable(itertools.repeat(loader))

    def read() -> None:
        for _ in range(batches):
            next(endless)

    return read


class OurBatches:
    """Loading in `vit.data` and augmentation of whole batches in `vit.tasks`."""

    def __init__(self, dataset: ImageDataset, augment: Augment, batch: int):
        self.loader = TrainBatches(dataset, batch, workers=0)
        self.augment, self.normalize = augment, dataset.preprocessing.normalize

    def __iter__(self):
        for batch in self.loader:
            yield self.normalize(self.augment(batch["image"], batch["index"], batch["epoch"])), batch["label"]


def photo_dataset(photos: Path, cache: str | bool = False, cache_dir: Path | None = None) -> ImageDataset:
    split = folder(photos, fractions=(0.998, 0.001, 0.001)).splits["train"]
    preprocessing = Preprocessing((224, 224), mean=MEAN, std=STD)
    return ImageDataset(split, preprocessing, RandomResizedCrop(CROP), cache, cache_bytes=10**11, cache_dir=cache_dir)


def our_photos(
    photos: Path, batch: int, kind: str, cache: str | bool = False, cache_dir: Path | None = None
) -> OurBatches:
    steps = [HorizontalFlip(), *([RandAugment(2, 9), RandomErasing(0.25)] if kind == "full" else [])]
    return OurBatches(photo_dataset(photos, cache, cache_dir), Augment(steps), batch)


def timm_photos(photos: Path, batch: int, kind: str) -> Iterable:
    full = {"auto_augment": "rand-m9-n2-p1", "re_prob": 0.25, "re_mode": "pixel"} if kind == "full" else {}
    return create_loader(
        create_dataset("", str(photos)),
        (3, 224, 224),
        batch,
        is_training=True,
        use_prefetcher=False,
        scale=CROP,
        color_jitter=None,
        interpolation="bicubic",
        mean=MEAN,
        std=STD,
        num_workers=0,
        persistent_workers=False,
        pin_memory=False,
        **full,
    )


def torchvision_photos(photos: Path, batch: int, kind: str) -> Iterable:
    crop = T.RandomResizedCrop(224, CROP, interpolation=InterpolationMode.BICUBIC)
    return DataLoader(ImageFolder(str(photos), torchvision_steps(crop, kind)), batch, shuffle=True, drop_last=True)


def our_small(pixels: np.ndarray, labels: np.ndarray, batch: int, kind: str) -> OurBatches:
    split = Split(labels, RowNames("image", np.arange(len(labels))), ReadArray(pixels), pixels)
    preprocessing = Preprocessing((32, 32), mean=MEAN, std=STD)
    steps = [PadCrop(4), HorizontalFlip(), *([RandAugment(2, 9), RandomErasing(0.25)] if kind == "full" else [])]
    return OurBatches(ImageDataset(split, preprocessing), Augment(steps), batch)


def torchvision_small(pixels: np.ndarray, labels: np.ndarray, batch: int, kind: str) -> Iterable:
    steps = torchvision_steps(T.RandomCrop(32, padding=4), kind)
    return DataLoader(SmallImages(pixels, labels, steps), batch, shuffle=True, drop_last=True)


def torchvision_steps(crop: torch.nn.Module, kind: str) -> T.Compose:
    policy, erase = [], []
    if kind == "full":
        policy = [T.RandAugment(2, 9, interpolation=InterpolationMode.BILINEAR)]
        erase = [T.RandomErasing(0.25, value="random")]
    return T.Compose([crop, T.RandomHorizontalFlip(), *policy, T.ToTensor(), T.Normalize(MEAN, STD), *erase])


class SmallImages(Dataset):
    """Images as in torchvision's CIFAR10: an array whose rows are converted to PIL images."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray, steps: T.Compose):
        self.pixels, self.labels, self.steps = pixels, labels, steps

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, i: int):
        return self.steps(Image.fromarray(self.pixels[i])), int(self.labels[i])


def small_images(count: int = 50_000) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), random.integers(0, 10, count)


def make_photos(root: Path, count: int = 200) -> Path:
    """JPEGs of noise at several scales, with smooth and rough regions as in photos."""
    random = np.random.default_rng(0)
    for i in range(count):
        sizes = [(400 >> shift, 534 >> shift, 3) for shift in (7, 5, 3, 1)]
        layers = [scaled(random.normal(0, 30 / 2**level, size)) for level, size in enumerate(sizes)]
        picture = Image.fromarray(np.clip(sum(layers) + 128, 0, 255).astype(np.uint8))
        path = root / f"class_{i % 4}" / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        picture.save(path, quality=90)
    return root


def scaled(noise: np.ndarray) -> np.ndarray:
    channels = [Image.fromarray(noise[..., c].astype(np.float32)) for c in range(3)]
    return np.stack([channel.resize((534, 400), Image.Resampling.BICUBIC) for channel in channels], axis=-1)


if __name__ == "__main__":
    main()
