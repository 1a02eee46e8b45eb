"""Planned tensors become bytes: jobs, rows, transforms, packed formats, worker processes."""
