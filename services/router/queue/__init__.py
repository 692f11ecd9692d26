"""The line in which requests wait for room: its order, its pace, and what may join it."""
