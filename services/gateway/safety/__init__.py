"""The safety hook: an operator's own service judges prompts, and answers piece by piece."""
