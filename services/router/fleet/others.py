"""The workers that a pick leaves out, because they score worse (`pick/shortlist.py`)."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Others:
    """How many workers were left out of both pools.

    `idle_step_s` is the idle step of the whole decode pool; 0 = that of the workers looked at.
    Where no worker has room, one that is looked at or left out could have the first token in
    `first_token_s`.
    """

    num_workers: int = 0
    idle_step_s: float = 0.0
    first_token_s: float = math.inf


NO_OTHERS = Others()
