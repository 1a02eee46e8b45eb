"""GGUF v3: a strict reader and a streaming, atomic writer."""
