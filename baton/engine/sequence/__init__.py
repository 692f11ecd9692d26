"""Sequences: the tokens, blocks and progress of one choice of a request."""
