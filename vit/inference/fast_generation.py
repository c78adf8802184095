"""Chooses by measurement whether texts are generated with the compiled decoding step."""

import logging
import time
from collections.abc import Callable, Sequence

from torch import nn

from vit.generation import BuildError, Compiled, Hypothesis, Unsupported
from vit.inference.fast import GAIN
from vit.messages import number_of

ROUNDS = 2
Found = list[list[Hypothesis]]
Search = Callable[[Sequence[nn.Module]], Found]  # models -> the texts of the sources of a batch

log = logging.getLogger("vit")


class FastGeneration:
    """Generates with the compiled decoding step if the first batch is faster with it and has the same texts.

    Attributes:
        chosen: the models that generate; None before the first batch. Where the compiled step cannot be built, or does
            not support a model, they are those in eager mode.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.models, self.compiled, self.chosen = models, None, None
        self.reason = "no source was read"
        try:
            self.compiled = [Compiled(model) for model in models]
        except Unsupported as error:
            self.choose(models, f"the compiled decoding step does not support {error.part}")
        except BuildError as error:
            self.choose(models, str(error))

    def generate(self, search: Search) -> Found:
        """The texts of a batch; those of the first batch are generated in both ways, and returned as in eager mode."""
        if self.chosen is not None:
            return search(self.chosen)
        (expected, eager), (texts, compiled) = timed(search, self.models), timed(search, self.compiled)
        for _ in range(ROUNDS - 1):
            compiled = min(compiled, timed(search, self.compiled)[1])
            eager = min(eager, timed(search, self.models)[1])
        self.compare(expected, texts, eager, compiled)
        return expected

    def compare(self, expected: Found, found: Found, eager: float, compiled: float) -> None:
        """Choose by the texts of the first batch in eager mode and compiled, and by their seconds."""
        differing = sum([text.ids for text in a] != [text.ids for text in b]
                        for a, b in zip(expected, found, strict=True))
        took = f"per batch: eager {1000 * eager:.1f} ms, compiled {1000 * compiled:.1f} ms"
        if differing:
            self.choose(self.models, f"the compiled decoding step generates other texts for {differing} of "
                                     f"{number_of(len(found), 'source')} ({took})")
        elif compiled * GAIN > eager:
            self.choose(self.models, f"the compiled decoding step is not faster ({took})")
        else:
            self.choose(self.compiled, f"{eager / compiled:.2f} times as fast as eager mode; the same texts for "
                                       f"{number_of(len(found), 'source')} ({took})")

    def choose(self, models: Sequence[nn.Module], reason: str) -> None:
        self.chosen, self.reason = models, reason
        log.info("%s", self)

    def __str__(self) -> str:
        """One line for the log."""
        if self.chosen is None or self.chosen is self.models:
            return f"fast: eager mode, since {self.reason}"
        return f"fast: the compiled decoding step, {self.reason}"


def timed(search: Search, models: Sequence[nn.Module]) -> tuple[Found, float]:
    """The texts, and the seconds that they take."""
    start = time.perf_counter()
    return search(models), time.perf_counter() - start
