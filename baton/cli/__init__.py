"""The `baton` command: up, down, status, keys, trace."""
