"""Files of weights: sharded ones, arrays, types, and files that claim more memory than they have bytes."""

import os

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from vit.bundle.files import SourceError, independent_tensors, read_file, save_tensors


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


def test_a_tensor_of_a_sharded_checkpoint_is_read_from_the_shard_that_the_index_states(tmp_path) -> None:
    save_file({"a": torch.ones(2), "not in the index": torch.ones(1)}, tmp_path / "1.safetensors")
    save_file({"a": torch.zeros(2), "b": torch.ones(3)}, tmp_path / "2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}')
    state = read_file(index)
    assert state["a"].tolist() == [1, 1] and set(state) == {"a", "b", "not in the index"}
    index.write_text('{"weight_map": {"a": "1.safetensors", "b": "1.safetensors"}}')
    with pytest.raises(SourceError, match="the index names b, which is not in 1.safetensors"):
        read_file(index)


def test_arrays_keep_their_shapes_and_those_of_other_types_are_named(tmp_path) -> None:
    np.savez(tmp_path / "a.npz", scalar=np.float32(2), columns=np.asfortranarray(np.ones((3, 2))))
    assert {name: tuple(each.shape) for name, each in read_file(tmp_path / "a.npz").items()} == {
        "scalar": (), "columns": (3, 2)}
    half = np.array([1.5, -2], np.float16)
    np.savez(tmp_path / "half.npz", half=half, brain=np.array([0x3FC0, 0xC000], np.uint16).view("V2"))  # as JAX saves
    found = read_file(tmp_path / "half.npz")
    assert found["half"].dtype == torch.float16 and found["brain"].dtype == torch.bfloat16
    assert found["half"].tolist() == found["brain"].tolist() == [1.5, -2]
    np.savez(tmp_path / "b.npz", names=np.array(["cat"]))
    with pytest.raises(SourceError, match="b.npz: names is of the type <U3, which is none of torch's types"):
        read_file(tmp_path / "b.npz")


def test_tensors_that_share_memory_or_are_not_contiguous_are_saved_as_they_are(tmp_path) -> None:
    whole = torch.arange(12.0).view(3, 4)
    state = {"whole": whole, "same": whole, "row": whole[1], "transposed": torch.arange(6.0).view(2, 3).T}
    save_file(independent_tensors(state), tmp_path / "a.safetensors")
    found = read_file(tmp_path / "a.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_weights_have_the_permissions_of_other_new_files(tmp_path) -> None:
    (tmp_path / "other").touch()
    save_tensors({"a": torch.ones(2)}, tmp_path / "a.safetensors")
    assert (tmp_path / "a.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
