"""Several active routers: what each gives away, and who goes first where room is short."""
