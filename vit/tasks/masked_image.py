"""Masked image pre-training (MAE, arXiv 2111.06377)."""

from torch import Tensor

from vit.data import Augment, Preprocessing
from vit.data.images.masked_patches import EVALUATION, patch_noise
from vit.models.mae import MaskedAutoencoder, masked_error
from vit.tasks.base import Optimization, Task, counters


class MaskedImages(Task):
    """Trains a `MaskedAutoencoder` on the image batches of `vit.data`, without labels.

    Masks are random in training and fixed in validation, so that losses of different epochs and runs are comparable.
    """

    def __init__(
        self,
        model: MaskedAutoencoder,
        preprocessing: Preprocessing,
        optimization: Optimization,
        augment: Augment | None = None,
        seed: int = 0,
        config: dict | None = None,
    ):
        super().__init__(model, optimization, seed, config)
        self.preprocessing, self.augment = preprocessing, augment
        rows, columns = model.config.grid
        self.patches = rows * columns

    @property
    def metric_names(self) -> list[str]:
        return ["val/loss", "train/loss"]

    def forward(self, images: Tensor, noise: Tensor) -> Tensor:
        """images uint8 (B,C,H,W), noise (B,N) -> reconstruction error per image (B,)"""
        images = self.inputs = self.preprocessing.normalize(images)
        pixels, masked = self.model(images, noise)
        return masked_error(pixels, self.model.targets(images), masked)

    def training_loss(self, batch: dict[str, Tensor], step: int, micro: int) -> Tensor:
        """images (B,C,H,W) -> the mean squared error of the masked patches, a scalar"""
        images = batch["image"]
        if self.augment is not None:
            images = self.augment(images, *counters(batch))
        errors = self(images, patch_noise(self.seed, batch["epoch"], batch["index"], self.patches))  # (B,)
        return errors.sum() / batch["samples"]

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        errors = self(batch["image"], patch_noise(EVALUATION, 0, batch["index"], self.patches))
        self.val_loss.update(errors, batch["weight"])
        self.log("val/loss", self.val_loss, prog_bar=True)
