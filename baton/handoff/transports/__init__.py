"""Ways for KV blocks to travel: the gRPC stream, shared memory, NIXL."""
