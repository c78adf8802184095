"""Cached images: the same pixels as uncached ones, whatever happens to the cache."""

import errno
import logging
import multiprocessing
import os
import pickle
import signal
import time

import numpy as np
import pytest
import torch
from filelock import FileLock
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor, resize

from vit.data import (
    BadImage,
    DataError,
    DeviceImages,
    ImageDataset,
    Preprocessing,
    RandomCrop,
    RandomResizedCrop,
    folder,
)
from vit.data.identity import fingerprint, pixel_fingerprint
from vit.data.images import image_cache
from vit.data.images.image_cache import DiskCache, default_folder
from vit.data.images.prepared import Prepared
from vit.files import atomic

P32 = Preprocessing(size=32)
CROP = RandomResizedCrop((0.2, 1.0))
KEYS = [(0, 0), (1, 3), (2, 5)]


@pytest.fixture
def split(photos, tmp_path):
    """Twelve images that may be changed, in a folder of their own."""
    rng = np.random.default_rng(0)
    for number, path in enumerate(sorted(photos.rglob("*.jpg"))):
        copy = tmp_path / "photos" / path.parent.name / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
        Image.fromarray(rng.integers(0, 256, (40, 20 + number, 3), dtype=np.uint8)).save(copy.with_suffix(".png"))
    return folder(tmp_path / "photos", fractions=(1, 0, 0)).splits["train"]


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(image_cache, "ROWS", 5)


def dataset(split, tmp_path, cache="disk", sizing=CROP, preprocessing=P32, **options):
    return ImageDataset(split, preprocessing, sizing, cache, cache_dir=tmp_path / "cache", **options)


def images(data):
    return data.__getitems__([(epoch, i) for epoch in (0, 1) for i in range(len(data))])["image"]


def files(tmp_path):
    return sorted((tmp_path / "cache").glob("*.images"))


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("resampling", ["torch", "pillow"])
@pytest.mark.parametrize("sizing", [CROP, RandomCrop(), None], ids=["resized", "crop", "none"])
def test_cached_pixels_are_those_that_are_prepared_on_request(split, tmp_path, sizing, resampling, mode):
    statistics = {} if mode == "RGB" else {"mean": (0.5,), "std": (0.5,)}
    preprocessing = Preprocessing(size=(32, 24), mode=mode, **statistics)
    options = {"sizing": sizing, "resampling": resampling, "preprocessing": preprocessing}
    disk, memory = (dataset(split, tmp_path, cache, **options) for cache in ("disk", "memory"))
    nothing = dataset(split, tmp_path, "memory", cache_bytes=0, **options)
    assert nothing.store.get(0) is None and disk.store.get(0) is not None and len(files(tmp_path)) == 3
    expected = images(nothing)
    assert torch.equal(images(disk), expected) and torch.equal(images(memory), expected)
    assert torch.equal(images(pickle.loads(pickle.dumps(disk))), expected)
    if sizing is None:  # the preprocessing of evaluation, whether cached or not
        assert torch.equal(expected, images(dataset(split, tmp_path, False, **options)))


@pytest.mark.parametrize(("cache", "stage"), [("disk", "cache"), ("memory", "cache"), ("auto", "images")])
def test_filling_is_reported_until_the_last_image(split, tmp_path, cache, stage):
    reports = []
    dataset(split, tmp_path, cache, fill=False).fill(lambda *report: reports.append(report))
    assert reports[-1] == (stage, len(split), len(split)) and all(0 < done <= total for _, done, total in reports)
    (tmp_path / "cache").mkdir(exist_ok=True)
    for path in files(tmp_path)[1:]:  # the first file is not written again
        path.unlink()
    reports.clear()
    dataset(split, tmp_path, cache, fill=False).fill(lambda *report: reports.append(report))
    assert reports[-1] == (stage, len(split), len(split))


def test_images_are_shrunk_until_an_average_crop_has_the_input_size(split):
    for sizing, least in ((CROP, 42), (RandomResizedCrop((0.08, 1.0)), 44), (RandomCrop(), 32)):
        prepared = Prepared(split, P32, sizing)
        assert prepared.min_size == (least, least)
        for i in range(len(split)):
            before, after = P32.pixels(split.read(i)), prepared(i)
            assert min(after.shape[:2]) == min(least, *before.shape[:2])
            size = list(after.shape[:2])
            expected = pil_to_tensor(resize(Image.fromarray(before), size, interpolation=3)).permute(1, 2, 0)
            assert np.abs(after.astype(int) - expected.numpy()).max() <= 1
    assert Prepared(split, P32.replace(size=(16, 32)), RandomCrop(), side=20).min_size == (20, 40)


def test_a_changed_image_or_preprocessing_is_prepared_again(split, tmp_path):
    before, names = images(dataset(split, tmp_path)), files(tmp_path)
    dataset(split, tmp_path)
    dataset(split, tmp_path, preprocessing=P32.replace(mean=(0.1, 0.1, 0.1)))  # does not change stored pixels
    assert files(tmp_path) == names
    Image.new("RGB", (50, 60), (1, 2, 3)).save(split.location(7), "PNG")
    after = images(dataset(split, tmp_path))
    assert len(files(tmp_path)) == len(names) + 1  # of the three files, one has another content
    changed = (before != after).flatten(1).any(1).reshape(2, -1).any(0)
    assert changed.nonzero().flatten().tolist() == [7] and after[7, :, 0, 0].tolist() == [1, 2, 3]
    for options in ({"sizing": RandomCrop()}, {"resampling": "pillow"}, {"cache_side": 36}):
        count = len(files(tmp_path))
        dataset(split, tmp_path, **options)
        assert len(files(tmp_path)) == count + 3


@pytest.mark.parametrize(("ending", "options"), [
    ("bmp", {}), ("tiff", {}), ("tiff", {"compression": "packbits"}), ("ppm", {}), ("png", {"compress_level": 0}),
    ("gif", {}), ("webp", {"lossless": True}), ("jpg", {"quality": 100}),
])
def test_an_edit_in_the_middle_is_prepared_again_also_with_the_same_size_and_time(tmp_path, ending, options):
    """Of many formats neither the size nor the first and last 8 KiB show it."""
    path, pixels = tmp_path / "photos" / "cat" / f"0.{ending}", np.random.default_rng(0).integers(0, 256, (120, 120, 3))
    for folder_of_class in ("cat", "dog"):
        (tmp_path / "photos" / folder_of_class).mkdir(parents=True)
    Image.new("RGB", (120, 120)).save(tmp_path / "photos" / "dog" / "0.png")
    sizes = []
    for value in (0, 255):
        pixels[50:60, 50:60] = value
        Image.fromarray(pixels.astype(np.uint8)).save(path, **options)
        os.utime(path, (1e9, 1e9))
        sizes.append(path.stat().st_size)
        dataset(folder(tmp_path / "photos", fractions=(1, 0, 0)).splits["train"], tmp_path)
        assert len(files(tmp_path)) == len(sizes)
    assert ending not in ("bmp", "ppm") or sizes[0] == sizes[1] > 40_000


def test_a_damaged_or_deleted_file_changes_no_pixel(split, tmp_path):
    expected = images(dataset(split, tmp_path))
    first, second, third = files(tmp_path)
    first.write_bytes(first.read_bytes()[:-1])
    second.write_bytes(b"")
    opened = dataset(split, tmp_path)
    assert torch.equal(images(opened), expected) and all(path.stat().st_size > 100 for path in files(tmp_path))
    later = dataset(split, tmp_path)
    third.unlink()
    assert torch.equal(images(opened), expected) and torch.equal(images(later), expected)


@pytest.mark.parametrize("sizing", [CROP, None], ids=["resized", "none"])
def test_a_flipped_bit_changes_no_pixel(split, tmp_path, sizing, caplog):
    """Of the pixels, and of each field of the index but those whose change makes the file incomplete."""
    expected = images(dataset(split, tmp_path, sizing=sizing))
    path = files(tmp_path)[0]
    whole = path.read_bytes()
    count = int.from_bytes(whole[-16:-8], "little")
    index = len(whole) - 16 - 40 * count
    for position in (0, index // 2, index - 1, index, index + 8, index + 32, index + 40 + 1, len(whole) - 16):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        opened = dataset(split, tmp_path, sizing=sizing)
        assert torch.equal(images(opened), expected), f"byte {position} of {len(whole)}"
        dataset(split, tmp_path, sizing=sizing)
        assert path.read_bytes() == whole  # stored again
    assert caplog.text.count(f"cache: {path} is damaged") == 6 and "next run" in caplog.text


@pytest.mark.parametrize("pread", [True, False], ids=["pread", "seek"])  # Windows has no pread
def test_a_file_that_is_cut_short_while_it_is_used_changes_no_pixel(split, tmp_path, caplog, monkeypatch, pread):
    """In a process of its own: a memory map of such a file ends the process with SIGBUS."""
    if not pread:
        monkeypatch.delattr(os, "preadv")
    expected = images(dataset(split, tmp_path))
    opened = dataset(split, tmp_path)
    assert opened.store.get(0) is not None
    for path in files(tmp_path):
        os.truncate(path, 100)
    reading = multiprocessing.get_context("fork").Process(target=images, args=(opened,))
    reading.start()
    reading.join(60)
    assert reading.exitcode == 0
    assert torch.equal(images(opened), expected) and opened.store.get(1) is None
    assert caplog.text.count("is damaged") == 1  # the other files were not open
    assert torch.equal(images(dataset(split, tmp_path)), expected)


def test_a_complete_cache_needs_no_writable_folder(split, tmp_path, monkeypatch):
    """Such as one on a read-only file system, which also has the temporary file of a killed process."""
    expected = images(dataset(split, tmp_path))
    (tmp_path / "cache" / f".other.{atomic.host_name()}.{2**22}.tmp").touch()

    def refused(*args, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for name in ("utime", "unlink", "mkdir"):
        monkeypatch.setattr(os, name, refused)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    assert torch.equal(images(dataset(split, tmp_path)), expected)
    with pytest.raises(DataError, match="cache cannot be written"):
        dataset(split, tmp_path, preprocessing=P32.replace(crop_pct=0.9))


def test_files_of_another_user_are_used(split, tmp_path, monkeypatch, caplog):
    """The owner alone may set the times of a file."""
    expected = images(dataset(split, tmp_path))

    def refused(*args):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "utime", refused)
    caplog.set_level(logging.INFO)
    assert torch.equal(images(dataset(split, tmp_path)), expected)
    assert f"all {len(split)} images are in" in caplog.text


def test_the_limit_is_announced_and_bounds_the_folder(split, tmp_path, caplog):
    caplog.set_level(logging.INFO, "vit")
    expected = images(dataset(split, tmp_path))
    size = sum(path.stat().st_size for path in files(tmp_path))
    assert "cache: 12 images of about" in caplog.text
    other = dataset(split, tmp_path, sizing=RandomCrop(), cache_bytes=size)
    assert "the limit of 0.00 GB is reached after 0 of 12 images" in caplog.text  # the other files are in use
    assert len(files(tmp_path)) == 3 and images(other).shape == expected.shape
    for path in files(tmp_path):
        os.utime(path, (0, 0))
    dataset(split, tmp_path, sizing=RandomCrop(), cache_bytes=size)
    assert sum(path.stat().st_size for path in files(tmp_path)) <= size
    assert all(path.stat().st_mtime > 0 for path in files(tmp_path))
    assert torch.equal(images(dataset(split, tmp_path, cache_bytes=size)), expected)


def test_only_as_many_old_files_are_deleted_as_are_in_the_way(split, tmp_path):
    """The longest unused ones."""
    images(dataset(split, tmp_path, sizing=RandomCrop()))
    old = files(tmp_path)
    for number, path in enumerate(old):
        os.utime(path, (number + 1, number + 1))
    expected = images(dataset(split, tmp_path / "other"))
    needed = sum(path.stat().st_size for path in files(tmp_path / "other"))
    limit = needed + sum(path.stat().st_size for path in old[1:])
    assert torch.equal(images(dataset(split, tmp_path, cache_bytes=limit)), expected)
    assert [path.exists() for path in old] == [False, True, True]


def test_a_full_disk_leaves_the_rest_uncached(split, tmp_path, monkeypatch, caplog):
    expected, number = images(dataset(split, tmp_path)), iter(range(9))
    for path in files(tmp_path):
        path.unlink()
    fsync = os.fsync

    def full(descriptor):
        if next(number) == 2:  # the folder is synchronised after each file
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(atomic.os, "fsync", full)
    data = dataset(split, tmp_path)
    assert "No space left on device" in caplog.text and len(files(tmp_path)) == 1
    assert not list((tmp_path / "cache").glob("*.tmp")) and torch.equal(images(data), expected)


def test_unreadable_images_are_as_without_a_cache(split, tmp_path):
    split.location(3).write_bytes(b"not an image")
    with pytest.raises(BadImage, match="cannot be opened"):
        dataset(split, tmp_path)
    for _ in range(2):
        data = dataset(split, tmp_path, on_bad_sample="skip")
        batch = data.__getitems__(KEYS)
        assert batch["index"].tolist() == [0, 5] and batch["bad"][0][0] == split.names[3]


def test_a_folder_that_cannot_be_written_is_named(split, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(DataError, match="data.cache_dir: .*cache cannot be written .*data.cache=memory"):
        dataset(split, tmp_path)


def test_the_folder_is_not_beside_the_photos(monkeypatch, tmp_path):
    monkeypatch.setenv("VIT_CACHE", str(tmp_path))
    assert default_folder() == tmp_path / "images"
    monkeypatch.delenv("VIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_folder() == tmp_path / "xdg" / "vit" / "images"


def fill(split, folder, seconds):
    """Fills a cache, and before each image waits for `seconds`."""
    class Slow(Prepared):
        def __call__(self, i):
            time.sleep(seconds)
            return super().__call__(i)

    image_cache.ROWS = 5
    DiskCache(Slow(split, P32, CROP), folder, 10**9)


def test_killed_and_concurrent_processes_leave_whole_files(split, tmp_path):
    context, target = multiprocessing.get_context("fork"), tmp_path / "cache"
    killed = context.Process(target=fill, args=(split, target, 0.15))
    killed.start()
    deadline = time.monotonic() + 60
    while not files(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    killed.join()
    assert 1 <= len(files(tmp_path)) < 3
    both = [context.Process(target=fill, args=(split, target, 0.0)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0] and len(files(tmp_path)) == 3
    assert not list(target.glob(".*.tmp"))
    nothing = dataset(split, tmp_path, "memory", cache_bytes=0)
    assert torch.equal(images(dataset(split, tmp_path)), images(nothing))


def test_images_are_stored_on_a_file_system_without_locks(split, tmp_path, monkeypatch, caplog):
    def unsupported(*args):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr("fcntl.flock", unsupported)
    dataset(split, tmp_path)
    assert len(files(tmp_path)) == 3 and "every epoch" not in caplog.text


def test_a_file_that_another_process_writes_is_waited_for(split, tmp_path):
    dataset(split, tmp_path)
    path = files(tmp_path)[0]
    path.unlink()
    lock = FileLock(path.with_suffix(".lock"))
    with lock:
        waiting = multiprocessing.get_context("fork").Process(target=fill, args=(split, tmp_path / "cache", 0.0))
        waiting.start()
        time.sleep(0.3)
        assert waiting.is_alive() and not path.exists()
    waiting.join(60)
    assert waiting.exitcode == 0 and path.exists()


@pytest.mark.parametrize("preprocessing", [P32, P32.replace(mode="L", mean=(0.5,), std=(0.5,)),
                                           P32.replace(size=(24, 40), resize="pad"), P32.replace(crop_pct=0.9)])
@pytest.mark.parametrize("options", [
    {"sizing": CROP, "cache": True}, {"cache": True}, {"cache": "memory"}, {"cache": "disk"}, "device"])
def test_evaluation_reads_cached_images(split, tmp_path, preprocessing, options):
    if options == "device":
        dataset = DeviceImages(split, preprocessing, cache_bytes=10**6)
    else:
        dataset = ImageDataset(split, preprocessing, cache_dir=tmp_path / "cache", **options)
    found = dataset.cached_split()
    expected = [preprocessing.image(split.read(i), split.names[i]) for i in range(len(split))]
    resized_again = preprocessing.crop_pct < 1 and "sizing" not in options
    if not resized_again:
        for path in (tmp_path / "photos").rglob("*.*"):
            path.unlink()
    assert (found is split) == resized_again
    assert all(torch.equal(preprocessing.image(found.read(i), found.names[i]), expected[i]) for i in range(len(split)))
    assert torch.equal(preprocessing.image(found.take(np.array([5, 2])).read(0)), expected[5])


@pytest.mark.parametrize("options", [
    {"cache": False}, {"sizing": CROP, "cache": "memory"},  # shrunk images
    {"sizing": CROP, "cache": True, "preprocessing": P32.replace(draft=True)}])
def test_evaluation_reads_files_where_the_cache_has_other_pixels(split, options):
    options = {"preprocessing": P32, **options}
    assert ImageDataset(split, **options).cached_split() is split


def test_evaluation_reads_images_that_are_not_cached(split):
    path = split.location(3)
    content = path.read_bytes()
    for options in ({"cache": True}, {"sizing": CROP, "cache": True}, {"cache": "memory", "cache_bytes": 9000}):
        path.write_bytes(b"no image")
        dataset = ImageDataset(split, P32, on_bad_sample="skip", **options)
        with pytest.raises(BadImage, match="cannot be opened"):
            P32.image(dataset.cached_split().read(3), split.names[3])
        path.write_bytes(content)
        whole = [P32.image(split.read(i)) for i in range(len(split)) if i != 3]
        read = dataset.cached_split().read
        assert all(map(torch.equal, whole, [P32.image(read(i)) for i in range(len(split)) if i != 3]))


def test_the_size_of_the_cache_is_estimated_from_a_few_images():
    class Images:
        """A thousand images, the later the larger."""

        read: list[int] = []

        def __len__(self):
            return 1000

        def __call__(self, i):
            self.read.append(int(i))
            return np.zeros(int(i), np.uint8)

    assert image_cache.announce("memory", Images(), 10**6) == np.mean(Images.read)
    assert len(Images.read) == image_cache.SAMPLED and Images.read[0] == 0 and Images.read[-1] == 999


def test_the_identity_of_pixels(tmp_path):
    """All bytes of arrays and files count, except of JPEG and PNG files, which keep their cached images."""
    jpeg = b"\xff\xd8\xff" + bytes(40_000)
    for content, changed in ((np.zeros((90, 90, 3), np.uint8), None), (b"BM" + bytes(40_000), True), (jpeg, False)):
        edited = bytearray(content) if isinstance(content, bytes) else content.copy()
        edited[len(content) // 2] = 1
        edited = bytes(edited) if isinstance(content, bytes) else edited
        assert (pixel_fingerprint(content) != pixel_fingerprint(edited)) is (changed is not False)
        assert fingerprint(content) == fingerprint(edited)
        if isinstance(content, bytes):
            (tmp_path / "image").write_bytes(content)
            assert pixel_fingerprint(tmp_path / "image") == pixel_fingerprint(content)
    assert pixel_fingerprint(jpeg) == fingerprint(jpeg) and pixel_fingerprint(tmp_path / "none") == ""
