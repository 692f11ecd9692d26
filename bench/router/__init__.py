"""The router on recorded traffic and on large fleets."""
