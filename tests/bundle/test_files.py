"""Files of weights that claim more memory than they have bytes."""

import pytest
import torch
from safetensors.torch import save_file

from vit.bundle.files import SourceError, read_file


@pytest.mark.parametrize("mapped", [True, False])
def test_tensors_far_larger_than_their_file_are_refused(tmp_path, mapped: bool) -> None:
    path = tmp_path / "expanded.pth"
    torch.save({"a": torch.zeros(1).expand(1 << 20, 1 << 12)}, path)
    with pytest.raises(SourceError, match=r"expanded.pth: the file is cut off .*its tensors need .* but the file has"):
        read_file(path, mapped)


def test_a_type_for_quantised_weights_is_named(tmp_path) -> None:
    path = tmp_path / "quantised.safetensors"
    save_file({"a": torch.ones(4).to(torch.float8_e8m0fnu)}, path)
    with pytest.raises(SourceError, match="a is of the type F8_E8M0, as quantised weights are"):
        read_file(path)
    save_file({"a": torch.ones(4, dtype=torch.uint16)}, path)
    assert read_file(path)["a"].dtype == torch.uint16
