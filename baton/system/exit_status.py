"""Exit statuses on which processes agree."""

# The settings of a service, or the words of a command line, cannot work: nobody should try again.
STATUS_MISCONFIGURED = 2
