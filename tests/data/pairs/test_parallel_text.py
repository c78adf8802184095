"""Parallel text in files and tables, and its error messages."""

import csv
import gzip
import json

import numpy as np
import pytest

from tests.data.shares import near
from vit.data import DataError, PairSource, PairSplit, corpus, parallel
from vit.data.formats.delimited import read_lines


def sizes(source):
    return {key: len(split) for key, split in source.splits.items()}


def pairs(split):
    return [(split.sources[i], split.targets[i]) for i in range(len(split))]


def write(root, files):
    for name, content in files.items():
        data = content if isinstance(content, bytes) else "".join(line + "\n" for line in content).encode()
        (root / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return root


def numbered(word, count):
    return [f"{word} {i}" for i in range(count)]


@pytest.mark.parametrize("zipped", ["", ".gz"])
def test_files_of_lines(tmp_path, zipped):
    files = {"train.en": numbered("a", 5), "train.de": numbered("b", 5), "val.en": ["x"], "val.de": ["y"]}
    files |= {"test_2016.en": numbered("t", 2), "test_2016.de": numbered("u", 2)}
    root = write(tmp_path, {name + zipped: lines for name, lines in files.items()})
    source = parallel(root, test="test_2016")
    assert sizes(source) == {"train": 5, "val": 1, "test": 2} and not source.images and source.left_out == []
    assert pairs(source.splits["train"]) == [(f"a {i}", f"b {i}") for i in range(5)]
    assert source.splits["test"].names[1] == f"test_2016.en{zipped} line 2"
    assert source.split_lists()["val"] == [(f"val.en{zipped} line 1", "y")]
    turned = parallel(root, "de", "en", test="test_2016")
    assert pairs(turned.splits["val"]) == [("y", "x")]


REFERENCES = [["b 0", "c 0", "d 0"], ["b 1", "d 1"], ["b 2"], ["b 3", "c 3", "d 3"]]


def references(split):
    """(source, its targets) by `PairSplit.by_source`."""
    return [(split.sources[rows[0]], [split.targets[row] for row in rows]) for rows in split.by_source()]


def columns_of_references():
    """The columns of `REFERENCES`, with empty cells where there are fewer."""
    return [[next((text for text in each if text[0] == letter), "") for each in REFERENCES] for letter in "bcd"]


@pytest.mark.parametrize("mark", [".ref", ".", ""])
@pytest.mark.parametrize("first", [0, 1])
def test_numbered_files_of_references(tmp_path, mark, first, caplog):
    files = {"train.en": numbered("a", 5), "train.de": numbered("b", 5), "test.en": numbered("t", 4)}
    files |= {f"test.de{mark}{first + k}": lines for k, lines in enumerate(columns_of_references())}
    root = write(tmp_path, files)
    with caplog.at_level("INFO", "vit"):
        source = parallel(root)
    assert references(source.splits["test"]) == [(f"t {i}", REFERENCES[i]) for i in range(4)]
    assert "14 texts of 9 sources, up to 3 each" in caplog.text
    assert source.splits["test"].names[0] == source.splits["test"].names[2] == "test.en line 1"
    whole = PairSplit.concat(list(source.splits.values()))
    assert [len(each) for _, each in references(whole)] == [1] * 5 + [3, 2, 1, 3]
    (root / f"test.de{mark}{first + 1}").write_text("c\n")
    with pytest.raises(DataError, match=rf"test.en has 4 lines but test.de{mark}{first + 1} has 1"):
        parallel(root)


@pytest.mark.parametrize("kind", ["tsv", "jsonl"])
def test_several_columns_of_references(tmp_path, kind):
    cells = list(zip(numbered("a", 4), *columns_of_references(), ["train", "test", "test", "test"], strict=True))
    header = ("en", "one", "two", "three", "split")
    if kind == "tsv":
        lines = ["\t".join(each) for each in (header, *cells)]
    else:
        lines = [json.dumps(dict(zip(header, each, strict=True))) for each in cells]
    source = parallel(write(tmp_path, {f"t.{kind}": lines}) / f"t.{kind}", "en", ["one", "two", "three"])
    assert references(source.splits["test"]) == [(f"a {i}", REFERENCES[i]) for i in (1, 2, 3)]
    assert references(source.splits["train"]) == [("a 0", REFERENCES[0])]
    single = parallel(tmp_path / f"t.{kind}", "en", ["one"]).splits["test"]
    assert pairs(single) == [(f"a {i}", f"b {i}") for i in (1, 2, 3)] and single.groups is None
    with pytest.raises(DataError, match="two is empty, as in 2 of"):
        parallel(tmp_path / f"t.{kind}", "en", ["two", "one"])
    with pytest.raises(ValueError, match="must name at least one side, and each only once"):
        parallel(tmp_path / f"t.{kind}", "en", ["one", "one"])
    with pytest.raises(ValueError, match="source and target are both 'en'"):
        parallel(tmp_path / f"t.{kind}", "en", ["one", "en"])


def test_endings_of_references_may_differ_by_split(tmp_path):
    files = {"train.en": numbered("a", 3), "train.de": numbered("b", 3), "val.en": ["x"], "val.de": ["y"]}
    root = write(tmp_path, {**files, "test.en": ["s"], "test.de": ["t"], "test.de2": ["u"]})
    source = parallel(root, target=["de", "de2"])
    assert references(source.splits["test"]) == [("s", ["t", "u"])]
    assert pairs(source.splits["train"]) == [(f"a {i}", f"b {i}") for i in range(3)]
    assert pairs(parallel(root).splits["test"]) == [("s", "t")]


def test_equal_sources_are_no_references_of_each_other(tmp_path):
    root = write(tmp_path, {"train.en": ["a", "a", "b"], "train.de": ["x", "y", "z"]})
    split = parallel(root, fractions=(1, 0, 0)).splits["train"]
    assert split.groups is None and split.by_source() == [[0], [1], [2]]


def test_conventional_names_and_a_separate_validation_set(tmp_path):
    root = write(tmp_path, {"train.en": numbered("a", 20), "train.de": numbered("b", 20)})
    source = parallel(root)
    assert near(sizes(source), {"train": 16, "val": 2, "test": 2})
    everything = [pair for split in source.splits.values() for pair in pairs(split)]
    assert sorted(everything) == sorted((f"a {i}", f"b {i}") for i in range(20))
    assert pairs(parallel(root, split_seed=1).splits["test"]) != pairs(source.splits["test"])
    write(root, {"dev.en": ["x"], "dev.de": ["y"]})
    assert sizes(parallel(root)) == {"train": 20, "val": 1}
    write(root, {"test.en": ["x"], "test.de": ["y"]})
    (root / "dev.en").unlink(), (root / "dev.de").unlink()
    assert near(sizes(parallel(root)), {"train": 18, "val": 2, "test": 1})


def test_only_newlines_end_lines(tmp_path):
    odd = "one\u2028still\x85one\x0bone\x0cone\x1cone"
    path = tmp_path / "lines"
    path.write_bytes(b"\xef\xbb\xbffirst\r\n" + odd.encode() + b"\nlast without newline")
    assert read_lines(path) == ["first", odd, "last without newline"]
    path.write_bytes(b"")
    assert read_lines(path) == []


def test_tables(tmp_path):
    rows = [(f'say "{i}", please', f"b {i}") for i in range(10)]
    write(tmp_path, {"t.tsv": ["en\tnote\tde", *(f"{a}\t\t{b}" for a, b in rows)]})
    quoted = [f'"{a.replace(chr(34), chr(34) * 2)}",{b}' for a, b in rows]
    write(tmp_path, {"t.csv.gz": ["en,de", *quoted]})
    nested = [json.dumps({"translation": {"en": a, "de": b}}) for a, b in rows]
    write(tmp_path, {"t.jsonl": [*nested[:5], "", *nested[5:]]})
    write(tmp_path, {"bare.tsv": [f"{a}\t{b}" for a, b in rows]})
    for name, source, target in (
        ("t.tsv", "en", "de"),
        ("t.csv.gz", "en", "de"),
        ("t.jsonl", "translation.en", "translation.de"),
        ("bare.tsv", 0, 1),
    ):
        found = parallel(tmp_path / name, source, target, fractions=(0.5, 0.2, 0.3))
        assert near(sizes(found), {"train": 5, "val": 2, "test": 3})
        assert sorted(pair for split in found.splits.values() for pair in pairs(split)) == sorted(rows)
    names = [name for split in found.splits.values() for name in split.names]
    assert sorted(names) == sorted(f"bare.tsv line {i}" for i in range(1, 11))
    assert parallel(tmp_path / "t.tsv", fractions=(1, 0, 0)).splits["train"].names[0] == "t.tsv line 2"
    assert (
        parallel(tmp_path / "t.jsonl", "translation.en", "translation.de", fractions=(1, 0, 0)).splits["train"].names[5]
        == "t.jsonl line 7"
    )


def test_split_column_and_tables_in_a_folder(tmp_path):
    lines = ["en\tde\tsplit", "a\tb\ttrain", "c\td\tdev", "e\tf\tTest", "g\th\ttrain"]
    source = parallel(write(tmp_path, {"all.tsv": lines}) / "all.tsv")
    assert sizes(source) == {"train": 2, "val": 1, "test": 1} and pairs(source.splits["test"]) == [("e", "f")]
    named = ["en\tde\tpart", *lines[1:]]
    assert sizes(parallel(write(tmp_path, {"n.tsv": named}) / "n.tsv", split="part")) == sizes(source)
    write(tmp_path, {"train.jsonl": ['{"en": "a", "de": "b"}'] * 4, "valid.csv": ["en,de", "x,y"]})
    assert sizes(parallel(tmp_path)) == {"train": 4, "val": 1}
    with pytest.raises(DataError, match="n.tsv line 3: split 'half' is not one of train, training, val"):
        parallel(write(tmp_path, {"n.tsv": ["en\tde\tsplit", "a\tb\ttrain", "a\tb\thalf"]}) / "n.tsv")
    skipped = parallel(write(tmp_path, {"n.tsv": ["en\tde\tsplit", "a\tb\ttrain", "a\tb\thalf"]}) / "n.tsv",
                       on_unknown_split="skip", fractions=[1, 0, 0])
    assert sizes(skipped) == {"train": 1} and skipped.left_out == [("n.tsv line 3", "is of the split 'half'")]
    with pytest.raises(ValueError, match="on_unknown_split='keep' is not one of error, skip"):
        parallel(tmp_path / "n.tsv", on_unknown_split="keep")
    only = parallel(write(tmp_path, {"n.tsv": ["en\tde\tsplit", "a\tb\ttest"]}) / "n.tsv")
    assert sizes(only) == {"test": 1} and not only.images
    with pytest.raises(DataError, match="there are 0 training pairs; splits found: test"):
        only.check_train()


def test_the_first_column_of_a_file_without_a_header_states_the_splits(tmp_path):
    rows = [("test" if i < 3 else "val" if i < 5 else "train", f"a {i}", f"b {i}") for i in range(20)]
    (tmp_path / "t.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    splits = parallel(tmp_path / "t.tsv", source=1, target=2, split=0).splits
    assert {key: len(split) for key, split in splits.items()} == {"train": 15, "val": 2, "test": 3}


def test_options_without_effect_are_reported(tmp_path, caplog):
    (tmp_path / "train.tsv").write_text("en\tde\n" + "".join(f"a {i}\tb {i}\n" for i in range(40)))
    parallel(tmp_path), parallel(tmp_path / "train.tsv")
    assert not caplog.text
    parallel(tmp_path / "train.tsv", val="dev", test="2017")
    assert "data.val=dev, data.test=2017 have no effect, because " in caplog.text and "is one table" in caplog.text
    parallel(tmp_path, split="part")
    assert "data.split=part has no effect, because " in caplog.text and "is a folder" in caplog.text
    (tmp_path / "text.txt").write_text("".join(f"line {i}\n" for i in range(2_000)))
    corpus(tmp_path / "text.txt", val="dev.txt")
    assert "data.val=dev.txt has no effect, because " in caplog.text and "is one file" in caplog.text


def test_two_tables_of_one_split_are_an_error(tmp_path):
    for name in ("train.tsv", "train.csv"):
        (tmp_path / name).write_text("en\tde\n" + "a\tb\n" * 20)
    with pytest.raises(DataError, match="both train.tsv and train.csv exist; keep one of them"):
        parallel(tmp_path)


def test_csv_of_spreadsheets(tmp_path):
    rows = [['say "a"\n\n, twice', 'b"c'], ["", '""'], [" x ", "y"]]
    with (tmp_path / "t.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([["en", "de", "", ""], *([*row, "", ""] for row in rows), []])
    found = parallel(tmp_path / "t.csv", fractions=(1, 0, 0), on_empty="skip")
    assert pairs(found.splits["train"]) == [tuple(rows[0]), tuple(rows[2])]
    assert found.splits["train"].names[1] == "t.csv line 6" and found.left_out == [("t.csv line 5", "en is empty")]


def test_null_is_an_empty_text(tmp_path):
    lines = ['{"en": null, "de": "a"}', '{"en": "b", "de": "c"}', '{"en": "\\ud83d\\ude00", "de": "\\u00e4"}']
    found = parallel(write(tmp_path, {"t.jsonl": lines}) / "t.jsonl", fractions=(1, 0, 0), on_empty="skip")
    assert pairs(found.splits["train"]) == [("b", "c"), ("\U0001f600", "ä")]
    assert found.left_out == [("t.jsonl line 1", "en is empty")]


def test_empty_sides_are_listed(tmp_path):
    lines = {"train.en": ["a", "", "c", "d", " \t"], "train.de": ["a", "b", "\u3000", "d", "e"]}
    root = write(tmp_path, lines | {"val.en": ["x"], "val.de": ["y"]})
    with pytest.raises(DataError, match="train.en line 2: train.en is empty, as in 3 of 5 lines; .*data.on_empty=skip"):
        parallel(root)
    source = parallel(root, on_empty="skip")
    assert pairs(source.splits["train"]) == [("a", "a"), ("d", "d")]
    assert source.splits["train"].names[1] == "train.en line 4"
    assert source.left_out == [
        ("train.en line 2", "train.en is empty"),
        ("train.en line 3", "train.de is empty"),
        ("train.en line 5", "train.en is empty"),
    ]
    table = write(tmp_path, {"t.tsv": ["en\tde\tsplit", "a\t\ttrain", "c\td\ttest", "e\tf\ttrain"]}) / "t.tsv"
    source = parallel(table, on_empty="skip")
    assert pairs(source.splits["test"]) == [("c", "d")] and source.left_out == [("t.tsv line 2", "de is empty")]
    with pytest.raises(ValueError, match="on_empty='drop' is not one of error, skip"):
        parallel(root, on_empty="drop")


@pytest.mark.parametrize(
    ("files", "options", "text"),
    [
        ({"train.en": ["a"] * 3, "train.de": ["b"] * 2}, {}, "train.en has 3 lines but train.de has 2"),
        ({"train.en": ["a"]}, {}, "has train.en, but no train.de"),
        (
            {"train.fr": ["a"]},
            {},
            r"has neither train.en\[.gz\] and train.de\[.gz\] nor train.tsv, train.csv, train.jsonl",
        ),
        ({"train.en": ["a"], "train.de": ["a"]}, {"test": "other"}, r"data.test: .* has neither other.en"),
        ({"train.en": [], "train.de": []}, {}, "train.en: has 0 lines"),
        ({"train.en": b"good\nb\xe4d\n", "train.de": ["a", "b"]}, {}, "train.en line 2: byte 2 is not UTF-8"),
        ({"train.en.gz": ["a"], "train.de": ["b"]}, {"fractions": (0.5, 0.5)}, "must be three numbers"),
        ({"train.tsv": ["en\tfr", "a\tb"]}, {}, "has no column 'de' for data.target; its columns are en, fr"),
        ({"train.tsv": ["a\tb", "c"]}, {"source": 0, "target": 1}, "line 2: has 1 fields, the first line has 2"),
        ({"train.tsv": ["a\tb"]}, {"source": 0, "target": 2}, "has no column 2; its 2 columns are numbered from 0"),
        ({"train.tsv": ["a\tb"]}, {"source": 0}, "data.source=0, data.target=de mix names and numbers"),
        ({"train.csv": ["en,de", "a,b", "a,b,c"]}, {}, "train.csv line 3: has 3 fields, the header has 2"),
        ({"train.csv": ["en,de", '"a\nb",c', "d"]}, {}, "train.csv line 4: has 1 fields"),
        ({"train.csv": ["en,de"]}, {}, "train.csv: has 0 rows"),
        ({"train.jsonl": ['{"en": "a", "de": "b"}', "{"]}, {}, "train.jsonl line 2: is not valid JSON"),
        ({"train.jsonl": ["[1]"]}, {}, "train.jsonl line 1: must be an object"),
        ({"train.jsonl": ['{"en": "a"}']}, {}, "line 1: has no key 'de' for data.target; its keys are en"),
        ({"train.jsonl": ['{"en": "a", "de": ["b"]}']}, {}, "line 1: de must be a string, but is a list; write"),
        ({"train.jsonl": ['{"en": "a", "de": {}}']}, {}, "line 1: de must be a string, but is an object; write"),
        ({"train.jsonl": ['{"en": "a", "de": null}']}, {}, "line 1: de is empty, as in 1 of 1 line; add the text"),
        ({"train.jsonl": ['{"en": "a", "de": "b"}', r'{"en": "x\ud800", "de": "b"}']}, {}, "line 2: en has .ud800"),
        ({"train.jsonl": [r'{"en": "\udc80", "de": "b"}']}, {}, r"line 1: en has \\udc80, half of a character;"),
        ({"train.jsonl": ['{"en": ' + "[" * 200_000 + "]" * 200_000 + "}"]}, {}, "line 1: is not valid JSON"),
        ({"train.csv": ["en,de", "a,b", 'c,"d', "e,f"]}, {}, "train.csv line 3: .* not valid CSV .*; close every"),
        ({"train.csv": ["en,de", 'a,"b" c']}, {}, "train.csv line 2: .* double quotes inside a quoted cell"),
        ({"train.csv": ["en,de,en", "a,b,c"]}, {}, "train.csv: 2 columns of its header are named 'en'; give each"),
        ({"train.tsv": ["en\tde\ten", "a\tb\tc"]}, {}, "train.tsv: 2 columns of its header are named 'en'"),
        ({}, {"source": "en", "target": "en"}, "source and target are both 'en'"),
    ],
)
def test_errors_are_one_line(tmp_path, files, options, text):
    with pytest.raises((ValueError, FileNotFoundError), match=text) as error:
        parallel(write(tmp_path, files), **options)
    assert "\n" not in str(error.value)


def test_a_damaged_gzip_file_and_missing_data(tmp_path):
    whole = gzip.compress(b"a\n" * 1000)
    for data in (whole[:20], b"no gzip at all"):
        (tmp_path / "train.en.gz").write_bytes(data)
        (tmp_path / "train.de").write_text("b\n")
        with pytest.raises(DataError, match="train.en.gz: cannot be read"):
            parallel(tmp_path)
    with pytest.raises(FileNotFoundError, match="data.root: .*nothing does not exist; give a folder with train.en"):
        parallel(tmp_path / "nothing")
    (tmp_path / "notes.txt").write_text("a\tb\n")
    with pytest.raises(DataError, match="notes.txt is not a table"):
        parallel(tmp_path / "notes.txt")


def test_invalid_pair_splits():
    with pytest.raises(ValueError, match="needs either sources"):
        PairSplit(["a"], ["n"])
    with pytest.raises(ValueError, match="must have the same length"):
        PairSplit(["a"], ["n"], ["x", "y"])
    with pytest.raises(DataError, match="there are 0 training pairs; splits found: val"):
        PairSource("x", {"val": PairSplit(["a"], ["n"], ["x"])}).check_train()
    with pytest.raises(DataError, match="there are 0 training pairs; splits found: train, val"):
        PairSource("x", {"train": PairSplit([], [], []), "val": PairSplit(["a"], ["n"], ["x"])})
    mixed = {"train": PairSplit(["a"], ["n"], ["x"]), "val": PairSplit(["a"], ["n"], read=np.zeros)}
    with pytest.raises(ValueError, match="all splits must have images, or none"):
        PairSource("x", mixed)


def test_multi30k(real):
    source = parallel(real / "multi30k", test="test_2016_flickr")
    assert sizes(source) == {"train": 29000, "val": 1014, "test": 1000} and source.left_out == []
    assert pairs(source.splits["test"])[0] == (
        "A man in an orange hat starring at something.",
        "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.",
    )


def test_lines_that_end_with_carriage_returns_alone(tmp_path):
    (tmp_path / "train.en").write_bytes(b"a\rb\rc\r")
    (tmp_path / "train.de").write_bytes(b"A\nB\nC\n")
    train = parallel(tmp_path, fractions=(1, 0, 0)).splits["train"]
    assert list(train.sources) == ["a", "b", "c"] and list(train.targets) == ["A", "B", "C"]
