"""Tokenizers: bytes, which need no vocabulary, byte-level BPE and characters, trained on the user's texts.

The first two can encode any text, since all 256 bytes are tokens; a `CharTokenizer` encodes a character that is not in
its vocabulary as its unknown token. The name of a special token in a text is encoded as text.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from vit.messages import check_several

PAD, BOS, EOS, UNK, MASK = range(5)
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>", "<mask>")
_FIRST = len(SPECIALS)  # the id of the first byte


class _BaseTokenizer:
    """Base class of tokenizers; `pieces` are the bytes of each id, empty for special tokens."""

    pieces: list[bytes]

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    def decode(self, ids: Iterable[int], errors: str = "replace") -> str:
        """The text up to the first eos, without special tokens; invalid UTF-8 becomes the character �, or is left out
        with errors="ignore".
        """
        return _text(self.pieces, ids, errors)

    def lacking(self, text: str) -> str:
        """The first character of a text that becomes the unknown token; empty if there is none."""
        return ""

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The text of each id for display, or the name of a special token."""
        return [_display_text(self.pieces, i) for i in ids]


class ByteTokenizer(_BaseTokenizer):
    """The UTF-8 bytes of a text plus 5: 261 ids, without a vocabulary file."""

    kind = "byte"

    def __init__(self, lower: bool = False):
        self.lower = lower

    @cached_property
    def pieces(self) -> list[bytes]:
        """The bytes of each id, empty for special tokens."""
        return [b""] * _FIRST + [bytes([b]) for b in range(256)]

    def encode(self, text: str) -> list[int]:
        """Ids without bos or eos; an unpaired surrogate, which UTF-8 cannot encode, becomes a question mark."""
        return [b + _FIRST for b in _plain(text, self.lower).encode()]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        check_several("texts", texts)
        return [self.encode(text) for text in texts]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "lower": self.lower}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ByteTokenizer":
        return cls(_flag(values))


class BPETokenizer(_BaseTokenizer):
    """Byte-level byte-pair encoding (arXiv 1508.07909), which applies `merges` of adjacent tokens in order.

    The ids are special tokens, 256 bytes, then the results of the merges. A merge is a pair of strings in which each
    byte is a visible character of `byte_alphabet()`.

    Raises:
        ValueError: a merge is not a pair, or uses a token that does not exist.
    """

    kind = "bpe"

    def __init__(self, merges: Sequence[tuple[str, str]], lower: bool = False):
        for number, merge in enumerate(merges, 1):
            if len(merge) != 2:
                raise ValueError(f"merge {number} of the tokenizer, {merge!r}, is not a pair of tokens")
        self.merges, self.lower = [(str(a), str(b)) for a, b in merges], lower
        self._ids = {letter: _FIRST + i for i, letter in enumerate(byte_alphabet())}
        for number, (a, b) in enumerate(self.merges, 1):
            if a not in self._ids or b not in self._ids:
                raise ValueError(f"merge {number} of the tokenizer joins {a!r} and {b!r}, one of which is not a token")
            self._ids.setdefault(a + b, _FIRST + len(self._ids))

    @classmethod
    def train(
        cls, lines: Iterable[str], vocab_size: int = 8000, min_frequency: int = 2, lower: bool = False
    ) -> "BPETokenizer":
        """Learns up to `vocab_size` tokens from lines; merges pairs that occur at least `min_frequency` times.

        Raises:
            ValueError: `vocab_size` is less than the special tokens and all bytes.
        """
        check_several("lines", lines)
        if vocab_size < _FIRST + 256:
            raise ValueError(f"vocab_size {vocab_size} is below {_FIRST + 256}, the number of special tokens and bytes")
        _configure_threads()
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        learner = Tokenizer(models.BPE())
        learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - _FIRST,
            min_frequency=min_frequency,
            initial_alphabet=list(byte_alphabet()),
            show_progress=False,
        )
        learner.train_from_iterator((_plain(line, lower) for line in lines), trainer)
        return cls(_merges_of(learner), lower)

    @cached_property
    def pieces(self) -> list[bytes]:
        """The bytes of each id, empty for special tokens."""
        byte = {letter: b for b, letter in bytes_to_unicode().items()}
        return [b""] * _FIRST + [bytes(byte[letter] for letter in piece) for piece in self._ids]

    def encode(self, text: str) -> list[int]:
        """Ids without bos or eos; an unpaired surrogate, which UTF-8 cannot encode, becomes a question mark."""
        return self._hf_tokenizer.encode(_plain(text, self.lower)).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        check_several("texts", texts)
        encodings = self._hf_tokenizer.encode_batch_fast([_plain(text, self.lower) for text in texts])
        return [encoding.ids for encoding in encodings]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "lower": self.lower, "merges": [list(merge) for merge in self.merges]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "BPETokenizer":
        return cls(values["merges"], _flag(values))

    @cached_property
    def _hf_tokenizer(self) -> Any:
        _configure_threads()
        from tokenizers import Tokenizer, models, pre_tokenizers

        form = Tokenizer(models.BPE(vocab=self._ids, merges=self.merges))
        form.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return form

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_hf_tokenizer"}


class CharTokenizer(_BaseTokenizer):
    """Characters (Unicode code points): the ids are special tokens, then `characters` in order.

    Raises:
        ValueError: an entry of `characters` is not one character, or occurs twice.
    """

    kind = "char"

    def __init__(self, characters: Sequence[str], lower: bool = False):
        self.characters, self.lower = [str(each) for each in characters], lower
        self._ids = {each: _FIRST + i for i, each in enumerate(self.characters)}
        if wrong := [each for each in self.characters if len(each) != 1 or "\ud800" <= each <= "\udfff"]:
            raise ValueError(f"{wrong[0]!r} in the tokenizer is not one character")
        if len(self._ids) < len(self.characters):
            raise ValueError(f"the tokenizer has {len(self.characters)} characters, of which {len(self._ids)} differ")

    @classmethod
    def train(cls, lines: Iterable[str], vocab_size: int = 8000, lower: bool = False) -> "CharTokenizer":
        """The characters of the lines in the order of their code points; if there are too many, the most frequent ones.

        Raises:
            ValueError: `vocab_size` leaves no room for characters.
        """
        check_several("lines", lines)
        if vocab_size <= _FIRST:
            raise ValueError(f"vocab_size {vocab_size} is not above {_FIRST}, the number of special tokens")
        counts = Counter()
        for line in lines:
            counts.update(_plain(line, lower))
        found = sorted(counts, key=lambda each: (-counts[each], each))[: vocab_size - _FIRST]
        return cls(sorted(found), lower)

    @cached_property
    def pieces(self) -> list[bytes]:
        """The bytes of each id, empty for special tokens."""
        return [b""] * _FIRST + [each.encode() for each in self.characters]

    def encode(self, text: str) -> list[int]:
        """Ids without bos or eos; characters that the training texts do not have become the unknown token."""
        return [self._ids.get(each, UNK) for each in _plain(text, self.lower)]

    def lacking(self, text: str) -> str:
        """The first character of a text that becomes the unknown token; empty if there is none."""
        return next((each for each in _plain(text, self.lower) if each not in self._ids), "")

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        check_several("texts", texts)
        return [self.encode(text) for text in texts]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "lower": self.lower, "characters": self.characters}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "CharTokenizer":
        return cls(values["characters"], _flag(values))


Tokenizer = ByteTokenizer | BPETokenizer | CharTokenizer
KINDS: dict[str, type[Tokenizer]] = {"byte": ByteTokenizer, "bpe": BPETokenizer, "char": CharTokenizer}


def tokenizer_from_dict(values: dict[str, Any]) -> Tokenizer:
    """The tokenizer that `to_dict` saved.

    Raises:
        ValueError: the kind is unknown, a key is missing, or merges are invalid.
    """
    kind = values.get("kind") if isinstance(values, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"tokenizer kind {kind!r} is not one of {', '.join(KINDS)}")
    try:
        return KINDS[kind].from_dict(values)
    except (KeyError, TypeError) as error:
        raise ValueError(f"the {kind} tokenizer cannot be read: {type(error).__name__} {error}") from error


def train_tokenizer(
    kind: str, lines: Iterable[str], vocab_size: int = 8000, min_frequency: int = 2, lower: bool = False
) -> Tokenizer:
    """Trains a tokenizer of this kind on lines; only `lower` applies to bytes, which need no training, and
    `min_frequency` to BPE.

    Raises:
        ValueError: `kind` is unknown, or as `BPETokenizer.train` and `CharTokenizer.train`.
    """
    if kind not in KINDS:
        raise ValueError(f"tokenizer kind {kind!r} is not one of {', '.join(KINDS)}")
    if kind == "char":
        return CharTokenizer.train(lines, vocab_size, lower)
    return ByteTokenizer(lower) if kind == "byte" else BPETokenizer.train(lines, vocab_size, min_frequency, lower)


def byte_alphabet() -> list[str]:
    """The visible characters that represent the 256 bytes in the files of byte-level BPE since GPT-2, sorted."""
    return sorted(bytes_to_unicode().values())


def bytes_to_unicode() -> dict[int, str]:
    """Byte → character: printable Latin-1 is unchanged, other bytes are mapped to the characters from 256 on."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    invisible = [b for b in range(256) if b not in set(visible)]
    return {b: chr(b) for b in visible} | {b: chr(256 + i) for i, b in enumerate(invisible)}


def _merges_of(learner: Any) -> list[tuple[str, str]]:
    return [tuple(merge) for merge in json.loads(learner.to_str())["model"]["merges"]]


def _configure_threads() -> None:
    """Enables the threads of `tokenizers` before its import; without this it warns in every worker."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def _plain(text: str, lower: bool) -> str:
    text = text.lower() if lower else text
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _text(pieces: list[bytes], ids: Iterable[int], errors: str = "replace") -> str:
    found = []
    for i in map(int, ids):
        if i == EOS:
            break
        found.append(pieces[i] if 0 <= i < len(pieces) else "\ufffd".encode())
    return b"".join(found).decode("utf-8", errors)


def _display_text(pieces: list[bytes], i: int) -> str:
    return SPECIALS[i] if 0 <= i < _FIRST else _text(pieces, [i])


def _flag(values: dict[str, Any]) -> bool:
    if not isinstance(values["lower"], bool):
        raise TypeError(f"lower={values['lower']!r} must be true or false")
    return values["lower"]
