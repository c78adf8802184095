"""Beam search over a batch of rows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vit.generation.candidates import candidates
from vit.generation.models import Leaving, Writers, forbid
from vit.generation.settings import Best, Generation, Hypothesis


@dataclass
class Beams:
    """The lines that are followed: the sums of their log-probabilities, what they have written, and of which tokens.

    The lines of a row stand beside each other, and a line never moves: what changes is `seen`, which of all tokens
    that the row's lines ever wrote are its own. So nothing that the model has kept is copied when lines die and fork.
    """

    scores: Tensor  # (B,W)
    written: Tensor  # (B,W,n)
    seen: Tensor  # (B,W,length of the cache)

    def follow(self, parents: Tensor, ids: Tensor, scores: Tensor) -> None:
        """Lines (B,W') that go on from lines of before with an id each."""
        B, W = parents.shape
        own = torch.eye(W, dtype=torch.bool, device=ids.device).expand(B, -1, -1)
        self.scores = scores
        self.written = torch.cat([pick(self.written, parents), ids[..., None]], dim=-1)
        self.seen = torch.cat([pick(self.seen, parents), own], dim=-1)

    def keep(self, rows: Tensor) -> None:
        self.scores, self.written, self.seen = self.scores[rows], self.written[rows], self.seen[rows]


def pick(x: Tensor, lines: Tensor) -> Tensor:
    """x (B,W,n) -> the rows `lines` (B,W') of it, (B,W',n)"""
    return x.gather(1, lines[..., None].expand(-1, -1, x.shape[-1]))


def beam_search(writers: Writers, first: Tensor, settings: Generation, longest: int) -> list[list[Hypothesis]]:
    """For every row its best texts, after the forced ids `first` (B,P).

    As many lines as `beam` are followed. Texts that end among the best `beam` continuations are put aside, and a row
    is done when no line can get past those any more: the result is what it would be if all lines went on to the end.
    """
    B, P = first.shape
    best, leaving = [Best(settings.n_best) for _ in range(B)], Leaving(B)
    logits, norm = writers.advance(first)  # (B,1,V), (B,1)
    beams = Beams(norm.new_zeros(B, 1), first[:, None, 1:], first.new_ones(B, 1, P, dtype=torch.bool))
    done = [False] * B
    for step in range(1, longest + 1):
        forbid(logits, beams.written, step, settings)
        W, V = logits.shape[1:]
        count = min(2 * settings.beam, W * V)
        values, parents, ids = candidates(logits, norm, beams.scores, count)  # (B,count) each
        ended = ids == settings.eos
        put_aside(best, leaving.rows, done, beams, (values, parents, ids, ended), step, step == longest, settings)
        if step == longest:
            break
        W = min(settings.beam, max(1, count - W))  # every line has one candidate that ends it
        go_on = ended.long().argsort(dim=-1, stable=True)[:, :W]
        values, ids = values.gather(1, go_on).masked_fill_(ended.gather(1, go_on), -torch.inf), ids.gather(1, go_on)
        beams.follow(parents.gather(1, go_on), ids, values)
        for place, (row, top) in enumerate(zip(leaving.rows, values[:, 0].tolist(), strict=True)):
            done[place] = top == -torch.inf or best[row].beats(settings.bound(top, step, longest))
        if all(done):
            break
        if (places := leaving.due(done)) is not None:
            kept = torch.tensor(places, device=ids.device)
            writers.keep(kept)
            beams.keep(kept)
            ids, done = ids[kept], [False] * len(places)
        logits, norm = writers.advance(ids, beams.seen)
    return [each.found for each in best]


def put_aside(best, rows, done, beams: Beams, found, step: int, last: bool, settings: Generation) -> None:
    """Add the texts that end here to the best of their rows; where nothing at all can follow, the lines as they are."""
    values, parents, ids, ended = (each[:, : settings.beam] for each in found)
    possible = values > -torch.inf
    ends = possible if last else possible & ended
    for place, nth in ends.nonzero().tolist():
        if done[place]:
            continue
        written = beams.written[place, parents[place, nth]].tolist()
        if not (end := bool(ended[place, nth])):
            written.append(int(ids[place, nth]))
        best[rows[place]].add(Hypothesis(tuple(written), settings.score(float(values[place, nth]), step), end))
    for place in (~possible[:, 0]).nonzero()[:, 0].tolist():
        if not done[place] and not best[rows[place]].found:
            for line in (beams.scores[place] > -torch.inf).nonzero()[:, 0].tolist():
                score = settings.score(float(beams.scores[place, line]), max(step - 1, 1))
                best[rows[place]].add(Hypothesis(tuple(beams.written[place, line].tolist()), score, False))
