"""The recorded samples of a run are found in data that has changed since."""

import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from vit.data import DataError, corpus, digits, folder, parallel, pictures, spelled_numbers, table, text_table, threads
from vit.data.splits.recorded import NEW, Entry, list_entries, restore_splits
from vit.data.splits.split import array_split


def contents(source):
    """The content of every sample by split, in order."""
    found = {}
    for key, split in source.splits.items():
        if hasattr(split, "texts"):
            texts = split.texts if isinstance(split.texts, tuple) else (split.texts,)
            found[key] = list(zip(*texts, strict=True))
        elif getattr(split, "sources", None) is not None:
            found[key] = list(zip(split.sources, split.targets, strict=True))
        else:
            found[key] = [np.asarray(split.read(i)).tobytes() for i in range(len(split))]
    return found


def test_an_added_photo_is_left_out(class_folders):
    root = class_folders({"cat": 20, "dog": 20})
    recorded, before = list_entries(folder(root)), contents(folder(root))
    (root / "cat" / "aaa.png").write_bytes((root / "cat" / "001.png").read_bytes()[:-1] + b"x")
    source = restore_splits(folder(root, split_seed=7), recorded)
    assert contents(source) == before and source.left_out == [("cat/aaa.png", NEW)]
    assert list_entries(source) == recorded
    found = restore_splits(folder(root), recorded, left_out={"cat/aaa.png": "bad"})
    assert found.unreadable == [("cat/aaa.png", "bad")]


def test_a_class_that_was_added_later_is_left_out(class_folders):
    root = class_folders({"cat": 20, "dog": 20})
    recorded, before = list_entries(folder(root)), contents(folder(root))
    class_folders({"bird": 9})
    source = restore_splits(folder(root), recorded, compared=["test"])
    assert source.classes == ["cat", "dog"]
    assert contents(source) == before and list_entries(source) == recorded
    assert len(source.left_out) == 9 and all(name.startswith("bird/") for name, _ in source.left_out)


def test_a_label_that_was_added_later_is_left_out(class_folders, tmp_path):
    root, path = class_folders({"cat": 20}), tmp_path / "labels.csv"
    rows = [f"cat/{i:03d}.png,{'a' if i % 2 else 'b|c'}\n" for i in range(20)]

    def read(rows):
        path.write_text("image,label\n" + "".join(rows))
        return table(path, root=str(root), label_separator="|")

    recorded = list_entries(read(rows[1:]))
    source = restore_splits(read(["cat/000.png,Z|a\n", *rows[1:]]), recorded, compared=["test"])
    assert source.classes == ["a", "b", "c"] and list_entries(source) == recorded


def test_missing_and_changed_samples_are_named(class_folders):
    root = class_folders({"cat": 20, "dog": 20})
    recorded = list_entries(folder(root))
    one, two = recorded["train"][3].name, recorded["test"][0].name
    content = (root / one).read_bytes()
    (root / one).unlink()
    (root / two).write_bytes(content + b"x")
    with pytest.raises(DataError) as error:
        restore_splits(folder(root), recorded, fix="put them back")
    message = str(error.value)
    assert "2 of the 40 samples" in message
    assert f"{one} (missing)" in message and f"{two} (has other content)" in message
    assert message.endswith("put them back")
    with pytest.raises(DataError, match="1 of the 40 samples"):
        restore_splits(folder(root), recorded, compared=["test"])
    (root / two).write_bytes(b"")
    recorded["test"] = [entry._replace(fingerprint="") for entry in recorded["test"]]  # of an older run
    assert len(restore_splits(folder(root), recorded, compared=["test"]).splits["test"]) == len(recorded["test"])


def test_a_changed_class_is_an_error(class_folders):
    root = class_folders({"train/cat": 9, "train/dog": 9, "val/cat": 1})
    recorded = list_entries(folder(root))
    recorded["train"][0] = recorded["train"][0]._replace(label="dog")
    with pytest.raises(DataError, match=r"train/cat/000.png \(was 'dog', is 'cat'\)"):
        restore_splits(folder(root), recorded)


def test_large_files_are_compared_by_both_ends(class_folders, tmp_path):
    from vit.data.identity import END, fingerprint

    file = tmp_path / "x"
    content = bytes(range(256)) * 400
    file.write_bytes(content)
    before = fingerprint(file)
    assert before == fingerprint(content) == fingerprint(bytearray(content)) and fingerprint(tmp_path / "no") == ""
    for offset in (0, END - 1, len(content) - END, len(content) - 1):
        changed = bytearray(content)
        changed[offset] ^= 1
        file.write_bytes(changed)
        assert fingerprint(file) != before
    assert fingerprint(content[:-1]) != before != fingerprint(content + b"x")
    assert fingerprint(np.zeros((4, 4), np.uint8)) != fingerprint(np.zeros((2, 8), np.uint8))


def test_contents_of_files_are_hashed_in_threads_with_progress(class_folders, monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: 3)
    source, used, seen = folder(class_folders({"cat": 30, "dog": 30})), set(), []

    def read(split, i):
        used.add(threading.get_ident())
        time.sleep(0.001)
        return split.read(i)

    splits = {key: replace(split, read=partial(read, split)) for key, split in source.splits.items()}
    entries = list_entries(replace(source, splits=splits), progress=lambda *counts: seen.append(counts))
    assert entries == list_entries(source) and len(used) > 1 and threading.get_ident() not in used
    assert [counts for counts in seen if counts[1] == counts[2]] == [
        ("fingerprints", len(split), len(split)) for split in splits.values()]


@pytest.mark.parametrize("read", [spelled_numbers, digits])
def test_progress_of_contents_in_memory(read):
    source, seen = read(), []
    list_entries(source, ["train"], lambda *counts: seen.append(counts))
    assert seen[-1] == ("fingerprints", len(source.splits["train"]), len(source.splits["train"]))


@pytest.mark.parametrize("kind", ["table", "pairs", "corpus"])
def test_moved_lines_are_found(tmp_path, kind):
    path = tmp_path / "t.tsv"
    read = {"table": text_table, "pairs": lambda p, split_seed=0: parallel(p, "text", "label", split_seed=split_seed),
            "corpus": corpus}[kind]
    blocks = [f"text {i}\tlabel {i % 2}" for i in range(60)]
    if kind == "corpus":
        blocks = [f"sentence {i} one\nsentence {i} two\n" for i in range(60)]
    header = [] if kind == "corpus" else ["text\tlabel"]
    path.write_text("\n".join([*header, *blocks]) + "\n")
    recorded, before = list_entries(read(path)), contents(read(path))
    new = "new\nnewer\n" if kind == "corpus" else "new\tlabel 0"
    path.write_text("\n".join([*header, *blocks[30:], new, *blocks[:30]]) + "\n")
    source = restore_splits(read(path, split_seed=3), recorded)
    assert contents(source) == before and [reason for _, reason in source.left_out] == [NEW]
    path.write_text("\n".join([*header, *blocks[:7], *blocks[8:]]) + "\n")
    with pytest.raises(DataError, match="1 of the 60 samples that the run recorded has changed: t.tsv line"):
        restore_splits(read(path), recorded)


def test_old_records_have_no_fingerprints():
    source = digits()
    old = {key: [Entry(*named) for named in listed] for key, listed in source.split_lists().items()}
    other = restore_splits(digits(split_seed=9), old)
    assert contents(other) == contents(source) and other.splits["train"].pixels.shape == (1257, 8, 8)
    assert restore_splits(source, list_entries(source)).splits["train"] is source.splits["train"]


def test_unlabelled_and_generated_sets(class_folders):
    root = class_folders({"a": 30, "b": 3})
    recorded = list_entries(pictures(root))
    (root / "b" / "new.png").write_bytes(b"x")
    assert list_entries(restore_splits(pictures(root, split_seed=2), recorded)) == recorded
    numbers = spelled_numbers(limit=1000, train=50, val=10, test=10)
    assert list_entries(restore_splits(numbers, list_entries(numbers))) == list_entries(numbers)


def test_files_and_arrays_together():
    one, two = (array_split(np.full((3, 2, 2), i, np.uint8), np.zeros(3, int), f"set{i}") for i in range(2))
    joined = type(one).concat([one, two])
    assert [int(joined.read(i)[0, 0]) for i in range(6)] == [0, 0, 0, 1, 1, 1] and joined.names[4] == "set1 row 1"
