"""Images of a small data set on the device of the model, where the rows of each batch are selected."""

from typing import Any

from torch import Tensor

from vit.data.augment.random_crop import Sizing
from vit.data.errors import DataError
from vit.data.images.dataset import Batch, ImageDataset
from vit.data.images.preprocessing import Preprocessing
from vit.data.splits.split import Split
from vit.messages import number_of


class DeviceImages(ImageDataset):
    """An `ImageDataset` whose batches have "images", this data set, instead of "image" (B,C,H,W).

    `add_images` selects the images of a batch on the device to which its "index" was moved, so that no pixels are
    copied from host to device after the first batch. The images are those of `ImageDataset`.

    Raises:
        DataError: there is a random crop, which needs whole images on the host, or the images take more than
            `cache_bytes`.
    """

    def __init__(
        self, split: Split, preprocessing: Preprocessing, sizing: Sizing | None = None, *, cache_bytes: int,
        on_bad_sample: str = "error", fill: bool = True,
    ):
        if sizing is not None:
            raise DataError(
                "data.cache=device keeps images of the final size, but recipe.crop cuts random boxes out of whole "
                "images; use recipe.crop=null, or data.cache=memory"
            )
        height, width = preprocessing.size
        needed = len(split) * preprocessing.channels * height * width
        if needed > cache_bytes:
            raise DataError(
                f"data.cache=device needs {needed / 1e9:.3g} GB for {number_of(len(split), 'image')} of "
                f"{height}x{width} pixels, but data.cache_limit is {cache_bytes / 1e9:.3g}; raise it, or use "
                "data.cache=disk"
            )
        super().__init__(split, preprocessing, cache=True, on_bad_sample=on_bad_sample, fill=fill)

    def __getitems__(self, keys: Any) -> Batch:
        """label (B,), index (B,), epoch (B,), "images" this data set; "bad": (name, reason) of unreadable images."""
        batch = super().__getitems__(keys)
        del batch["image"]
        return {**batch, "images": self}

    def add_images(self, batch: Batch) -> Batch:
        """The batch with "image" (B,C,H,W) uint8, on the device of its "index" (B,), in place of "images"."""
        self.images = self.images.to(batch["index"].device)  # a copy for the first batch only
        result = {**batch, "image": self.images.index_select(0, batch["index"])}
        del result["images"]
        return result

    def _select(self, index: Tensor) -> None:
        """None, because `add_images` selects the images, on the device."""
