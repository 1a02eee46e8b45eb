"""Drafter files in the dialects of llama.cpp's forks: recognised, and rewritten for llama.cpp."""
