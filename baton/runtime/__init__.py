"""What every process needs in order to be a process. No domain words."""
