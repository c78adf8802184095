"""Paths that are not regular files are named without an error number."""

import pytest

from vit.files.untrusted import NotRegularFileError, read_text


def test_folder_instead_of_a_file(tmp_path):
    with pytest.raises(NotRegularFileError) as error:
        read_text(tmp_path)
    assert str(error.value) == f"it is a folder and not a regular file: {str(tmp_path)!r}"
