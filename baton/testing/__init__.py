"""The shipped test kit: virtual clock, in-memory streams, fault tools."""
