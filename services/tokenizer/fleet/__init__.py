"""The models of the fleet: which ones ready workers serve, their files, and the table of those that
are loaded."""
