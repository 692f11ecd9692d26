"""Correctness and speed on a GPU: `python -m bench.gpu`."""
