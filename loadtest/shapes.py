"""The number of users, second by second. Constant load is Locust's own; a replay has none."""

import math

from loadtest.scenario import Load

# Fractions of the whole time.
_SPIKE_BEGINS, _SPIKE_ENDS = 0.4, 0.6
_SOAK_RISES = 0.05


def users_at(load: Load, at_s: float) -> int | None:
    """Users wanted `at_s` seconds after the start; None when the time is over."""
    if at_s >= load.duration_s:
        return None
    part = at_s / load.duration_s
    if load.shape == "ramp":
        return max(math.ceil(load.users * part), 1)
    if load.shape == "spike":
        return load.users if _SPIKE_BEGINS <= part < _SPIKE_ENDS else load.quiet_users
    if load.shape == "soak":
        return max(math.ceil(load.users * min(part / _SOAK_RISES, 1)), 1)
    return load.users
