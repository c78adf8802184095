"""Feature vectors of the samples of a data set, with their names and labels, and how they are saved to a file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from vit.data import BadImage, ImageDataset, Split, TextDataset
from vit.evaluation.progress import Progress
from vit.files.outputs import write_output
from vit.inference import decode_ahead, named_images
from vit.inference.features import Featurizer
from vit.inference.image_inputs import File

FILE_TYPES = (".npz", ".parquet")
Sample = tuple[str, int, torch.Tensor | BadImage]  # name, label (-1: none), uint8 image (C,H,W) or why there is none


@dataclass(frozen=True)
class Embeddings:
    """`features` (N,D) float32; `names` and `labels` (N,), -1 without a label; the images that cannot be read."""

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
    """Features of all images of a split, in order, after the model's preprocessing.

    Raises:
        BadImage: an image cannot be read and `on_bad_sample` is "error", or no image can be read.
        ValueError: the split is empty.
    """
    dataset = ImageDataset(split, featurizer.preprocessing, cache=False, on_bad_sample=on_bad_sample)

    def decode(i: int) -> Sample:
        sample = dataset[i]
        bad = [BadImage(*entry) for entry in sample.get("bad", ())]
        return split.names[i], int(split.labels[i]), bad[0] if bad else sample["image"][0]

    batches = decode_ahead(range(len(split)), decode, batch_size)
    return _embed_batches(featurizer, batches, batch_size, on_bad_sample, progress)


def embed_files(
    featurizer: Featurizer, paths: Sequence[str | File], batch_size: int = 64, on_bad_sample: str = "error",
    progress: Progress | None = None,
) -> Embeddings:
    """Features of image files and folders, without labels.

    Raises:
        BadImage: an image cannot be read and `on_bad_sample` is "error", or no image can be read.
        FileNotFoundError: a folder has no image.
        ValueError: there are no paths.
    """

    def decode(item: tuple[str, File]) -> Sample:
        name, path = item
        try:
            return name, -1, featurizer.preprocessing.image(path, name)
        except BadImage as error:
            return name, -1, error

    batches = decode_ahead(named_images(paths), decode, batch_size)
    return _embed_batches(featurizer, batches, batch_size, on_bad_sample, progress)


def _embed_batches(
    featurizer: Featurizer, batches: Iterator[list[Sample]], batch_size: int, on_bad_sample: str,
    progress: Progress | None,
) -> Embeddings:
    """Features of decoded samples, in batches; unreadable ones raise an error or are listed, see `embed_split`."""
    parts, names, labels, unreadable = [], [], [], []
    samples = (sample for batch in batches for sample in batch)
    while batch := list(islice(samples, batch_size)):
        bad = [image for *_, image in batch if isinstance(image, BadImage)]
        if bad and on_bad_sample == "error":
            raise bad[0]
        unreadable += bad
        readable = [sample for sample in batch if not isinstance(sample[2], BadImage)]
        if readable:
            parts.append(featurizer.of_images(featurizer.preprocessing.batch([image for *_, image in readable])))
        names += [name for name, *_ in readable]
        labels += [label for _, label, _ in readable]
        if progress:
            progress(len(batch))
    if not parts:
        raise unreadable[0] if unreadable else ValueError("there are 0 images to extract features from")
    return Embeddings(torch.cat(parts).numpy(), names, np.array(labels, dtype=np.int64), unreadable)


def embed_texts(
    featurizer: Featurizer, dataset: TextDataset, batch_size: int = 64, progress: Progress | None = None
) -> Embeddings:
    """Features of all texts, or pairs of texts, of a split, in order."""
    parts = []
    for rows in np.array_split(np.arange(len(dataset)), range(batch_size, len(dataset), batch_size)):
        parts.append(featurizer.of_texts(dataset.inputs.batch(rows)))
        if progress:
            progress(len(rows))
    split = dataset.split
    return Embeddings(torch.cat(parts).numpy(), [split.names[i] for i in range(len(split))], dataset.labels.numpy())


def save_embeddings(path: Path, parts: dict[str, Embeddings], classes: Sequence[str] = ()) -> None:
    """Save all splits to one file; the extension selects the format.

    .npz: features (N,D), names, splits and labels (N,) (class indices, -1 without a label), classes. .parquet: a row
    per sample with name, split, label (the class name, or null) and feature (a list of D numbers).

    Raises:
        ValueError: another extension.
    """
    if path.suffix not in FILE_TYPES:
        raise ValueError(f"{path} has the extension {path.suffix!r}, but features are saved as "
                         f"{' or '.join(FILE_TYPES)}")
    features = np.concatenate([part.features for part in parts.values()])
    names = [name for part in parts.values() for name in part.names]
    labels = np.concatenate([part.labels for part in parts.values()])
    splits = [split for split, part in parts.items() for _ in part.names]
    if path.suffix == ".npz":
        arrays = {"features": features, "names": np.array(names, dtype=str), "splits": np.array(splits, dtype=str),
                  "labels": labels, "classes": np.array(classes, dtype=str)}
        write_output(path, lambda hashed: np.savez(hashed.file, **arrays))
        return
    import pyarrow
    import pyarrow.parquet

    values = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(features.ravel()), features.shape[1])
    class_names = [classes[label] if label >= 0 else None for label in labels]
    table = {
        "name": pyarrow.array([name.encode("utf-8", "backslashreplace").decode() for name in names], pyarrow.string()),
        "split": pyarrow.array(splits, pyarrow.string()),
        "label": pyarrow.array(class_names, pyarrow.string()),
        "feature": values,
    }
    write_output(path, lambda hashed: pyarrow.parquet.write_table(pyarrow.table(table), hashed.file))
