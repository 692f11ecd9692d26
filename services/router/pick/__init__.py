"""The choice of the workers for one request: what it needs, how pairs score, and which wins."""
