"""Programs that the peers' own Pythons run; imports nothing of Baton."""
