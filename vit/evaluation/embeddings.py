"""The vectors that a model makes of samples, with their names and labels, and the files they are kept in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from vit.data import BadImage, ImageDataset, Split, TextDataset
from vit.evaluation.progress import Progress
from vit.inference import decode_ahead, named_images
from vit.inference.features import Featurizer
from vit.inference.images import File

FORMS = (".npz", ".parquet")


@dataclass(frozen=True)
class Embeddings:
    """`features` (N,D) float32; `names` and `labels` (N,), -1 for none; what could not be read."""

    features: np.ndarray
    names: list[str]
    labels: np.ndarray
    unreadable: list[BadImage] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.names)


def embed_split(
    featurizer: Featurizer, split: Split, batch_size: int = 64, on_bad_sample: str = "error",
    progress: Progress | None = None,
) -> Embeddings:
    """Every image of a split, in order, prepared as the model wants it.

    Raises:
        BadImage: an image cannot be read, and `on_bad_sample` is not skip.
    """
    dataset = ImageDataset(split, featurizer.preprocessing, cache=False, on_bad_sample=on_bad_sample)

    def decode(i: int) -> tuple[str, int, torch.Tensor | BadImage]:
        sample = dataset[i]
        bad = [BadImage(*entry) for entry in sample.get("bad", ())]
        return split.names[i], int(split.labels[i]), bad[0] if bad else sample["image"][0]

    return embed(featurizer, decode_ahead(range(len(split)), decode, batch_size), batch_size, on_bad_sample, progress)


def embed_files(
    featurizer: Featurizer, paths: Sequence[str | File], batch_size: int = 64, on_bad_sample: str = "error",
    progress: Progress | None = None,
) -> Embeddings:
    """Image files and folders, without labels."""

    def decode(item: tuple[str, File]) -> tuple[str, int, torch.Tensor | BadImage]:
        name, path = item
        try:
            return name, -1, featurizer.preprocessing.image(path, name)
        except BadImage as error:
            return name, -1, error

    batches = decode_ahead(named_images(paths), decode, batch_size)
    return embed(featurizer, batches, batch_size, on_bad_sample, progress)


def embed(
    featurizer: Featurizer,
    batches: Iterator[list[tuple[str, int, torch.Tensor | BadImage]]],
    batch_size: int,
    on_bad_sample: str,
    progress: Progress | None,
) -> Embeddings:
    """Batches of (name, label, image or why there is none) -> the vectors of all that could be read."""
    parts, names, labels, unreadable = [], [], [], []
    samples = (sample for batch in batches for sample in batch)
    while batch := list(islice(samples, batch_size)):
        bad = [image for *_, image in batch if isinstance(image, BadImage)]
        if bad and on_bad_sample == "error":
            raise bad[0]
        unreadable += bad
        good = [sample for sample in batch if not isinstance(sample[2], BadImage)]
        if good:
            parts.append(featurizer.of_images(torch.stack([image for *_, image in good])))
        names += [name for name, *_ in good]
        labels += [label for _, label, _ in good]
        if progress:
            progress(len(batch))
    if not parts:
        raise unreadable[0] if unreadable else ValueError("there is nothing to make vectors of")
    return Embeddings(torch.cat(parts).numpy(), names, np.array(labels, dtype=np.int64), unreadable)


def embed_texts(
    featurizer: Featurizer, dataset: TextDataset, batch_size: int = 64, progress: Progress | None = None
) -> Embeddings:
    """Every text of a split, or pair of texts, in order."""
    parts = []
    for rows in np.array_split(np.arange(len(dataset)), range(batch_size, len(dataset), batch_size)):
        parts.append(featurizer.of_texts(dataset.inputs.batch(rows)))
        if progress:
            progress(len(rows))
    split = dataset.split
    return Embeddings(torch.cat(parts).numpy(), [split.names[i] for i in range(len(split))], dataset.labels.numpy())


def check_form(path: Path) -> None:
    if path.suffix not in FORMS:
        raise ValueError(f"{path}: vectors are saved as {' or '.join(FORMS)}, not as {path.suffix or 'a file without'}")


def save(path: Path, parts: dict[str, Embeddings], classes: Sequence[str] = ()) -> None:
    """All splits in one file, by its ending.

    .npz: features (N,D), names, splits and labels (N,) (numbers, -1 for none), classes. .parquet: a row per sample
    with name, split, label (its class name, or null) and feature (a list of D numbers).
    """
    check_form(path)
    features = np.concatenate([part.features for part in parts.values()])
    names = [name for part in parts.values() for name in part.names]
    labels = np.concatenate([part.labels for part in parts.values()])
    splits = [split for split, part in parts.items() for _ in part.names]
    if path.suffix == ".npz":
        np.savez(path, features=features, names=np.array(names, dtype=str), splits=np.array(splits, dtype=str),
                 labels=labels, classes=np.array(classes, dtype=str))
        return
    import pyarrow
    import pyarrow.parquet

    values = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(features.ravel()), features.shape[1])
    said = [classes[label] if label >= 0 else None for label in labels]
    table = {
        "name": pyarrow.array([name.encode("utf-8", "replace").decode() for name in names], pyarrow.string()),
        "split": pyarrow.array(splits, pyarrow.string()),
        "label": pyarrow.array(said, pyarrow.string()),
        "feature": values,
    }
    pyarrow.parquet.write_table(pyarrow.table(table), path)
