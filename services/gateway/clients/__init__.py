"""Clients of the other services: the protocols, and their gRPC implementation."""
