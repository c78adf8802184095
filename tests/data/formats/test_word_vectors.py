"""Word vectors in the formats of GloVe and word2vec."""

import gzip

import numpy as np
import pytest

from vit.data import DataError, read_vectors

WORDS = ["the", "dog", "straße", ". . .", "dog"]
VECTORS = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def lines(words=WORDS, vectors=VECTORS):
    return [f"{word} {' '.join(map(repr, map(float, row)))}" for word, row in zip(words, vectors, strict=True)]


@pytest.mark.parametrize("header", [None, "5 4"])
@pytest.mark.parametrize("zipped", [False, True])
def test_vectors_of_requested_words(tmp_path, header, zipped):
    text = "\n".join(([header] if header else []) + [line + " " for line in lines()]) + "\n"
    path = tmp_path / ("v.txt.gz" if zipped else "v.txt")
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    matrix, found = read_vectors(path, ["dog", "cat", "straße", "", ". . .", "dog", "5"])
    assert found.tolist() == [True, False, True, False, True, True, False]
    assert matrix.dtype == np.float32 and matrix.shape == (7, 4)
    assert np.array_equal(matrix[[0, 2, 4, 5]], VECTORS[[1, 2, 3, 1]]), "the first vector of a repeated word is used"
    assert not matrix[[1, 3, 6]].any()


def test_fewer_vectors_than_the_header_states_are_reported(tmp_path, caplog):
    (tmp_path / "v.txt").write_text("2 2\nthe 1 2\ndog 3 4\n")
    assert read_vectors(tmp_path / "v.txt", ["dog"])[1].all() and not caplog.text
    (tmp_path / "v.txt").write_text("3 2\nthe 1 2\ndog 3 4\n")
    assert read_vectors(tmp_path / "v.txt", ["dog"])[1].all()
    assert "v.txt: has 2 word vectors, but its header states 3; the file may be incomplete" in caplog.text


def test_tabs_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "v.txt"
    for separator, first in (("\t", ""), (" ", "\ufeff"), ("\t", "\ufeff2\t2\n")):
        path.write_text(first + "".join(separator.join(row) + "\n" for row in (("the", "1", "2"), ("dog", "3", "4"))))
        assert read_vectors(path, ["the", "dog"])[0].tolist() == [[1, 2], [3, 4]]


def test_invalid_utf8_as_gensim_writes_it(tmp_path):
    (tmp_path / "v.txt").write_bytes(b"\xff\xfe 1 2\n" + b"dog 3 4\r\n")
    assert read_vectors(tmp_path / "v.txt", ["dog"])[0].tolist() == [[3, 4]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the 1 2 3\ndog 1 2\n", "v.txt line 2: has 2 numbers, but the first line has 3"),
        ("2 3\nthe 1 2 3\ndog 1 2\n", "v.txt line 3: has 2 numbers, but the header states 3"),
        ("the 1 2\n. . 1 2\ncat 3 4 5\n", "v.txt line 3: has 3 numbers, but the first line has 2; all lines must"),
        ("the 1 2\ncat 3 4 5 6\n", "v.txt line 2: has 4 numbers, but the first line has 2"),
        ("2 1\nthe 1 2\ndog 1 2\n", "v.txt line 2: has 2 numbers, but the header states 1"),
        ("the 1 2\ndog 1 x\n", "v.txt line 2: 'x' is not a number; correct or remove the line"),
        ("the 1 2\ndog nan 2\n", "v.txt line 2: 'nan' is not a finite number; correct or remove the line"),
        ("the 1 -inf\n", "v.txt line 1: '-inf' is not a finite number"),
        ("the 1e39 2\n", "v.txt line 1: '1e39' is not a finite number"),
        ("the\n", "v.txt line 1: has no numbers after the word"),
        ("", "has 0 word vectors"),
        ("3 50\n", "has 0 word vectors"),
    ],
)
def test_wrong_files(tmp_path, text, message):
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        read_vectors(tmp_path / "v.txt", ["dog", "the"])


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match="the file of word vectors does not exist"):
        read_vectors(tmp_path / "none", [])
    (tmp_path / "v.gz").write_bytes(gzip.compress(b"dog 1 2\n" * 100)[:30])
    with pytest.raises(DataError, match="v.gz: cannot be read"):
        read_vectors(tmp_path / "v.gz", ["dog"])
