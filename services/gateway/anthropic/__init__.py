"""Anthropic's Messages API on the gateway's one pipeline."""
