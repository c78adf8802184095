"""The film of a training run (`callbacks.film=8`): a frame of the same samples per epoch, joined into an animated GIF.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from PIL import Image
from torch import Tensor

from vit.data import PairDataset, Preprocessing, Split, TextDataset
from vit.data.splits.split import evenly_spaced
from vit.data.text.tokenizers import Tokenizer
from vit.files.atomic import write_atomically
from vit.generation import generate
from vit.inference import forward
from vit.messages import left_to_right
from vit.report.attention.figures import tokens_picture
from vit.report.attention.maps import TokenMaps
from vit.report.attention.recording import (
    Seq2SeqAttention,
    has_attention,
    image_maps,
    pair_attention,
    text_maps,
)
from vit.report.attention.report import write_seq2seq
from vit.report.figures.film import FilmSample, film_frame, stacked_frame, write_film
from vit.report.figures.reconstructions import reconstructions_picture
from vit.run.reconstructions import reconstruct, select_images
from vit.tasks import Seq2Seq


class Film(pl.Callback, ABC):
    """After each epoch a frame `film/epoch_NNNN.png` of the same validation samples, and at the end `film.gif`.

    A resumed run keeps the frames of earlier epochs, unless it films another number of samples. The frames show the
    weights that validation uses. Every process records, because gathering sharded weights needs all of them; the first
    process draws and writes.

    Args:
        folder: the run folder.
        metric: name of the metric shown with each epoch, such as val/accuracy.
    """

    def __init__(self, folder: Path, metric: str) -> None:
        self.folder, self.metric = folder, metric
        self.last: Path | None = None  # the last frame of this session
        self._recorded: Sequence[Any] = ()

    @abstractmethod
    def record(self, task: pl.LightningModule) -> Sequence[Any]:
        """The content of a frame, usually one item per sample; if it is empty, no frame is written."""

    @abstractmethod
    def draw(self, recorded: Sequence[Any], title: str) -> Image.Image:
        """The frame of an epoch; all frames have the same size."""

    @torch.no_grad()
    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._recorded = self.record(pl_module)  # before the averaged weights are replaced

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw the frame here, because the task logs metrics of generated texts after `on_validation_epoch_end`."""
        recorded, self._recorded = self._recorded, ()
        if trainer.is_global_zero and recorded:
            epoch, found = trainer.current_epoch + 1, trainer.callback_metrics.get(self.metric)
            frame = self.draw(recorded, f"epoch {epoch}" + ("" if found is None else
                                                            f"   {self.metric} {float(found):.4f}"))
            self.last = self.folder / "film" / f"epoch_{epoch:04d}.png"
            write_atomically(self.last, lambda file: frame.save(file, "PNG"))

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero and (frames := self.frames()):
            write_film(self.folder / "film.gif", frames)

    def frames(self) -> list[Path]:
        """The frames in the folder up to the last one of this session, as far as they have the same size; all frames if
        this session has none.

        Frames of another size show another number of samples. Later frames show epochs after the checkpoint from which
        the run was resumed.
        """
        paths = sorted((self.folder / "film").glob("epoch_*.png"), key=epoch_of)
        if self.last is None:
            return paths
        size = picture_size(self.last)
        return [path for path in paths if epoch_of(path) <= epoch_of(self.last) and picture_size(path) == size]


class ImageFilm(Film):
    """The attention rollout over images and their predicted classes.

    Args:
        count: number of images, evenly spaced in the split.
    """

    def __init__(self, folder: Path, metric: str, split: Split, classes: Sequence[str], preprocessing: Preprocessing,
                 count: int) -> None:
        super().__init__(folder, metric)
        self.classes, self.preprocessing = classes, preprocessing
        self.images, index = select_images(split, preprocessing, count)
        self.labels = [self.label(split.labels[i]) for i in index.tolist()]

    def label(self, value: np.ndarray) -> str:
        """The name of a label of the split."""
        return self.classes[int(value)]

    def prediction(self, logits: Tensor) -> tuple[str, float]:
        """logits (classes,) -> the name of the prediction and its probability"""
        best = logits.softmax(-1).max(-1)
        return self.classes[int(best.indices)], float(best.values)

    def record(self, task: pl.LightningModule) -> list[FilmSample]:
        """The images with the predictions of the model."""
        model, found = task.model, []
        attends = hasattr(model, "embed") and has_attention(model)
        for pixels, label in zip(self.images, self.labels, strict=True):
            picture, rollout = pixels.permute(1, 2, 0).numpy(), None
            if attends:
                maps, logits = image_maps(model, self.preprocessing, pixels, picture)
                rollout = maps.pooled_rollout()
            else:
                logits = forward(model, self.preprocessing, self.preprocessing.batch([pixels]), "32-true")
            found.append(FilmSample(picture, rollout, label, *self.prediction(logits[0])))
        return found

    def draw(self, recorded: Sequence[FilmSample], title: str) -> Image.Image:
        return film_frame(recorded, title)


class MultiLabelFilm(ImageFilm):
    """The film of a multi-label classifier. A label is predicted if its probability is at least one half; the
    probability of a prediction is the product over all classes.
    """

    def label(self, value: np.ndarray) -> str:
        return self.joined(value.astype(bool))

    def prediction(self, logits: Tensor) -> tuple[str, float]:
        probabilities = logits.float().sigmoid().cpu()
        chosen = probabilities >= 0.5
        return self.joined(chosen.numpy()), float(torch.where(chosen, probabilities, 1 - probabilities).prod())

    def joined(self, chosen: np.ndarray) -> str:
        """bool (classes,) -> the names of the chosen ones"""
        return ", ".join(name for name, each in zip(self.classes, chosen, strict=True) if each) or "no label"


class AttentionFilm(Film):
    """The attention of several texts, drawn as by `vit attention`, one below the other."""

    @abstractmethod
    def picture(self, path: Path, recorded: Any) -> Path:
        """Save the picture of one sample and return its file."""

    def draw(self, recorded: Sequence[Any], title: str) -> Image.Image:
        with TemporaryDirectory() as folder:
            files = [self.picture(Path(folder) / f"{i}.png", each) for i, each in enumerate(recorded)]
            return stacked_frame([load_picture(file) for file in files], title)


class TextFilm(AttentionFilm):
    """The attention between the tokens of texts, below their predicted classes.

    Args:
        count: number of texts, evenly spaced in the data set.
    """

    def __init__(self, folder: Path, metric: str, dataset: TextDataset, classes: Sequence[str], tokenizer: Tokenizer,
                 count: int) -> None:
        super().__init__(folder, metric)
        self.classes, self.tokenizer = classes, tokenizer
        self.samples = [(" | ".join(column[row] for column in dataset.split.texts), dataset[row])
                        for row in evenly_spaced(len(dataset), count)]

    def record(self, task: pl.LightningModule) -> list[tuple[TokenMaps, str]]:
        """The maps and the heading of each text."""
        found = []
        for text, batch in self.samples:
            maps, logits = text_maps(task.model, self.tokenizer, task.transfer_batch_to_device(batch, task.device, 0))
            best = logits[0].softmax(-1).max(-1)
            label, predicted = self.classes[int(batch["label"][0])], self.classes[int(best.indices)]
            parts = [text, " → ", predicted, f" {float(best.values):.1%}"]
            found.append((maps, left_to_right(*parts, *([] if predicted == label else [", not ", label]))))
        return found

    def picture(self, path: Path, recorded: tuple[TokenMaps, str]) -> Path:
        maps, heading = recorded
        return tokens_picture(path, maps, heading)


class Seq2SeqFilm(AttentionFilm):
    """The cross-attention of a translator or image-to-text model, below the text that greedy search generates.

    The attention is recorded while the model predicts each token of the reference text from the tokens before it, so
    that all frames have the same tokens.

    Args:
        count: number of pairs, evenly spaced in the data set.
        tokenizer: tokenizer of the source; None for images of text.
    """

    def __init__(self, folder: Path, metric: str, dataset: PairDataset, tokenizer: Tokenizer | None,
                 count: int) -> None:
        super().__init__(folder, metric)
        self.tokenizer, split = tokenizer, dataset.split
        batches = [dataset[int(dataset.rows[i])] for i in evenly_spaced(len(dataset.rows), count)]
        names = split.names if split.sources is None else split.sources
        self.samples = [(names[int(batch["index"])], batch) for batch in batches if len(batch["index"])]

    def record(self, task: Seq2Seq) -> list[tuple[Seq2SeqAttention, str]]:
        """The cross-attention and the heading of each pair."""
        found = []
        for name, sample in self.samples:
            batch = task.transfer_batch_to_device(sample, task.device, 0)
            source, mask, target = task.source(batch), batch["source_mask"], batch["target"]
            best = generate(task.model, source, mask, task.validation.decode.greedy, utf8=task.utf8)[0][0]
            text = task.tokenizer.decode(best.ids, "ignore")
            recorded = pair_attention(task.model, source, mask, target, sample["source"][0], text, self.tokenizer,
                                      task.tokenizer)
            found.append((recorded.cross(), left_to_right(name, " → ", text)))
        return found

    def picture(self, path: Path, recorded: tuple[Seq2SeqAttention, str]) -> Path:
        attention, heading = recorded
        return write_seq2seq(path, attention, heading=heading)[0]


class ReconstructionFilm(Film):
    """Images, their visible patches, and their reconstructions by a masked autoencoder, with the same masks.

    Args:
        count: number of images, evenly spaced in the split.
    """

    def __init__(self, folder: Path, metric: str, split: Split, preprocessing: Preprocessing, count: int) -> None:
        super().__init__(folder, metric)
        self.preprocessing = preprocessing
        self.images, self.index = select_images(split, preprocessing, count)

    def record(self, task: pl.LightningModule) -> Sequence[list[np.ndarray]]:
        """The originals, the masked and the reconstructed images."""
        return reconstruct(task.model, self.preprocessing, self.images, self.index) if len(self.images) else ()

    def draw(self, recorded: Sequence[list[np.ndarray]], title: str) -> Image.Image:
        with TemporaryDirectory() as folder:
            return load_picture(reconstructions_picture(Path(folder) / "frame.png", *recorded, title))


def epoch_of(frame: Path) -> int:
    return int(frame.stem.rpartition("_")[2])


def picture_size(path: Path) -> tuple[int, int]:
    with Image.open(path) as picture:
        return picture.size


def load_picture(path: Path) -> Image.Image:
    """The pixels of a picture file, which may be deleted afterwards."""
    with Image.open(path) as picture:
        return picture.convert("RGB")
