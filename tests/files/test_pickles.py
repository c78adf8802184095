"""Pickles of PyTorch that would expand in memory, and those that would not."""

import io
import pickle
import struct
import tarfile
import zipfile
from argparse import Namespace
from collections import Counter, OrderedDict

import pytest
import torch

from vit.bundle.files import SourceError, read_file
from vit.files.pickles import check_pickle, check_pickles
from vit.files.untrusted import LimitError, open_zip

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
    "by another function": (b"q\x02ctorch._tensor\n_rebuild_from_type_v2\n(h\x02h\x02" + BYTES + text("hex")
                            + b"\x86}tR"),
}


@pytest.mark.parametrize("case", EXPANDING)
def test_calls_of_a_codec_that_can_expand_are_refused(case):
    with pytest.raises(LimitError, match="encodes text by|in another form"):
        check_pickle(b"\x80\x02" + FUNCTION + EXPANDING[case] + b".")


class Calls:
    """An object that is pickled as a call."""

    def __init__(self, *call):
        self.call = call[0], call[1:]

    def __reduce__(self):
        return self.call


EXPANDED = torch.zeros(1).expand(4, 2)
LISTING = {
    "set": Calls(set, EXPANDED),
    "Counter": Calls(Counter, EXPANDED),
    "OrderedDict": Calls(OrderedDict, EXPANDED),
    "OrderedDict of a list": Calls(OrderedDict, [EXPANDED]),
    "Size": Calls(torch.Size, EXPANDED),
    "an empty tensor": Calls(torch.FloatTensor, 1 << 40),
    "a storage": Calls(set, Calls(torch.UntypedStorage, 1 << 40)),
    "a copy": Calls(torch._utils._rebuild_device_tensor_from_cpu_tensor, EXPANDED, torch.float64, "cpu", False),
    "a copy of rows that overlap": Calls(torch._utils._rebuild_device_tensor_from_cpu_tensor,
                                         torch.zeros(8).as_strided((5, 4), (1, 1)), torch.float64, "cpu", False),
    "a copy by another function": Calls(
        torch._tensor._rebuild_from_type_v2, torch._utils._rebuild_device_tensor_from_cpu_tensor, torch.Tensor,
        (EXPANDED, torch.float64, "cpu", False), {}),
}


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("case", LISTING)
def test_calls_that_fill_the_memory_with_elements_of_a_tensor_are_refused(case, old, tmp_path):
    torch.save({"a": LISTING[case]}, tmp_path / "x.pth", _use_new_zipfile_serialization=not old)
    with pytest.raises(SourceError, match="made to fill the memory: its pickle .* which weights do not need"):
        read_file(tmp_path / "x.pth")


def test_a_name_of_python_2_is_that_of_python_3(tmp_path):
    torch.save({"a": LISTING["Counter"]}, tmp_path / "x.pth")
    with open_zip(tmp_path / "x.pth") as archive:
        data = archive.read("x/data.pkl")
    assert b"ccollections\nCounter\n" in data
    with pytest.raises(LimitError, match="by collections.Counter"):
        check_pickle(data.replace(b"ccollections\nCounter\n", b"cUserDict\nCounter\n"))


@pytest.mark.parametrize("old", [False, True])
def test_what_programs_save_is_read(old, tmp_path):
    weight = torch.arange(24.0).reshape(2, 3, 4)
    content = {
        "weight": torch.nn.Parameter(weight), "view": weight.transpose(0, 2), "row": weight[0, 1], "empty": weight[:0],
        "mean": torch.zeros(1, 3).expand(4, 3), "half": weight.half(), "scalar": torch.tensor(3),
        "order": OrderedDict(a=1), "of Python 2": Calls(OrderedDict, [["a", weight], ("b", 2)]),
        "count": Counter("aab"), "names": {"a", "b"}, "size": weight.shape, "none": None,
        "arguments": Namespace(lr=0.1), "complex": 1j,
        "device": Calls(torch._utils._rebuild_device_tensor_from_cpu_tensor, weight, torch.float64, "cpu", False),
    }
    torch.save(content, tmp_path / "x.pth", _use_new_zipfile_serialization=not old)
    found = read_file(tmp_path / "x.pth")
    if not old:  # whose tensors get their numbers after the calls
        assert torch.equal(found["device"], weight.double())
    del content["device"]
    assert list(found["of Python 2"]) == ["a", "b"] and content.pop("of Python 2")
    for name, value in content.items():
        assert torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value


def test_an_old_file_that_is_a_tar_file_as_well_is_refused(tmp_path):
    with tarfile.open(tmp_path / "x.pth", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        archive.addfile(tarfile.TarInfo("\x80\x02."))
    assert (tmp_path / "x.pth").read_bytes().startswith(b"\x80\x02.")
    with pytest.raises(SourceError, match="it is a tar file as well"):
        read_file(tmp_path / "x.pth")


def test_deep_nesting_is_refused_at_once():
    with pytest.raises(LimitError, match="nested too deeply"):
        check_pickle(b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".")


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
    with pytest.raises((LimitError, zipfile.BadZipFile), match="it has a second table of contents|Corrupt zip64"):
        checked(tmp_path / "moved.pth", content[:at] + moved.to_bytes(8, "little") + content[at + 8 :])
