"""Several gateway processes on one socket: their supervisor, and their pages as one."""
