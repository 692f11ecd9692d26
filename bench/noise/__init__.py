"""Engines and servers beside programs that take the CPUs."""
