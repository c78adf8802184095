"""Packed images: their patches are those of each image, and functions of images are called with whole images."""

import pickle

import torch

from vit.nn import LinearPatches
from vit.packed_images import PackedImages, to_images, to_patches

PATCH, SIZES = (4, 2), ((8, 6), (4, 10), (8, 6), (12, 2))


def images() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8) for size in SIZES]


def test_unpacked_images_are_unchanged() -> None:
    made, packed = images(), PackedImages.of(images(), PATCH)
    assert packed.grids == ((2, 3), (1, 5), (2, 3), (3, 1))
    assert packed.patches.shape == (20, 3, *PATCH) and len(packed) == 4
    assert all(torch.equal(a, b) for a, b in zip(packed, made, strict=True))


def test_patches_are_in_the_order_of_a_convolution() -> None:
    image = images()[0].double()
    stem = LinearPatches(3, 5, PATCH).double()
    convolved = torch.nn.functional.conv2d(image[None], stem.weight, stem.bias, stride=PATCH)[0]  # (D,rows,columns)
    torch.testing.assert_close(stem.project(to_patches(image, PATCH).flatten(1)), convolved.flatten(1).T)


def test_a_batch_is_patched_as_its_images() -> None:
    batch = torch.rand(2, 3, 8, 6)
    assert torch.equal(to_patches(batch, PATCH), torch.stack([to_patches(image, PATCH) for image in batch]))
    assert torch.equal(to_images(to_patches(batch, PATCH), (2, 3)), batch)


def test_a_function_is_called_with_all_images_of_a_grid_and_their_rows() -> None:
    seen = []

    def brighter(group: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        seen.append((tuple(group.shape), rows.tolist()))
        return group + rows.to(torch.uint8)[:, None, None, None]

    found = PackedImages.of(images(), PATCH).apply_by_grid(brighter)
    assert seen == [((2, 3, 8, 6), [0, 2]), ((1, 3, 4, 10), [1]), ((1, 3, 12, 2), [3])]
    assert all(torch.equal(got, image + row) for row, (got, image) in enumerate(zip(found, images(), strict=True)))


def test_each_image_is_mirrored_by_itself() -> None:
    flipped = PackedImages.of(images(), PATCH).flip(-1)
    assert all(torch.equal(got, image.flip(-1)) for got, image in zip(flipped, images(), strict=True))


def test_batches_are_joined_in_order_and_survive_a_worker_process() -> None:
    made = images()
    joined = PackedImages.joined([PackedImages.of(made[:3], PATCH), PackedImages.of(made[3:], PATCH)])
    again = pickle.loads(pickle.dumps(joined))
    assert all(torch.equal(got, image) for got, image in zip(again, made, strict=True))
