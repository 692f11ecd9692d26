"""KV blocks between two processes, per transport; and the relay of tokens."""
