"""Reasoning: how families of models write it, and how it is told from the answer."""
