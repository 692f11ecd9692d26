"""Responses and conversations that are kept, and responses that run in the background."""
