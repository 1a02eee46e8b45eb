"""Forward passes in plain numpy, float32: the oracle of the tests and of ``verify --fidelity``."""
