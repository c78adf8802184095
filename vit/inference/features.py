"""Features of a frozen model: the vector below its head, for an image or a text."""

import torch
from torch import Tensor, nn

from vit.data import Preprocessing
from vit.inference.images import autocast, without_preprocessing
from vit.low_precision import DTYPES
from vit.models import Classifier
from vit.models.inference_copy import inference_copy
from vit.packed_images import PackedImages

TEXT_KINDS = ("text_classifier", "masked_text")


class Featurizer:
    """A model without its head on one device: `featurizer.of_images(images)`.

    The vector is the input of the head. A masked autoencoder has no head: its vector is the class token, or the mean of
    the patch tokens if it has no class token, as in a classifier that is fine-tuned from it. The vector of a masked
    language model is the output of its pooler, as with `model.pool=pooler`. The weights of the model must not change
    while it is used (`vit.nn.cpu.prepacked`).

    Raises:
        ValueError: the model does not reduce its input to one vector, or it reads images and was saved without their
            preprocessing.
    """

    def __init__(self, model: nn.Module, preprocessing: Preprocessing | None, device: torch.device, precision: str):
        self.kind = model.config.kind
        if not isinstance(model, Classifier) and self.kind not in ("timm", "mae", "masked_text"):
            raise ValueError(f"a model of kind {self.kind} does not reduce its input to one vector; features exist for "
                             "classifiers of images or texts, masked autoencoders and masked language models")
        if preprocessing is None and self.kind not in TEXT_KINDS:
            raise without_preprocessing("the model")
        self.model, self.preprocessing = inference_copy(model.eval().to(device), DTYPES.get(precision)), preprocessing
        self.device, self.precision = device, precision

    @torch.inference_mode()
    def of_images(self, images: Tensor | PackedImages) -> Tensor:
        """uint8 (B,C,H,W), or packed images -> float32 (B,D) on the CPU"""
        with autocast(self.device, self.precision):
            return self.vectors(self.preprocessing.normalize(images.to(self.device))).float().cpu()

    @torch.inference_mode()
    def of_texts(self, batch: dict[str, Tensor]) -> Tensor:
        """source (B,N), source_mask (B,N), segment (B,N) -> float32 (B,D) on the CPU"""
        source, mask, segment = (batch[key].to(self.device) for key in ("source", "source_mask", "segment"))
        with autocast(self.device, self.precision):
            return self.model.pool(self.encode(source, mask, segment), mask).float().cpu()

    def encode(self, *inputs: Tensor | None) -> Tensor:
        """The tokens (B,N,D); of a classifier those that are pooled are enough."""
        if isinstance(self.model, Classifier):
            return self.model.encode(*inputs, first=self.model.first())
        return self.model.encode(*inputs)

    def vectors(self, images: Tensor | PackedImages) -> Tensor:
        """normalized (B,C,H,W), or packed images -> (B,D)"""
        if self.kind == "timm":
            return self.model.forward_head(self.model.forward_features(images), pre_logits=True)
        if isinstance(images, PackedImages):
            return self.model.pool(*self.model.encode_packed(images))
        x = self.encode(images)  # (B,N,D)
        if isinstance(self.model, Classifier):
            return self.model.pool(x, None)
        config = self.model.config
        return x[:, 0] if config.class_token else x[:, config.prefix :].mean(1)
