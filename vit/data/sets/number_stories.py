"""Generated texts about people, things and numbers: questions about a story, and a corpus of related sentences.

Both use the same vocabulary, so that pre-training on the corpus helps with the questions.
"""

import numpy as np
import torch

from vit.counters import uniform
from vit.data.sample_names import PackedStrings, RowNames
from vit.data.sets.spelled_numbers import spell_out
from vit.data.source import Source
from vit.data.text.corpus import CorpusSource, CorpusSplit
from vit.data.text.dataset import TextSplit

PEOPLE = ("ann", "ben", "cleo", "dan")
THINGS = ("apples", "books", "coins", "pears", "shells", "stamps")
ASIDES = ("it rains today", "the sun is out", "the shop is closed", "the train is late", "all is quiet", "it is cold")
EVENTS = (("buys", 1), ("finds", 1), ("gets", 1), ("loses", -1), ("sells", -1), ("gives away", -1))
ANSWERS = ("first", "second", "third")
MAX_COUNT = 20  # most things that a person has


def number_questions(
    pairs: bool = True, train: int = 20_000, val: int = 1_000, test: int = 2_000, split_seed: int = 0
) -> Source:
    """Which of three people has the most, or the fewest things: the first, second or third person of the story.

    "ben has two coins and it rains today and ann has ten pears ..." | "who has the most": second. The answer depends on
    the order of the words, and most words are irrelevant. With `pairs`, story and question are two texts, otherwise one
    text.

    Raises:
        ValueError: a number is below 0.
    """
    counts = _checked({"train": train, "val": val, "test": test})
    splits = {
        key: _questions(f"number_questions {key}", count, pairs, split_seed, number)
        for number, (key, count) in enumerate(counts.items())
        if count
    }
    return Source("number_questions", list(ANSWERS), splits)


def number_stories(train: int = 4_000, val: int = 200, test: int = 400, split_seed: int = 0) -> CorpusSource:
    """Documents of 4 to 8 sentences about a person who gains and loses things; the numbers are consistent.

    Raises:
        ValueError: a number is below 0.
    """
    counts = _checked({"train": train, "val": val, "test": test})
    splits = {
        key: _stories(f"number_stories {key}", count, split_seed, number + 10)
        for number, (key, count) in enumerate(counts.items())
        if count
    }
    return CorpusSource("number_stories", splits)


def _checked(counts: dict[str, int]) -> dict[str, int]:
    if wrong := next((key for key, count in counts.items() if count < 0), None):
        raise ValueError(f"{wrong}={counts[wrong]} must be at least 0, the number of texts or documents")
    return counts


def _questions(name: str, count: int, pairs: bool, seed: int, stream: int) -> TextSplit:
    draws = uniform(seed, stream, torch.arange(count)[:, None], torch.arange(24)).numpy()
    generated = [_question(row) for row in draws]
    stories, questions, answers = zip(*generated, strict=True)
    columns = (stories, questions) if pairs else ([f"{story} . {question}" for story, question, _ in generated],)
    texts = tuple(PackedStrings(column) for column in columns)
    return TextSplit(np.array(answers, dtype=np.int64), RowNames(name, np.arange(count)), texts)


def _question(draws: np.ndarray) -> tuple[str, str, int]:
    """(24,) numbers in [0, 1) → story, question, index of the correct one of ANSWERS."""
    people = np.argsort(draws[:4])[:3]
    things = np.argsort(draws[4:10])[:3]
    amounts = 1 + _different(draws[10:13], MAX_COUNT)
    owned = zip(people, amounts, things, strict=True)
    clauses = [f"{PEOPLE[p]} has {spell_out(int(n))} {THINGS[t]}" for p, n, t in owned]
    for draw, aside in zip(draws[13:15], np.argsort(draws[15:21])[:2], strict=True):
        clauses.insert(int(draw * (len(clauses) + 1)), ASIDES[aside])  # before, between or after the clauses
    most = draws[21] < 2 / 3  # more often than "fewest", so that a simple rule is learned first
    question, answer = ("who has the most", amounts.argmax()) if most else ("who has the fewest", amounts.argmin())
    return " and ".join(clauses), question, int(answer)


def _different(draws: np.ndarray, count: int) -> np.ndarray:
    """Three different numbers of 0..count-1."""
    chosen: list[int] = []
    for k, draw in enumerate(draws):
        number = int(draw * (count - k))
        for earlier in sorted(chosen):
            number += number >= earlier
        chosen.append(number)
    return np.array(chosen)


def _stories(name: str, count: int, seed: int, stream: int) -> CorpusSplit:
    draws = uniform(seed, stream, torch.arange(count)[:, None], torch.arange(24)).numpy()
    documents = [_story(row) for row in draws]
    lines = [line for document in documents for line in document]
    owner = np.repeat(np.arange(count), [len(document) for document in documents])
    return CorpusSplit(PackedStrings(lines), RowNames(name, np.arange(len(lines))), owner)


def _story(draws: np.ndarray) -> list[str]:
    """(24,) numbers in [0, 1) → the sentences of a document, each of which continues the one before."""
    person, thing = PEOPLE[int(draws[0] * len(PEOPLE))], THINGS[int(draws[1] * len(THINGS))]
    amount = 1 + int(draws[2] * MAX_COUNT)
    lines = [f"{person} has {spell_out(amount)} {thing}"]
    for step in range(3 + int(draws[3] * 5)):
        size, event = draws[4 + 2 * step : 6 + 2 * step]
        verb, sign = EVENTS[int(event * len(EVENTS))]
        room = MAX_COUNT - amount if sign > 0 else amount
        if room == 0:
            verb, sign, room = ("buys", 1, MAX_COUNT) if sign < 0 else ("sells", -1, MAX_COUNT)
        change = 1 + int(size * min(room, 12))
        before, amount = amount, amount + sign * change
        start = f"{'with' if sign > 0 else 'of'} {spell_out(before)} {thing}"
        lines.append(f"{start} {person} {verb} {spell_out(change)} and has {spell_out(amount)}")
    return lines
