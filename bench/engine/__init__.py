"""The engine beside its peers."""
