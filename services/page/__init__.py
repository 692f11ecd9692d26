"""The web page of a release: its fleet, requests and tenants, behind a token, read-only."""
