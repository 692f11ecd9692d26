"""The core process, and the client that starts it and speaks to it."""
