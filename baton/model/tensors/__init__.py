"""The KV pool as tensors, and paged attention over it in plain torch."""
