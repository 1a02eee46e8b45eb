"""A written file against its source: tensors, keys, vocabulary; and two files against each other."""
