"""Paths that are not regular files, and pickles that would expand in memory."""

import pickle
import struct

import pytest

from vit.files.untrusted import LimitError, NotRegularFileError, check_pickle, read_text


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
