"""Benchmarks of Baton beside its peers: same work, same machine, one run. See docs/benchmarks."""
