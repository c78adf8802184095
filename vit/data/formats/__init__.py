"""File formats: text lines, delimited tables, Excel, IDX, CIFAR batches, zip archives, word vectors."""
