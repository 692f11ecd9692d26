"""The files of a worker's model: whether they are there, and what tokenizers get of them."""
