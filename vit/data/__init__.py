"""Sources → samples → batches, in plain torch, NumPy and Pillow, independent of models, Lightning and Hydra."""

import importlib
from types import ModuleType

from vit.counters import permutation, uniform
from vit.data.augment.distortions import RandomAffine, RandomElastic, RandomLineAffine, RandomStrokeWidth
from vit.data.augment.mixup import Mixup
from vit.data.augment.policies import RandAugment, ThreeAugment, TrivialAugment
from vit.data.augment.random_crop import RandomCrop, RandomResizedCrop
from vit.data.augment.steps import (
    Augment,
    ColorJitter,
    HorizontalFlip,
    PadCrop,
    RandomChannelPermutation,
    RandomErasing,
    VerticalFlip,
)
from vit.data.batching.batches import EvalBatches, TrainBatches
from vit.data.decoding.decode import BadImage
from vit.data.errors import DataError
from vit.data.formats.word_vectors import read_vectors
from vit.data.image_sources.folders import folder
from vit.data.image_sources.tables import table
from vit.data.image_sources.unlabelled import UnlabelledImages, unlabelled_images
from vit.data.images.dataset import ImageDataset
from vit.data.images.device_images import DeviceImages
from vit.data.images.line_images import AnyPreprocessing, LinePreprocessing
from vit.data.images.packed import PackedAugment, PackedImageDataset, PackedPreprocessing, RandomPatches
from vit.data.images.preprocessing import Preprocessing
from vit.data.pairs.dataset import PairDataset
from vit.data.pairs.image_text import image_text
from vit.data.pairs.length_buckets import PairEvalBatches, PairTrainBatches
from vit.data.pairs.parallel_text import parallel
from vit.data.pairs.source import PairSource, PairSplit
from vit.data.sets.builtin import cifar10, cifar100, digits, fashion_mnist, imagenet, mnist
from vit.data.sets.digit_strips import digit_strips
from vit.data.sets.hub import hub
from vit.data.sets.number_stories import number_questions, number_stories
from vit.data.sets.spelled_numbers import spelled_numbers
from vit.data.source import Source
from vit.data.splits.split import Split
from vit.data.statistics import estimate
from vit.data.text.corpus import CorpusSource, CorpusSplit
from vit.data.text.corpus_files import corpus
from vit.data.text.dataset import TextDataset, TextInputs, TextSplit
from vit.data.text.masked_tokens import MaskedDataset, MaskedTrainBatches
from vit.data.text.tables import text_table
from vit.data.text.token_ids import source_tokens, target_tokens
from vit.data.text.tokenizers import BPETokenizer, ByteTokenizer, CharTokenizer, tokenizer_from_dict, train_tokenizer
from vit.moved_modules import MOVED

Pictures, pictures = UnlabelledImages, unlabelled_images  # former names that users' configs may contain

__all__ = [
    "AnyPreprocessing", "Augment", "BPETokenizer", "BadImage", "ByteTokenizer", "CharTokenizer", "ColorJitter",
    "CorpusSource", "CorpusSplit", "DataError", "DeviceImages", "EvalBatches", "HorizontalFlip", "ImageDataset",
    "LinePreprocessing", "MaskedDataset", "MaskedTrainBatches", "Mixup", "PackedAugment", "PackedImageDataset",
    "PackedPreprocessing", "PadCrop", "PairDataset", "PairEvalBatches", "PairSource", "PairSplit", "PairTrainBatches",
    "Pictures", "Preprocessing", "RandAugment", "RandomAffine", "RandomChannelPermutation", "RandomCrop",
    "RandomElastic", "RandomErasing", "RandomLineAffine", "RandomPatches", "RandomResizedCrop", "RandomStrokeWidth",
    "Source", "Split", "TextDataset", "TextInputs", "TextSplit", "ThreeAugment", "TrainBatches", "TrivialAugment",
    "UnlabelledImages", "VerticalFlip", "cifar10", "cifar100", "corpus", "digit_strips", "digits", "estimate",
    "fashion_mnist", "folder", "hub", "image_text", "imagenet", "mnist", "number_questions", "number_stories",
    "parallel", "permutation", "pictures", "read_vectors", "source_tokens", "spelled_numbers", "table", "target_tokens",
    "text_table", "tokenizer_from_dict", "train_tokenizer", "uniform", "unlabelled_images",
]


def __getattr__(name: str) -> ModuleType:
    """A module by its former name, which a `_target_` of an older config may contain.

    Raises:
        AttributeError: no module has or had this name.
    """
    former = f"{__name__}.{name}"
    if former not in MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(former)
