"""One module per foreign checkpoint format: how its tensors are named, and what its config fixes."""
