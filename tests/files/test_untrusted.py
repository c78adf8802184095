"""Paths that are not regular files are named without an error number. Zip members that decompress to more than they
declare are not decompressed further.
"""

import tracemalloc
import zipfile

import pytest

from vit.files.untrusted import NotRegularFileError, damaged_member, open_zip, read_member, read_text


def test_folder_instead_of_a_file(tmp_path):
    with pytest.raises(NotRegularFileError) as error:
        read_text(tmp_path)
    assert str(error.value) == f"it is a folder and not a regular file: {str(tmp_path)!r}"


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_member_larger_than_it_declares(tmp_path, method):
    path, whole = tmp_path / "a.zip", bytes(range(256)) * 20_000
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("whole", whole)
        with archive.open("bomb", "w", force_zip64=True) as stream:
            for _ in range(24):
                stream.write(bytes(16 << 20))
        archive.getinfo("bomb").file_size = 1000  # in the table of contents
    tracemalloc.start()
    try:
        with open_zip(path) as archive:
            assert read_member(archive, archive.getinfo("whole")) == whole
            with pytest.raises(zipfile.BadZipFile, match="bomb"):
                read_member(archive, archive.getinfo("bomb"))
            assert damaged_member(archive) == "bomb"
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()
