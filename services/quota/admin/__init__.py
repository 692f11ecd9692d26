"""The admin API: how operators make keys and limits, and see what is spent."""
