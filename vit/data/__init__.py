"""Sources → samples → batches. Plain torch, numpy and Pillow; nothing here knows models, Lightning or Hydra."""

from vit.data.augment import Augment, HorizontalFlip, PadCrop, RandomChannelPermutation, RandomErasing, VerticalFlip
from vit.data.batches import EvalBatches, TrainBatches
from vit.data.buckets import PairEvalBatches, PairTrainBatches
from vit.data.corpora import CorpusSource, CorpusSplit
from vit.data.corpus_files import corpus
from vit.data.counters import permutation, uniform
from vit.data.dataset import ImageDataset
from vit.data.decode import BadImage
from vit.data.folders import folder
from vit.data.hub_sets import hub
from vit.data.image_tables import image_text
from vit.data.line_images import LinePreprocessing
from vit.data.masking import MaskedDataset, MaskedTrainBatches
from vit.data.mixup import Mixup
from vit.data.named import cifar10, cifar100, digits, fashion_mnist, imagenet, mnist
from vit.data.numbers import spelled_numbers
from vit.data.pair_dataset import PairDataset
from vit.data.pairs import PairSource, PairSplit
from vit.data.parallel_text import parallel
from vit.data.pictures import Pictures, pictures
from vit.data.policies import ColorJitter, RandAugment, ThreeAugment, TrivialAugment
from vit.data.preprocessing import Preprocessing
from vit.data.sizing import RandomCrop, RandomResizedCrop
from vit.data.source import DataError, Source, Split
from vit.data.statistics import estimate
from vit.data.stories import number_questions, number_stories
from vit.data.strips import digit_strips
from vit.data.tables import table
from vit.data.text import BPETokenizer, ByteTokenizer, tokenizer_from_dict, train_tokenizer
from vit.data.text_dataset import TextDataset, TextInputs, TextSplit
from vit.data.text_tables import text_table
from vit.data.tokens import source_tokens, target_tokens
from vit.data.vectors import read_vectors
from vit.data.writing import RandomAffine, RandomElastic, RandomStrokeWidth

__all__ = [
    "Augment", "BPETokenizer", "BadImage", "ByteTokenizer", "ColorJitter", "CorpusSource", "CorpusSplit",
    "DataError", "EvalBatches", "HorizontalFlip", "ImageDataset", "LinePreprocessing", "MaskedDataset",
    "MaskedTrainBatches", "Mixup", "PadCrop", "PairDataset", "PairEvalBatches", "PairSource", "PairSplit",
    "PairTrainBatches", "Pictures", "Preprocessing", "RandAugment", "RandomAffine",
    "RandomChannelPermutation", "RandomCrop", "RandomElastic", "RandomErasing", "RandomResizedCrop",
    "RandomStrokeWidth", "Source", "Split", "TextDataset", "TextInputs", "TextSplit", "ThreeAugment",
    "TrainBatches", "TrivialAugment", "VerticalFlip", "cifar10", "cifar100", "corpus", "digit_strips",
    "digits", "estimate", "fashion_mnist", "folder", "hub", "image_text", "imagenet", "mnist",
    "number_questions", "number_stories", "parallel", "permutation", "pictures", "read_vectors",
    "source_tokens", "spelled_numbers", "table", "target_tokens", "text_table", "tokenizer_from_dict",
    "train_tokenizer", "uniform",
]
