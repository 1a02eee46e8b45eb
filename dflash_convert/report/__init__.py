"""A validation as a document: one HTML file that needs nothing else."""
