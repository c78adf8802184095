"""Class names for texts and pairs of texts, from a saved model."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from vit.bundle import Bundle
from vit.data import TextInputs
from vit.inference.images import Prediction, autocast, best_device

Text = str | tuple[str, ...]  # one text, or the two of a pair


class TextPredictor:
    """A text classifier with its class names and its tokenizer: `predictor.predict(["a text"])`."""

    def __init__(self, bundle: Bundle, device: str | torch.device | None = None, precision: str = "32-true") -> None:
        self.bundle, self.precision = bundle, precision
        self.device = best_device(device)
        self.model = bundle.model.eval().to(self.device)
        self.classes, self.tokenizer = bundle.classes, bundle.tokenizers["source"]
        self.columns = bundle.extra.get("columns", 1)  # 2: it reads pairs

    def predict(self, texts: Iterable[Text], top_k: int = 1, batch_size: int = 64) -> list[Prediction]:
        """Name texts, or pairs of them given as tuples, in order.

        Raises:
            ValueError: a text is longer than the model reads, or no pair where the model reads pairs; says which.
        """
        return list(self.stream(texts, top_k, batch_size))

    def stream(self, texts: Iterable[Text], top_k: int = 1, batch_size: int = 64) -> Iterator[Prediction]:
        """As `predict`, as soon as a batch is done."""
        if not 1 <= top_k <= len(self.classes):
            raise ValueError(f"top_k={top_k} must be 1..{len(self.classes)}, the number of classes")
        items, done = iter(texts), 0
        while batch := [(text,) if isinstance(text, str) else tuple(text) for text in islice(items, batch_size)]:
            logits = self.logits(batch, [f"text {done + row + 1}" for row in range(len(batch))])
            found = logits.softmax(-1).topk(top_k)
            for text, probabilities, places in zip(batch, found.values.tolist(), found.indices.tolist(), strict=True):
                yield Prediction("\t".join(text), tuple(self.classes[i] for i in places), tuple(probabilities))
            done += len(batch)

    @torch.inference_mode()
    def logits(self, texts: Sequence[tuple[str, ...]], names: Sequence[str]) -> Tensor:
        """Texts (B,), each one or a pair -> float32 logits (B,classes); `names` are for messages."""
        for text, name in zip(texts, names, strict=True):
            if len(text) != self.columns:
                wanted = "two texts, with a tab between them" if self.columns == 2 else "one text"
                raise ValueError(f"{name} has {len(text)} texts, but the model reads {wanted}")
        inputs = TextInputs(self.tokenizer, list(zip(*texts, strict=True)))
        most = self.model.config.max_len
        for length, name in zip(inputs.whole, names, strict=True):
            if length > most:
                raise ValueError(f"{name} has {length} tokens, but the model reads at most {most}; shorten it")
        batch = {key: value.to(self.device) for key, value in inputs.batch(np.arange(len(texts))).items()}
        with autocast(self.device, self.precision):
            return self.model(batch["source"], batch["source_mask"], batch["segment"]).float()
