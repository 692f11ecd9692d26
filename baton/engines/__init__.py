"""Engines beside Baton's own, each in a core process of its own kind."""
