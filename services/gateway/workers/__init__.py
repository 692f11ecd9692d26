"""Streams to decode workers: connections, links, attempts, credit, migration."""
