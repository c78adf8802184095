"""The model that computes the images of a predictor: itself, or its copy with packed weights."""

from torch import nn

from vit.inference.fast import Mode
from vit.low_precision import DTYPES
from vit.nn.prepacked import prepacked

PACKING_PAYS = 16  # images; packing the weights takes about as long as computing ten, one by one


class Networks:
    """A model for the first images, and its copy with packed weights (`vit.nn.prepacked`) for all later ones.

    Args:
        at_once: the copy computes the first images too.
    """

    def __init__(self, model: nn.Module, at_once: bool = False) -> None:
        self.model, self.copies = model, {}
        self.images = PACKING_PAYS if at_once else 0

    def for_batch(self, mode: Mode, images: int) -> nn.Module:
        """What computes the next batch of so many images in a mode, to which the model has been switched."""
        self.images += images
        if self.images < PACKING_PAYS:
            return self.model
        if mode not in self.copies:
            self.copies[mode] = prepacked(self.model, DTYPES.get(mode.precision))
        return self.copies[mode]
