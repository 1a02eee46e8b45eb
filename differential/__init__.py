"""Differential runs against llama.cpp's converter, and properties that hold without it."""
