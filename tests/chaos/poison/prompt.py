"""The prompt that a poisoned core dies of: eight times the same token."""

POISON_TOKEN = 77
POISON_PROMPT = [POISON_TOKEN] * 8
