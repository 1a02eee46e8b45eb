"""A head of the drafter's own: the rows of the target's output matrix that are worth keeping, and which those are."""
