"""Unusual folders and tables of texts."""

import json
from pathlib import Path

from tests.faults.layout_checks import CONTRACT, PARTS, colour, csv_text, layout, listed, refused
from vit.data import corpus, image_text, parallel, text_table


def sentences(part: str, side: str, count: int = 4) -> str:
    return "".join(f"{part} {side} {i}\n" for i in range(count))


def texts_of(source: object) -> dict[str, set[str]]:
    """Split → the first words of its texts, which name the split that was declared."""
    return {key: {split.names[i].lower()[:2] for i in range(len(split))} for key, split in source.splits.items()}


DECLARED = {"train": {"tr"}, "val": {"va"}, "test": {"te"}}
TEXTS = ("TRAIN", "Validation", "test")


@layout("files of parallel text with names in capitals")
def _(root: Path) -> None:
    for name in TEXTS:
        (root / f"{name}.en").write_text(sentences(name, "en")), (root / f"{name}.de").write_text(sentences(name, "de"))
    found = parallel(root)
    assert texts_of(found) == DECLARED, texts_of(found)
    for split in found.splits.values():
        assert [t.replace("de", "en") for t in split.targets] == list(split.sources)


@layout("tables of parallel text with names in capitals")
def _(root: Path) -> None:
    for name in TEXTS:
        (root / f"{name}.TSV").write_text("en\tde\n" + f"{name} a\t{name} b\n" * 3)
    assert texts_of(parallel(root)) == DECLARED


@layout("a split of parallel text with two names")
def _(root: Path) -> None:
    for name in ("train", "val", "dev"):
        (root / f"{name}.en").write_text("a\n"), (root / f"{name}.de").write_text("b\n")
    refused(lambda: parallel(root), "both val", "dev", "data.val")
    assert set(parallel(root, val="dev").splits) == {"train", "val"}


@layout("a file of parallel text twice, with names in two cases")
def _(root: Path) -> None:
    for name in ("train.en", "Train.en", "train.de"):
        (root / name).write_text("a\n")
    refused(lambda: parallel(root), "Train.en", "train.en")


@layout("a corpus with file names in capitals")
def _(root: Path) -> None:
    for name in TEXTS:
        (root / f"{name}.TXT").write_text(sentences(name, "text"))
    assert texts_of(corpus(root)) == DECLARED


@layout("a table of texts with splits in capitals")
def _(root: Path) -> None:
    rows = [(f"{part} {i}", f"{i % 2}", part.upper()) for part in PARTS[1:] for i in range(4)]
    (root / "t.csv").write_text(csv_text(rows, "text", "label", "Split"))
    (root / "t.jsonl").write_text("".join(json.dumps(dict(zip(("text", "label", "SPLIT"), row, strict=True))) + "\n"
                                          for row in rows))
    for name in ("t.csv", "t.jsonl"):
        source = text_table(root / name)
        found = {key: {split.texts[0][i].split()[0] for i in range(len(split))} for key, split in source.splits.items()}
        assert found == {part: {part} for part in PARTS[1:]}, found
        assert all(int(split.texts[0][i][-1]) % 2 == split.labels[i]
                   for split in source.splits.values() for i in range(len(split)))


@layout("a table of images with text and splits in capitals")
def _(root: Path) -> None:
    (root / "t.csv").write_text(csv_text(listed(root, parts=PARTS[1:]), "file", "text", "Split"))
    for key, split in image_text(root / "t.csv").splits.items():
        for i in range(len(split)):
            pixels = CONTRACT.image(split.read(i))
            assert pixels[:, 0, 0].tolist() == colour(split.targets[i]) and PARTS[int(pixels[0, 3, 3])] == key


@layout("a table of texts with a missing label")
def _(root: Path) -> None:
    (root / "t.csv").write_text("text,label\na,0\nb,\nc,1\n")
    refused(lambda: text_table(root / "t.csv"), "t.csv line 3", "label is empty")
