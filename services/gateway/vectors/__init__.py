"""Requests whose answer is vectors: their fields, the models that can answer them, the answers."""
