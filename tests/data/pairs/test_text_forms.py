"""Texts of pairs that look the same but differ."""

import pytest

from vit.data import DataError, image_text, parallel

TEXTS = ["one ", "two", " three", "four", "five\u00a0", "six"]
STRIPPED = ["one", "two", "three", "four", "five", "six"]


@pytest.mark.parametrize("sign, end, start", [(",", "\n", ""), (";", "\r\n", "\ufeff")])
def test_texts_of_images_are_stripped(tmp_path, caplog, sign, end, start):
    rows = [f"{i}.png{sign}{text}" for i, text in enumerate(TEXTS)]
    table = tmp_path / "t.csv"
    table.write_bytes((start + end.join([f"file{sign}text", *rows, ""])).encode())
    for i in range(len(TEXTS)):
        (tmp_path / f"{i}.png").touch()
    with caplog.at_level("INFO", "vit"):
        split = image_text(table, fractions=(1, 0, 0), strip=True).splits["train"]
    assert list(split.targets) == STRIPPED
    assert ("text: white space around 3 of 6 texts is removed, such as 'one ' in t.csv line 2; data.strip=false leaves "
            "it") in caplog.text
    assert list(image_text(table, fractions=(1, 0, 0)).splits["train"].targets) == TEXTS


@pytest.mark.parametrize("files", [True, False])
def test_both_sides_of_parallel_text_are_stripped(tmp_path, caplog, files):
    if files:
        (tmp_path / "train.en").write_bytes("".join(f"{text}\r\n" for text in TEXTS).encode())
        (tmp_path / "train.de").write_bytes("".join(f"{text}\n" for text in reversed(TEXTS)).encode())
        root, sides = tmp_path, ("train.en", "train.de")
    else:
        root, sides = tmp_path / "t.tsv", ("en", "de")
        root.write_text("".join(f"{a}\t{b}\n" for a, b in zip(["en", *TEXTS], ["de", *reversed(TEXTS)], strict=True)))
    with caplog.at_level("INFO", "vit"):
        split = parallel(root, fractions=(1, 0, 0), strip=True).splits["train"]
    assert list(split.sources) == STRIPPED and list(split.targets) == STRIPPED[::-1]
    assert all(f"{side}: white space around 3 of 6 texts is removed" in caplog.text for side in sides)
    caplog.clear()
    split = parallel(root, fractions=(1, 0, 0)).splits["train"]
    assert list(split.sources) == TEXTS and list(split.targets) == TEXTS[::-1] and not caplog.records


def test_messages_quote_only_the_start_of_long_texts(tmp_path, caplog):
    long = "cafe\u0301 " + "word " * 1000
    (tmp_path / "t.tsv").write_text(f"en\tde\n0\t{long}\n1\tcaf\u00e9\n")
    with caplog.at_level("INFO", "vit"):
        parallel(tmp_path / "t.tsv", fractions=(1, 0, 0), strip=True)
    assert [len(record.getMessage()) < 400 for record in caplog.records] == [True, True]
    assert caplog.text.count("…") == 2


FORMS = [("caf\u00e9", True), ("un \u00e9t\u00e9", True), ("cafe", False), ("\u00fc", False)]


@pytest.mark.parametrize("second, warned", FORMS)
def test_texts_in_two_unicode_forms_are_a_warning(tmp_path, caplog, second, warned):
    texts = ["cafe\u0301", second, "plain"]
    (tmp_path / "t.tsv").write_text("en\tde\n" + "".join(f"{i}\t{text}\n" for i, text in enumerate(texts)))
    split = parallel(tmp_path / "t.tsv", fractions=(1, 0, 0)).splits["train"]
    assert list(split.targets) == texts  # unchanged
    assert ("de: 1 of 3 texts is not in Unicode's NFC form, such as 'cafe\\u0301' in t.tsv line 2, while others have "
            "'\\xe9' as one character" in caplog.text) == warned == bool(caplog.records)
    for i in range(3):
        (tmp_path / f"{i}.png").touch()
    caplog.clear()
    (tmp_path / "t.csv").write_text("file,text\n" + "".join(f"{i}.png,{text}\n" for i, text in enumerate(texts)))
    image_text(tmp_path / "t.csv", fractions=(1, 0, 0))
    assert ("text: 1 of 3 texts is not in Unicode's NFC form" in caplog.text) == warned


@pytest.mark.parametrize(("lines", "warned"), [
    (["<doc docid='1'>", "<url>http://a</url>", "Good."], True),
    (['<refset setid="a">', "<seg id=1> Good. </seg>"], True),
    (["<b>Good</b>.", "a < b", "< doc", "<document>"], False)])
def test_lines_of_markup_are_reported(tmp_path, caplog, lines, warned):
    for side in ("en", "de"):
        (tmp_path / f"train.{side}").write_text("\n".join(lines))
    assert list(parallel(tmp_path, fractions=(1, 0, 0)).splits["train"].targets) == lines
    assert (f"train.de: 2 of {len(lines)} lines begin with a tag such as {lines[0]!r}" in caplog.text) == warned


def test_a_text_file_of_captions_is_refused_with_the_fix(tmp_path):
    (tmp_path / "captions.txt").write_text("image,caption\n0.png,A dog.\n")
    with pytest.raises(DataError, match="captions.txt is not one of .tsv, .*; if commas .* rename it to .csv"):
        image_text(tmp_path / "captions.txt", image="image", text="caption")
