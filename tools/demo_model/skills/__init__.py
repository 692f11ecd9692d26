"""Calling functions and writing JSON: dialogues whose answers are copied from their prompts."""
