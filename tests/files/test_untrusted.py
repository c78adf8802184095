"""Paths that are not regular files, and pickles that would expand in memory."""

import io
import pickle
import struct
import zipfile

import pytest
import torch

from vit.files.untrusted import LimitError, NotRegularFileError, check_pickle, check_pickles, open_zip, read_text


def test_folder_instead_of_a_file(tmp_path):
    with pytest.raises(NotRegularFileError) as error:
        read_text(tmp_path)
    assert str(error.value) == f"it is a folder and not a regular file: {str(tmp_path)!r}"


SAVED = {"a": b"\x00\xff" * 3, "b": ["hex", {"utf-32": (b"", b"x", "strict")}], "c": {1, 2}, "d": (b"x",),
         "e": [b"x"] * 300}


def test_bytes_as_they_are_saved_pass():
    data = pickle.dumps(SAVED, 2)
    assert b"_codecs" in data and pickle.loads(data) == SAVED
    check_pickle(data)


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


FUNCTION, BYTES = b"c_codecs\nencode\nq\xff", text("abc") + b"q\x01"
EXPANDING = {  # opcodes after those of the function, which is 255 in the memo
    "another codec": BYTES + text("hex") + b"\x86R",
    "with a way to handle errors": BYTES + text("utf-32") + text("strict") + b"\x87R",
    "without a codec": BYTES + b"\x85R",
    "a tuple of the memo": BYTES + text("hex") + b"\x86q\x02h\xffh\x02R",
    "a codec of the memo": text("hex") + b"q\x02" + BYTES + b"h\xffh\x01h\x02\x86R",
    "a tuple after a mark": b"(" + BYTES + text("hex") + b"tR",
    "a list": b"](" + BYTES + text("hex") + b"eR",
    "as an argument": b"\x85.",
    "in a list": b"q\x02]h\x02a.",
}


@pytest.mark.parametrize("case", EXPANDING)
def test_calls_of_a_codec_that_can_expand_are_refused(case):
    with pytest.raises(LimitError, match="codec|encodes text"):
        check_pickle(b"\x80\x02" + FUNCTION + EXPANDING[case] + b".")


def zip_of(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def checked(path, content: bytes) -> None:
    path.write_bytes(content)
    with open_zip(path) as archive:
        check_pickles(archive)


HARMLESS, BOMB = b"\x80\x02}.", b"\x80\x02" + FUNCTION + EXPANDING["another codec"] + b"."


@pytest.mark.parametrize("name", ["x/DATA.PKL", "x/data.pkl", "x/Data.pkl"])
def test_the_pickle_is_found_whatever_the_case_of_its_name(name, tmp_path):
    checked(tmp_path / "good.pth", zip_of({name: HARMLESS}))
    with pytest.raises(LimitError, match="encodes text by hex"):
        checked(tmp_path / "bad.pth", zip_of({name: BOMB, "x/data.pk": HARMLESS}))


def test_a_table_of_contents_that_only_pytorch_reads_is_refused(tmp_path):
    """Python adds the length of bytes before a zip file to all its positions, and PyTorch's reader does not."""
    bad, good = zip_of({"x/data.pkl": BOMB}), zip_of({"x/data.pkl": HARMLESS})
    checked(tmp_path / "good.pth", good)
    with pytest.raises(LimitError, match="it has a second table of contents"):
        checked(tmp_path / "two.pth", bad + good)


def test_the_record_of_a_large_file_is_where_its_locator_states(tmp_path):
    file = io.BytesIO()
    torch.save({"a": torch.zeros(3)}, file)
    content = file.getvalue()
    checked(tmp_path / "good.pth", content)
    at = content.rindex(b"PK\6\7") + 8
    moved = int.from_bytes(content[at : at + 8], "little") - 1
    with pytest.raises(LimitError, match="it has a second table of contents"):
        checked(tmp_path / "moved.pth", content[:at] + moved.to_bytes(8, "little") + content[at + 8 :])
