"""The KV cache's bookkeeping: the block pool, the prefix cache, and the events about both."""
