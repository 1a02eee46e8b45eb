"""From finished GGUFs to a release: model card, checksums, manifest, preset, upload, batches, doctor.

Nothing here holds a clock, a host name or an absolute path: the same files and options give the same bytes.
"""
