"""Unary calls that share one stream per pair of processes (protos/baton/wire/v1/calls.proto)."""
