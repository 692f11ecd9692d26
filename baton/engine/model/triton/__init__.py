"""Own GPU kernels in Triton, and the attention backend made of them (design in docs/decisions)."""
