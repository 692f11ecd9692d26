"""Compiled kernels for CPUs, and the modules that use them."""
