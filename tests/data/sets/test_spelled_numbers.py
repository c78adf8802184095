"""Spelled-out numbers against a table and a parser, and the data set of them."""

import numpy as np
import pytest

from vit.data import DataError, spelled_numbers
from vit.data.sets.spelled_numbers import LIMIT, spell_out

WRITTEN = {
    0: "zero",
    1: "one",
    10: "ten",
    11: "eleven",
    12: "twelve",
    13: "thirteen",
    15: "fifteen",
    18: "eighteen",
    19: "nineteen",
    20: "twenty",
    21: "twenty-one",
    40: "forty",
    80: "eighty",
    99: "ninety-nine",
    100: "one hundred",
    101: "one hundred one",
    110: "one hundred ten",
    342: "three hundred forty-two",
    1000: "one thousand",
    1001: "one thousand one",
    1234: "one thousand two hundred thirty-four",
    10_000: "ten thousand",
    15_016: "fifteen thousand sixteen",
    100_000: "one hundred thousand",
    999_999: "nine hundred ninety-nine thousand nine hundred ninety-nine",
    1_000_000: "one million",
    2_000_013: "two million thirteen",
    7_050_300_020: "seven billion fifty million three hundred thousand twenty",
    LIMIT - 1: "nine hundred ninety-nine billion nine hundred ninety-nine million nine hundred ninety-nine thousand "
    "nine hundred ninety-nine",
}


@pytest.mark.parametrize(("number", "words"), WRITTEN.items())
def test_known_spellings(number, words):
    assert spell_out(number) == words


def read(words):
    """Parses a spelling: sums of words, multiplied by hundred and powers of thousand."""
    values = {spell_out(n): n for n in (*range(20), *range(20, 100, 10))}
    total = group = 0
    for word in words.replace("-", " ").split():
        if word == "hundred":
            group *= 100
        elif word in ("thousand", "million", "billion"):
            total += group * 1000 ** (1 + ("thousand", "million", "billion").index(word))
            group = 0
        else:
            group += values[word]
    return total + group


def test_spellings_can_be_parsed():
    numbers = [*range(12_000), *np.random.default_rng(0).integers(0, LIMIT, 3000).tolist()]
    assert [read(spell_out(n)) for n in numbers] == numbers
    assert len({spell_out(n) for n in range(12_000)}) == 12_000


@pytest.mark.parametrize("number", [-1, LIMIT])
def test_numbers_out_of_range(number):
    with pytest.raises(ValueError, match=f"{number} is outside 0..{LIMIT - 1}"):
        spell_out(number)


def test_the_data_set():
    source = spelled_numbers()
    found = {key: [int(text) for text in split.sources] for key, split in source.splits.items()}
    assert {key: len(numbers) for key, numbers in found.items()} == {"train": 20_000, "val": 1_000, "test": 2_000}
    everything = sum(found.values(), [])
    assert len(set(everything)) == 23_000 and all(0 <= n < 1_000_000 for n in everything)
    for split in source.splits.values():
        assert all(read(split.targets[i]) == int(split.sources[i]) for i in range(0, len(split), 7))
    digits = np.bincount([len(str(n)) for n in everything])
    assert digits[1:4].tolist() == [10, 90, 900] and np.ptp(digits[4:]) <= 2, "all short numbers occur"
    assert 2 <= sum(n < 100 for n in found["test"]) < 30
    assert list(spelled_numbers().splits["test"].sources) == list(source.splits["test"].sources)
    assert list(spelled_numbers(split_seed=1).splits["test"].sources) != list(source.splits["test"].sources)


def test_all_numbers_below_the_limit():
    source = spelled_numbers(limit=105, train=90, val=5, test=10)
    assert sorted(int(text) for split in source.splits.values() for text in split.sources) == list(range(105))
    assert "val" not in spelled_numbers(100, 50, 0, 10).splits


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"limit": 100, "train": 90, "val": 10, "test": 1},
         "train 90, val 10 and test 1 add up to 101 numbers, but limit=100 allows only 100"),
        ({"limit": 0}, "limit=0 must be in 1..10000000"),
    ],
)
def test_wrong_sizes(options, text):
    with pytest.raises((DataError, ValueError), match=text):
        spelled_numbers(**options)


def test_without_training_pairs_there_is_only_evaluation():
    source = spelled_numbers(train=0, val=5, test=5)
    assert set(source.splits) == {"val", "test"}
    with pytest.raises(DataError, match="there are 0 training pairs"):
        source.check_train()
