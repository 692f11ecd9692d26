"""The interface of an engine: messages, batches, and the client that a front speaks through."""
