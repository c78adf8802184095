"""Constrained decoding to valid UTF-8, for vocabularies whose tokens are bytes or parts of characters."""

from collections.abc import Sequence

import torch
from torch import Tensor

State = tuple[tuple[int, int], ...]  # ranges of the bytes that complete a character; () between characters
Texts = Sequence[Sequence[Sequence[int]]]  # ids of every beam of every row

ANY = (0x80, 0xBF)  # first and last continuation byte
LEADS: tuple[tuple[int, int, State], ...] = (  # first and last lead byte -> the bytes that follow (RFC 3629, section 4)
    (0x00, 0x7F, ()), (0xC2, 0xDF, (ANY,)), (0xE0, 0xE0, ((0xA0, 0xBF), ANY)), (0xE1, 0xEC, (ANY, ANY)),
    (0xED, 0xED, ((0x80, 0x9F), ANY)), (0xEE, 0xEF, (ANY, ANY)), (0xF0, 0xF0, ((0x90, 0xBF), ANY, ANY)),
    (0xF1, 0xF3, (ANY, ANY, ANY)), (0xF4, 0xF4, ((0x80, 0x8F), ANY, ANY)),
)


class Utf8:
    """The tokens that may follow a text, so that it remains the beginning of valid UTF-8 and ends between characters.

    Special tokens except `eos` are never allowed.

    Args:
        pieces: bytes of each id; empty for special tokens.
    """

    def __init__(self, pieces: Sequence[bytes], eos: int = 2) -> None:
        self.pieces, self.eos = pieces, eos
        # ids of one or more whole characters
        self.whole = frozenset(i for i, piece in enumerate(pieces) if piece and following((), piece) == ())
        self._forbidden: dict[tuple[State, torch.device], Tensor] = {}

    def suppress(self, log_probs: Tensor, texts: Texts) -> None:
        """Set the log-probabilities (B,W,V) of tokens that may not follow the texts to -inf, in place."""
        log_probs[..., len(self.pieces) :] = -torch.inf  # ids that are not tokens
        states = [[self.state(text) for text in beams] for beams in texts]
        distinct = list(dict.fromkeys(state for beams in states for state in beams))
        forbidden = [self.forbidden(state, log_probs.device) for state in distinct]
        if len(distinct) == 1:
            log_probs.index_fill_(-1, forbidden[0], -torch.inf)
            return
        numbers = torch.tensor([[distinct.index(state) for state in beams] for beams in states],
                               device=log_probs.device)  # (B,W)
        masks = log_probs.new_zeros(len(distinct), log_probs.shape[-1], dtype=torch.bool)
        for mask, ids in zip(masks, forbidden, strict=True):
            mask.index_fill_(0, ids, True)
        log_probs.masked_fill_(masks[numbers], -torch.inf)

    def state(self, text: Sequence[int]) -> State:
        """The bytes that the last character of a text lacks."""
        if not text or text[-1] in self.whole:  # nearly always, and called for every beam of every step
            return ()
        tail = b""
        for token in reversed(text):
            tail = self.pieces[token] + tail if 0 <= token < len(self.pieces) else tail
            lead = next((i for i in range(len(tail) - 1, -1, -1) if not ANY[0] <= tail[i] <= ANY[1]), None)
            if lead is not None:
                return following((), tail[lead:]) or ()
            if len(tail) > 3:
                break
        return ()

    def is_valid(self, text: Sequence[int]) -> bool:
        """Whether the ids are whole characters, without special tokens."""
        pieces = [self.pieces[token] if 0 <= token < len(self.pieces) else b"" for token in text]
        return all(pieces) and following((), b"".join(pieces)) == ()

    def forbidden(self, state: State, device: torch.device) -> Tensor:
        """The ids (F,) that may not follow, cached."""
        if (state, device) not in self._forbidden:
            ids = [i for i, piece in enumerate(self.pieces) if i != self.eos and (not piece or
                                                                                  following(state, piece) is None)]
            self._forbidden[state, device] = torch.tensor([*ids, *([self.eos] if state else [])], device=device)
        return self._forbidden[state, device]


def following(state: State, piece: bytes) -> State | None:
    """The state after further bytes; None if they are not valid UTF-8."""
    for byte in piece:
        if state:
            (low, high), rest = state[0], state[1:]
            found = rest if low <= byte <= high else None
        else:
            found = next((rest for low, high, rest in LEADS if low <= byte <= high), None)
        if found is None:
            return None
        state = found
    return state
