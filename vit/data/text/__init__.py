"""Text: tokenizers, labelled texts, corpora and masked tokens."""

from vit.data.text.tokenizers import BPETokenizer, ByteTokenizer, CharTokenizer, tokenizer_from_dict, train_tokenizer

__all__ = ["BPETokenizer", "ByteTokenizer", "CharTokenizer", "tokenizer_from_dict", "train_tokenizer"]
