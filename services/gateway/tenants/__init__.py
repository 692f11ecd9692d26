"""Tenants: API keys, quota leases, outages of quota, and the outbox of usage records."""
