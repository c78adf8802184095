"""Every damage of a zip archive is an error of this project."""

import zipfile

import pytest

from vit.data import DataError, folder
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


@pytest.mark.parametrize("encoding", ["utf-8", "cp437"])
def test_names_without_an_encoding(class_folders, encoding):
    """macOS writes UTF-8 without the flag that states it, Windows the code page of the system."""
    root = class_folders({"Käse": 3, "dog": 3})
    stored = "Käse".encode(encoding)
    path = root / "photos.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("Käse", "dog"):
            for file in sorted((root / name).iterdir()):
                archive.write(file, f"{name.replace('Käse', '@' * len(stored))}/{file.name}")
    path.write_bytes(path.read_bytes().replace(b"@" * len(stored), stored))
    source = folder(path, fractions=(1, 0, 0))
    assert source.classes == ["Käse", "dog"]
    train = source.splits["train"]
    assert [train.read(i) for i in range(6)] == [(root / name).read_bytes() for name in train.names]
