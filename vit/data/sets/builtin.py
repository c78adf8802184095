"""Built-in data sets: digits is part of scikit-learn, the others are read from `root` or downloaded."""

import importlib.util
from pathlib import Path

import numpy as np

from vit.data.errors import DataError
from vit.data.formats.idx_cifar import cifar_batches, read_idx
from vit.data.image_sources.folders import folder
from vit.data.image_sources.parquet_splits import parquet_splits
from vit.data.source import Source
from vit.data.splits.names import match_splits
from vit.data.splits.split import Split, array_split
from vit.data.splits.splitting import hold_out, with_validation
from vit.messages import number_of

DIGITS_FILE = "datasets/data/digits.csv.gz"  # in the package sklearn
FASHION = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def digits(split_seed: int = 0) -> Source:
    """1,797 handwritten digits of 8x8 pixels (UCI, part of scikit-learn), split into 1257 / 180 / 360, stratified."""
    images, labels = digits_of_scikit_learn()
    pixels = ((images.reshape(-1, 8, 8) * 255 + 8) // 16).astype(np.uint8)
    whole = array_split(pixels, labels, "digits")
    rest, test = hold_out(labels, 360, split_seed)
    splits = with_validation({"train": whole.take(rest), "test": whole.take(test)}, 180, 0.0, split_seed + 1)
    return Source("digits", [str(i) for i in range(10)], splits)


def digits_of_scikit_learn() -> tuple[np.ndarray, np.ndarray]:
    """Images (N,64) with values 0 to 16 and labels (N,), as `sklearn.datasets.load_digits` returns them.

    The file is read directly, because the import of scikit-learn takes a second.
    """
    spec = importlib.util.find_spec("sklearn")
    folders = [] if spec is None else spec.submodule_search_locations or []
    file = next((path for path in (Path(each, DIGITS_FILE) for each in folders) if path.is_file()), None)
    if file is None:  # another release of scikit-learn
        from sklearn.datasets import load_digits

        return load_digits(return_X_y=True)
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1].astype(int)


def mnist(root: str | Path, download: bool = False, val: int = 5000, split_seed: int = 0) -> Source:
    """MNIST: 28x28 grey digits; `val` of the 60,000 training images are held out, 10,000 images are the test split."""
    return _named("mnist", root, download, val, split_seed, [str(i) for i in range(10)], ("MNIST", "MNIST"))


def fashion_mnist(root: str | Path, download: bool = False, val: int = 5000, split_seed: int = 0) -> Source:
    """Fashion-MNIST: 28x28 grey garments, split as `mnist`."""
    return _named("fashion_mnist", root, download, val, split_seed, FASHION, ("FashionMNIST", "FashionMNIST"))


def cifar10(root: str | Path, download: bool = False, val: int = 5000, split_seed: int = 0) -> Source:
    """CIFAR-10: 32x32 colour images; `val` of 50,000 training images are held out, 10,000 images are the test split."""
    return _named("cifar10", root, download, val, split_seed, CIFAR10, ("cifar-10-batches-py", "CIFAR10"))


def cifar100(root: str | Path, download: bool = False, val: int = 5000, split_seed: int = 0) -> Source:
    """CIFAR-100 with its 100 fine classes, split as `cifar10`."""
    return _named("cifar100", root, download, val, split_seed, None, ("cifar-100-python", "CIFAR100"))


def imagenet(root: str | Path, val: float = 0.02, split_seed: int = 0) -> Source:
    """ImageNet-1k as class folders under train/ and val/ (torchvision's layout) or as Parquet; it cannot be downloaded.

    The 50,000 validation images are the test split, since the official test set has no labels; `val` is the fraction of
    training images that are held out. With train/ alone, a ninth of its images are the test split.

    Raises:
        DataError: `val` is not a fraction.
    """
    if not 0 <= val < 1:
        raise DataError(f"data.val={val} must be a fraction of the training images, at least 0 and below 1")
    root = _existing(root, "imagenet")
    parquet = parquet_splits(root, None)
    source = Source("imagenet", *parquet) if parquet else _class_folders(root, val, split_seed)
    splits = dict(source.splits)
    if "val" in splits and "test" not in splits:
        splits["test"] = splits.pop("val")
    return Source("imagenet", source.classes, with_validation(splits, None, val, split_seed), source.left_out)


def _class_folders(root: Path, val: float, seed: int) -> Source:
    """Class folders; of train/ and test/ without val/, the fraction `val` of the training images is held out."""
    stated = match_splits(root, [entry.name for entry in root.iterdir() if entry.is_dir()])
    if set(stated) == {"train", "test"}:
        return folder(root, (1 - val, val, 0.0), seed)
    return folder(root, split_seed=seed)


def _named(
    name: str, root: str | Path, download: bool, val: int, seed: int, classes: list[str] | None, layout: tuple[str, str]
) -> Source:
    """Reads Parquet, IDX or torchvision's layout, whichever exists."""
    folder_name, torchvision_name = layout
    root = _fetched(root, torchvision_name) if download else _existing(root, name)
    parquet = parquet_splits(root, classes)
    if parquet:
        classes, splits = parquet
    elif "MNIST" in folder_name:
        splits = _idx_splits(name, root, folder_name)
    else:
        classes, splits = cifar_batches(name, root, folder_name, classes)
    return Source(name, classes, with_validation(splits, val, 0.0, seed))


def _idx_splits(name: str, root: Path, folder_name: str) -> dict[str, Split]:
    directories = [root, root / "raw", root / folder_name / "raw", root / folder_name]
    splits = {}
    for key, stem in (("train", "train"), ("test", "t10k")):
        images, labels = (
            read_idx(_first(name, directories, f"{stem}-{part}")) for part in ("images-idx3-ubyte", "labels-idx1-ubyte")
        )
        if len(images) != len(labels):
            raise DataError(f"{name}: {stem} has {number_of(len(images), 'image')} but "
                            f"{number_of(len(labels), 'label')}; download them again")
        splits[key] = array_split(images, labels, f"{name} {key}")
    return splits


def _first(name: str, directories: list[Path], stem: str) -> Path:
    for directory in directories:
        for candidate in (directory / stem, directory / f"{stem}.gz", directory / stem.replace("-idx", ".idx")):
            if candidate.is_file():
                return candidate
    raise FileNotFoundError(
        f"{name}: there is neither {stem}[.gz] nor train.parquet in {directories[0]}; "
        "set data.root to their folder, or data.download=true"
    )


def _existing(root: str | Path, name: str) -> Path:
    root = Path(root).expanduser()
    if root.is_file():
        raise DataError(f"data.root: {root} is a file, not a folder; give the folder of {name}")
    if not root.is_dir():
        raise FileNotFoundError(f"{name}: the folder {root} does not exist; set data.root to the folder of {name}")
    return root


def _fetched(root: str | Path, torchvision_name: str) -> Path:
    """Downloads and verifies the set through torchvision, unless its files exist."""
    from torchvision import datasets

    root = Path(root).expanduser()
    try:
        for train in (True, False):
            getattr(datasets, torchvision_name)(root, train=train, download=True)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"download of {torchvision_name} to {root} failed ({error}); download it manually and set data.root"
        ) from error
    return root
