"""API keys and limits in their durable home, for the command line and the quota service's admin
API: one way to change them, safe under several writers."""
