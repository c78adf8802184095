"""Every damage of a zip archive is an error of this project."""

import zipfile

import pytest

from vit.data import DataError
from vit.data.formats.zip_archives import ArchivedFile, open_archive


@pytest.mark.parametrize("method", ["ZIP_STORED", "ZIP_DEFLATED", "ZIP_BZIP2", "ZIP_LZMA"])
def test_every_flipped_bit_is_read_or_reported(method, tmp_path):
    """Includes UnicodeDecodeError of member names and LZMAError of their content."""
    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w", getattr(zipfile, method)) as archive:
        archive.writestr("cat/é.png", bytes(range(200)))
    data, reported = path.read_bytes(), 0
    for position in range(len(data)):
        changed = tmp_path / f"{position}.zip"
        changed.write_bytes(data[:position] + bytes([data[position] ^ 8]) + data[position + 1 :])
        try:
            names = open_archive(changed).root.namelist()
            for name in names:
                ArchivedFile(str(changed), name).read_bytes()
        except (DataError, OSError) as error:
            reported += str(changed) in str(error) or "the archive member is damaged" in str(error)
    assert reported > 10
