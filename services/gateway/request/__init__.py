"""One request: its stages from authentication to settling, and the attempts that run it."""
