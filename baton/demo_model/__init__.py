"""The bundled demo model: where its files lie. It knows nothing of torch or transformers."""

from pathlib import Path


def demo_model_path() -> Path:
    """The folder with weights, tokenizer and chat template, in the form that transformers loads."""
    return Path(__file__).resolve().parent
