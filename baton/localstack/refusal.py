"""What a command cannot do for a reason that its user can mend."""


class Refusal(Exception):
    """The message is one line for a person: what is wrong, and what to do. Never a traceback."""
