"""Planned tensors become bytes: pieces, rows, transforms, packed formats, worker processes."""
