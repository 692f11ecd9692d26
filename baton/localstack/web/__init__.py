"""The local web page: what it asks, what it shows, and what it may do on this machine."""
