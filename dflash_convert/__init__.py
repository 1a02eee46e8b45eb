"""Convert DFlash speculative-decoding drafters to GGUF, and prove the pair before deployment."""

__version__ = "0.1.0"
