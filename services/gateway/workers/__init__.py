"""Streams to workers that decode: connections, links, attempts, credit, migration."""
