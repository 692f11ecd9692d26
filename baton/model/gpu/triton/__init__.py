"""Own GPU kernels in Triton, and the attention backend made of them (decision 0009)."""
