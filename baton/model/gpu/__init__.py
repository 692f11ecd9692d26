"""The runner of CUDA devices: graphs, staging of blocks, Triton kernels."""
