"""The film of a training, recorded epoch by epoch: `callbacks.film=8`."""

from pathlib import Path

import pytorch_lightning as pl
import torch

from vit.data import Preprocessing, Split
from vit.files.atomic import write_atomically
from vit.inference import forward
from vit.nn import Attention
from vit.report.attention.recording import image_maps
from vit.report.figures.film import Shot, film_frame, write_film
from vit.run.reconstructions import select_images


class Film(pl.Callback):
    """After each epoch a frame `film/epoch_NNN.png` of the same validation images, and at the end `film.gif`.

    A resumed run goes on with the frames of the epochs before. Computed with the weights that validation uses; every
    process computes, because gathering sharded weights needs all of them, and the first one writes.

    Args:
        folder: of the run.
        count: number of images, evenly spaced in the split.
        metric: shown with each epoch, such as val/accuracy.
    """

    def __init__(self, folder: Path, split: Split, classes: list[str], preprocessing: Preprocessing, count: int,
                 metric: str):
        self.folder, self.classes, self.preprocessing, self.metric = folder, classes, preprocessing, metric
        self.images, index = select_images(split, preprocessing, count)
        self.labels = [classes[int(split.labels[i])] for i in index.tolist()]

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking or not self.labels:
            return
        shots = self.shots(pl_module.model)
        if trainer.is_global_zero:
            epoch, found = trainer.current_epoch + 1, trainer.callback_metrics.get(self.metric)
            title = f"epoch {epoch}" + ("" if found is None else f"   {self.metric} {float(found):.4f}")
            frame = film_frame(shots, title)
            write_atomically(self.folder / "film" / f"epoch_{epoch:04d}.png", lambda file: frame.save(file, "PNG"))

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        frames = sorted((self.folder / "film").glob("epoch_*.png"))
        if trainer.is_global_zero and frames:
            write_film(self.folder / "film.gif", frames)

    @torch.no_grad()
    def shots(self, model: torch.nn.Module) -> list[Shot]:
        """The images with what the model predicts for them now."""
        attends = hasattr(model, "embed") and any(isinstance(layer, Attention) for layer in model.modules())
        found = []
        for pixels, label in zip(self.images, self.labels, strict=True):
            picture, rollout = pixels.permute(1, 2, 0).numpy(), None
            if attends:
                maps, logits = image_maps(model, self.preprocessing, pixels, picture)
                rollout = maps.pooled_rollout()
            else:
                logits = forward(model, self.preprocessing, pixels[None], "32-true")
            best = logits[0].softmax(-1).max(-1)
            found.append(Shot(picture, rollout, label, self.classes[int(best.indices)], float(best.values)))
        return found
