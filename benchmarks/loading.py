"""Loading of photos with and without the cache of `data.cache=disk`, against timm, and the least that a photo costs.

Random crop to 224x224 and horizontal flip ("crop"); in addition RandAugment and random erasing ("full"). Everything
runs in this process on one thread, including the augmentation that a run does on the device, with the allocation of
memory of a run, and is measured by processor time. "floor" is reading and decoding a file by each decoder, and reading
its pixels from the cache. `vit bench loader` compares without a cache, also with torchvision and for small images.

    OMP_NUM_THREADS=1 python benchmarks/loading.py [--photos FOLDER] [--rounds 5]
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

import torch
from pairs import in_turns, report, times_as_fast

from vit.benchmarking.loaders import CROP, KINDS, folder_of_photos, our_photos, photo_dataset
from vit.benchmarking.other_loaders import timm_photos
from vit.data import ImageDataset
from vit.data.images.preprocessing_values import IMAGENET_MEAN, IMAGENET_STD
from vit.files.machine import keep_freed_memory

OURS, CACHED, TIMM = "vit", "vit, cached", "timm"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, help="a folder of photos, a folder per class; created by default")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as in a run
    with tempfile.TemporaryDirectory() as cache, folder_of_photos(options.photos) as photos:
        rows = [row for kind in KINDS for row in measure(photos, Path(cache), kind, options)]
        report("loading of photos, one core", rows + measure_floor(photos, Path(cache), options))


def measure(photos: Path, cache: Path, kind: str, options: argparse.Namespace) -> list[dict]:
    loaders = {
        OURS: our_photos(photos, options.batch, kind),
        CACHED: our_photos(photos, options.batch, kind, "disk", cache),
        TIMM: timm_photos(photos, options.batch, kind, CROP, (IMAGENET_MEAN, IMAGENET_STD)),
    }
    seconds = in_turns({name: batch_reader(loader) for name, loader in loaders.items()}, options.rounds,
                       clock=time.process_time)
    return [{"augmentation": kind, "library": name, "images/s": options.batch / statistics.median(times),
             "times as fast as timm": times_as_fast(seconds, name, TIMM)} for name, times in seconds.items()]


def measure_floor(photos: Path, cache: Path, options: argparse.Namespace) -> list[dict]:
    """Reading and decoding alone, of the first batch."""
    dataset = photo_dataset(photos, "disk", cache)
    rows = range(min(options.batch, len(dataset)))
    decoders = [name for name in ("pillow", "simplejpeg", "torchcodec") if name == "pillow" or find_spec(name)]
    programs = {name: partial(decode_all, dataset, rows, name) for name in decoders}
    programs["pixels of the cache"] = lambda: [dataset.store.get(i).sum() for i in rows]
    seconds = in_turns(programs, options.rounds, clock=time.process_time)
    return [{"augmentation": "floor", "library": name, "images/s": len(rows) / statistics.median(times)}
            for name, times in seconds.items()]


def decode_all(dataset: ImageDataset, rows: range, decoder: str) -> None:
    for i in rows:
        dataset.preprocessing.pixels(dataset.split.read(i), decoder=decoder)


def batch_reader(loader: Iterable) -> Callable[[], object]:
    """A function that reads the next batch, epoch after epoch."""
    return partial(next, itertools.chain.from_iterable(itertools.repeat(loader)))


if __name__ == "__main__":
    main()
