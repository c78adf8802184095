"""Files of weights that claim more memory than they have bytes."""

import pytest
import torch

from vit.bundle.files import SourceError, read_file


@pytest.mark.parametrize("mapped", [True, False])
def test_tensors_far_larger_than_their_file_are_refused(tmp_path, mapped: bool) -> None:
    path = tmp_path / "expanded.pth"
    torch.save({"a": torch.zeros(1).expand(1 << 20, 1 << 12)}, path)
    with pytest.raises(SourceError, match=r"expanded.pth: the file is cut off .*its tensors need .* but the file has"):
        read_file(path, mapped)
