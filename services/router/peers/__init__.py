"""Several active routers: what each gives away, and which goes first where room is short."""
