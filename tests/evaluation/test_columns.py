"""Results of all samples in columns: those of the batches, one after the other, without memory for each batch."""

import torch

from vit.evaluation.columns import Columns


def test_columns_are_the_batches_one_after_the_other():
    random = torch.Generator().manual_seed(0)
    batches = [(torch.arange(n), torch.rand(n, 3, generator=random), torch.rand(n, generator=random) < 0.5)
               for n in (4, 4, 1)]
    columns = Columns(12)  # three samples are left out
    for batch in batches:
        columns.append(batch)
    for found, parts in zip(columns.filled(), zip(*batches, strict=True), strict=True):
        assert found.dtype == parts[0].dtype and torch.equal(found, torch.cat(parts))


def test_a_batch_is_copied():
    columns, values = Columns(2), torch.ones(2)
    columns.append([values])
    values.zero_()
    assert columns.filled()[0].tolist() == [1, 1]


def test_without_a_batch_there_are_no_columns():
    assert Columns(3).filled() == []
