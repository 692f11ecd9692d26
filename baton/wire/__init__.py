"""The formats and rules that two processes share, byte for byte. Imports no other package."""
