"""A split of pairs as batches of source ids or uint8 line images, and target ids.

Tokenized texts are cached, and decoded images if they fit in memory.
"""

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from vit.data.augment.steps import Augment
from vit.data.decoding.decode import BadImage
from vit.data.errors import DataError
from vit.data.images.dataset import Batch
from vit.data.images.line_images import LinePreprocessing
from vit.data.pairs.line_widths import line_size
from vit.data.pairs.source import PairSplit
from vit.data.sample_keys import sample_keys
from vit.data.text.token_ids import find_too_long, source_tokens, target_tokens
from vit.data.text.tokenizers import PAD, Tokenizer
from vit.data.threads import StageProgress, map_in_threads, reported
from vit.messages import check_choice

Sources = tuple[Tensor, Tensor, dict[int, str]]  # source, source_mask, row → why it is unreadable


class PairDataset(Dataset):
    """One split of pairs. Batches are requested by keys (B,2) of (epoch, index); index ~i is row i without tokens to
    predict, to pad a batch.

    Args:
        source: a tokenizer for texts, a LinePreprocessing for images.
        max_source_len, max_target_len: the most tokens of a text, including eos.
        on_long: for longer texts "error"; "skip" leaves them out, lists them in `left_out` and the others in `rows`;
            "cut" shortens them, keeps their eos and lists them in `cut`.
        on_bad_sample: "error", or "skip" to leave out unreadable images.
        cache: whether decoded images are cached in memory; "auto" if they need at most `cache_bytes`.
        augment: applied to images, in training.
        progress: called while texts are tokenized, headers are read and images are decoded.

    Raises:
        DataError: `source` does not match the split, or a text is too long with `on_long="error"`.
        ValueError: an option is unknown.
        BadImage: an image cannot be read, with `on_bad_sample="error"`.
    """

    unit = "pairs"

    def __init__(
        self,
        split: PairSplit,
        source: Tokenizer | LinePreprocessing,
        target: Tokenizer,
        max_source_len: int | None = None,
        max_target_len: int | None = None,
        on_long: str = "error",
        on_bad_sample: str = "error",
        cache: bool | str = "auto",
        augment: Augment | None = None,
        cache_bytes: int = 2**30,
        progress: StageProgress | None = None,
    ):
        if (split.read is not None) != isinstance(source, LinePreprocessing):
            raise DataError("the source of images must be a LinePreprocessing, that of texts a tokenizer")
        self.split, self.on_bad_sample = split, on_bad_sample
        self.targets = target_tokens(target, split.targets, progress=progress)
        long = find_too_long(self.targets.lengths - 1, max_target_len, split.names, on_long, "max_target_len")
        if long and on_long == "cut":
            self.targets = self.targets.cut(max_target_len + 1)
        if isinstance(source, LinePreprocessing):
            self.sources = _Images(split, source, on_bad_sample, cache, augment, cache_bytes, progress)
        else:
            self.sources = _Texts(split, source, max_source_len, on_long, progress)
        self._count(self.sources.long | long, on_long)
        # (N,2): tokens or patches of the source, tokens to predict
        self.lengths = np.stack([self.sources.lengths, self.targets.lengths - 1], axis=1)

    def _count(self, long: dict[int, str], on_long: str) -> None:
        dropped = self.sources.bad | (long if on_long == "skip" else {})
        self.rows = np.setdiff1d(np.arange(len(self.split)), list(dropped))
        self.left_out = [(self.split.names[i], dropped[i]) for i in sorted(dropped)]
        self.cut = [(self.split.names[i], long[i]) for i in sorted(long)] if on_long == "cut" else []

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def squeezed(self) -> list[tuple[str, str]]:
        """(name, reason) of images that are squeezed to `max_width`."""
        return self.sources.squeezed

    @property
    def cached(self) -> bool:
        return self.sources.cached

    def __getitem__(self, index: int) -> Batch:
        """One pair of epoch 0 as a batch of one."""
        return self.__getitems__(np.array([(0, index)]))

    def __getitems__(self, keys: np.ndarray) -> Batch:
        """source (B,S) or (B,C,H,W), source_mask (B,S), target (B,T), index (B,), epoch (B,); "bad": (name, reason)."""
        epoch, index = sample_keys(keys).T
        blank, index = index < 0, np.where(index < 0, ~index, index)
        source, mask, unread = self.sources.batch(index, epoch, blank)
        if unread:
            good = np.setdiff1d(np.arange(len(index)), list(unread))
            bad = [(self.split.names[int(index[row])], reason) for row, reason in unread.items()]
            epoch, index, blank = epoch[good], index[good], blank[good]
        target, _ = self.targets.padded(index)
        target[torch.from_numpy(blank), 1:] = PAD
        batch = {"source": source, "source_mask": mask, "target": target}
        batch |= {"index": torch.from_numpy(index), "epoch": torch.from_numpy(np.ascontiguousarray(epoch))}
        return batch | {"bad": bad} if unread else batch

    def filler(self) -> Batch:
        """A pair without tokens to predict, marked with epoch 1 like the padding of evaluation batches."""
        return self.__getitems__(np.array([(1, ~0)]))


class _Texts:
    """Source texts, tokenized in advance."""

    cached = True
    bad: dict[int, str] = {}
    squeezed: list[tuple[str, str]] = []

    def __init__(
        self, split: PairSplit, tokenizer: Tokenizer, max_len: int | None, on_long: str, progress: StageProgress | None
    ):
        self.tokens = source_tokens(tokenizer, split.sources, progress=progress)
        self.long = find_too_long(self.tokens.lengths, max_len, split.names, on_long, "max_source_len")
        if self.long and on_long == "cut":
            self.tokens = self.tokens.cut(max_len)
        self.lengths = self.tokens.lengths

    def batch(self, index: np.ndarray, epoch: np.ndarray, blank: np.ndarray) -> Sources:
        return *self.tokens.padded(index), {}


class _Images:
    """Source images, decoded in advance if they fit in memory; `lengths` are read from their headers."""

    long: dict[int, str] = {}

    def __init__(
        self,
        split: PairSplit,
        preprocessing: LinePreprocessing,
        on_bad_sample: str,
        cache: bool | str,
        augment: Augment | None,
        cache_bytes: int,
        progress: StageProgress | None,
    ):
        check_choice("on_bad_sample", on_bad_sample, ("error", "skip"))
        check_choice("cache", cache, (True, False, "auto"))
        self.split, self.preprocessing, self.augment = split, preprocessing, augment
        self.squeezed: list[tuple[str, str]] = []
        self.strict, self.bad = on_bad_sample == "error", {}
        sizes = (self._load_or_skip(i, self._columns) or 1 for i in range(len(split)))
        columns = np.array(list(reported(sizes, "sizes", len(split), progress)), dtype=np.int64)
        self.lengths = columns * preprocessing.rows
        area = preprocessing.channels * preprocessing.patch_size[0] * preprocessing.patch_size[1]
        self.cached = self.lengths.sum() * area <= cache_bytes if cache == "auto" else bool(cache)
        self.images = None
        if self.cached:
            images = map_in_threads(lambda i: self._load_or_skip(i, self._image), range(len(split)))
            self.images = list(reported(images, "images", len(split), progress))
        for i, image in enumerate(self.images or []):
            if image is not None:
                self.lengths[i] = preprocessing.rows * (image.shape[2] // preprocessing.patch_size[1])

    def batch(self, index: np.ndarray, epoch: np.ndarray, blank: np.ndarray) -> Sources:
        """The images at `index` as a batch; `blank` rows do not read their image."""
        images, unread = [], {}
        size = (self.preprocessing.channels, self.preprocessing.height, self.preprocessing.patch_size[1])
        for row, i in enumerate(index.tolist()):
            try:
                if blank[row]:
                    images.append(torch.zeros(size, dtype=torch.uint8))
                else:
                    images.append(self._image(i) if self.images is None else self.images[i])
            except BadImage as error:
                unread[row] = error.reason
        if self.augment is not None and images:
            good = np.setdiff1d(np.arange(len(index)), list(unread))
            images = self._augmented(images, torch.from_numpy(index[good]), torch.from_numpy(epoch[good]))
        if not images:
            mask = torch.empty(0, self.preprocessing.rows, dtype=torch.bool)
            return torch.empty((0, *size), dtype=torch.uint8), mask, unread
        return *self.preprocessing.batch(images), unread

    def _augmented(self, images: list[Tensor], index: Tensor, epoch: Tensor) -> list[Tensor]:
        """Augments images of the same width together; the result of a sample does not depend on its batch."""
        widths = torch.tensor([image.shape[2] for image in images])
        for width in widths.unique():
            rows = (widths == width).nonzero().squeeze(1)
            changed = self.augment(torch.stack([images[i] for i in rows]), index[rows], epoch[rows])
            for i, image in zip(rows.tolist(), changed, strict=True):
                images[i] = image
        return images

    def _load_or_skip(self, i: int, step):
        """The result of `step` for image i; None if the image cannot be read, which is recorded with the reason."""
        if i in self.bad:
            return None
        try:
            return step(i)
        except BadImage as error:
            if self.strict:
                raise
            self.bad[i] = error.reason
            return None

    def _columns(self, i: int) -> int:
        size = line_size(self.split, i, self.preprocessing)
        if reason := self.preprocessing.squeezed(*size):
            self.squeezed.append((self.split.names[i], reason))
        return self.preprocessing.columns(*size)

    def _image(self, i: int) -> Tensor:
        return self.preprocessing.image(self.split.image(i), self.split.names[i])
