"""The download of a model into a folder, from a hub or a store of objects; once for all workers."""
