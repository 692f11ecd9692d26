"""The shortlist of a pick in a large pool: the few workers of which one can be the best.

Scores all workers at once by the picker's formula, over the columns of `fleet/columns.py`, and
leaves the choice among the lowest to `picker.py`, with the same outcome as if it had seen all. Says
nothing when no worker has even the size for the request: then the picker looks at all.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from random import Random
from typing import NamedTuple

import numpy as np

from services.router.fleet.columns import Column, Figure, Mask, PoolColumns, PoolRates
from services.router.fleet.views import NO_OTHERS, Demand, Others, Policy, PrefillMode
from services.router.pick.costs import NOISE_FACTOR
from services.router.pick.sessions import SESSION_TOKENS

# Pools up to this size are scored worker by worker: that is as fast, and the reasons name all.
MAX_PLAIN = 16
# So many workers of a pool are left for the picker.
_NUM_KEPT = 4
_TIE = 1e-9


class Candidates(NamedTuple):
    """One pool at the moment of a pick: its figures and the state that belongs to the request.

    `is_unfit` has the workers that this request must not get, `cached_blocks` its blocks in each
    cache, and `session_rows` the workers of its session.
    """

    columns: PoolColumns
    rates: PoolRates
    is_unfit: Mask
    cached_blocks: Column
    session_rows: Sequence[int]

    def missing_tokens(self, num_prompt_tokens: int, block_size: int) -> Column:
        """The prompt tokens that each worker lacks, with the bonus of its session."""
        missing = np.maximum(num_prompt_tokens - self.cached_blocks * block_size, 1.0)
        for row in self.session_rows:
            missing[row] = max(missing[row] - SESSION_TOKENS, 1.0)
        return missing

    def missing_blocks(self, num_prompt_tokens: int, block_size: int) -> Column:
        """The blocks that hold these tokens."""
        missing = np.maximum(-(-num_prompt_tokens // block_size) - self.cached_blocks, 1.0)
        for row in self.session_rows:
            num_blocks = -(-(num_prompt_tokens - SESSION_TOKENS) // block_size)
            missing[row] = max(num_blocks - self.cached_blocks[row], 1.0)
        return missing


class Shortlist(NamedTuple):
    """The rows to look at, and what the picker needs to know of the others."""

    decodes: Sequence[int]
    prefills: Sequence[int]
    others: Others


class Shortener:
    """Makes the shortlists of one router."""

    def __init__(self, policy: Policy, random: Random) -> None:
        self._policy = policy
        self._random = random

    def shorten(
        self, demand: Demand, decodes: Candidates, prefills: Candidates | None
    ) -> Shortlist | None:
        """Return the workers to look at, or None when the picker should look at all.

        All workers have the same block shape.
        """
        (shape,) = decodes.columns.shapes
        partners: list[int] = []
        # By the zone of the prefill workers.
        soonest_s: dict[str, float] = {}
        if prefills is not None and demand.mode is not PrefillMode.LOCAL:
            missing = prefills.missing_tokens(demand.num_prompt_tokens, shape.block_size)
            tokens = prefills.columns[Figure.QUEUED_TOKENS] + missing
            until_s = tokens / prefills.rates.prefill_per_s()
            num_prompt_blocks = -(-(demand.num_prompt_tokens + 1) // shape.block_size)
            until_s[prefills.is_unfit] = np.inf
            if prefills.columns.least_blocks < num_prompt_blocks:
                until_s[prefills.columns[Figure.NUM_BLOCKS] < num_prompt_blocks] = np.inf
            zones = prefills.columns.zones
            for zone, is_there in zones.items():
                of_zone = np.where(is_there, until_s, np.inf) if len(zones) > 1 else until_s
                rows = self._lowest(of_zone)
                partners += rows
                if rows:
                    soonest_s[zone] = min(map(of_zone.item, rows))
            partners.sort()
            if not partners and not prefills.is_unfit.all():
                return None
        scores = _DecodeScores(self._policy, demand, decodes)
        rows, others = scores.rows(soonest_s, self._lowest)
        if not rows:
            return None
        num_left_out = len(decodes.columns) - len(rows)
        if prefills is not None:
            num_left_out += len(prefills.columns) - len(partners)
        return Shortlist(rows, partners, others._replace(num_workers=num_left_out))

    def _lowest(self, values: Column) -> list[int]:
        """The rows of the lowest finite values; chance decides between equal ones."""
        if len(values) <= _NUM_KEPT:
            return np.flatnonzero(np.isfinite(values)).tolist()
        rows = values.argpartition(_NUM_KEPT)[: _NUM_KEPT + 1]
        first = sorted(zip(values[rows].tolist(), rows.tolist(), strict=True))
        highest = first[0][0] + _TIE
        if math.isfinite(highest) and first[-1][0] <= highest:
            ties = np.flatnonzero(values <= highest)
            return sorted(self._random.sample(ties.tolist(), _NUM_KEPT))
        return sorted(row for value, row in first[:_NUM_KEPT] if math.isfinite(value))


class _Way(NamedTuple):
    """One way to serve the request on each decode worker: local prefill, or the soonest partner.

    A worker that `fits` may take the request when it `has_room`. `later_s` are its costs beyond the
    first token: slower output, what its other streams lose, or what leaving the zone costs.
    """

    fits: Mask
    has_room: Mask
    first_token_s: Column
    later_s: Column


class _DecodeScores:
    """The scores of all decode workers of a pool for one request."""

    def __init__(self, policy: Policy, demand: Demand, pool: Candidates) -> None:
        self._policy = policy
        self._demand = demand
        self._pool = pool
        (self._shape,) = pool.columns.shapes
        self._step_s = pool.rates.step_s()

    def rows(
        self, partners_s: Mapping[str, float], lowest: Callable[[Column], list[int]]
    ) -> tuple[list[int], Others]:
        """The rows to look at, and the figures of all; `partners_s` are the soonest times of
        prefill workers by zone. Without room anywhere the rows are those with the most."""
        fits = ~self._pool.is_unfit
        idle_s = self._step_s / self._pool.columns[Figure.MEASURED_FACTOR]
        fit_steps = idle_s[fits]
        if not len(fit_steps):
            return [], NO_OTHERS
        middle = (len(fit_steps) - 1) // 2
        fit_steps.partition(middle)
        idle_step_s = float(fit_steps[middle])
        ways = self._ways(self._large(fits), partners_s, idle_s, idle_step_s)
        scores = [
            np.where(way.fits & way.has_room, way.first_token_s + way.later_s, np.inf)
            for way in ways
        ]
        if scores and (rows := lowest(reduce(np.minimum, scores))):
            return rows, Others(idle_step_s=idle_step_s)
        # The roomiest are seldom the soonest, for which a waiting request is predicted.
        first = [float(way.first_token_s[way.fits].min(initial=np.inf)) for way in ways]
        others = Others(idle_step_s=idle_step_s, first_token_s=min(first, default=math.inf))
        return self._roomiest(ways, lowest), others

    def _ways(
        self, fits: Mask, partners_s: Mapping[str, float], idle_s: Column, idle_step_s: float
    ) -> list[_Way]:
        columns, itl_s = self._pool.columns, self._itl_s(idle_s, idle_step_s)
        needed, has_slots = self._blocks_needed(), self._has_slots()
        wait_s = self._step_wait_s(idle_step_s)
        ways = []
        for zone, partner_s in partners_s.items():
            may_take = fits
            if self._demand.num_choices > 1:
                may_take = fits & (needed <= columns[Figure.NUM_BLOCKS])
            has_room = self._with_extra(has_slots) & (columns[Figure.BLOCKS_TO_PROMISE] >= needed)
            first_token_s = self._handoff_s(zone) + (wait_s + partner_s)
            ways.append(_Way(may_take, has_room, first_token_s, self._later_s(zone, itl_s)))
        if self._demand.mode is not PrefillMode.REMOTE:
            needed = np.minimum(needed, columns[Figure.NUM_BLOCKS])
            has_room = has_slots & (columns[Figure.BLOCKS_FREE] >= needed)
            missing = self._pool.missing_tokens(
                self._demand.num_prompt_tokens, self._shape.block_size
            )
            first_token_s = self._local_s(missing, idle_step_s)
            later_s = self._streams_s(missing) + itl_s
            ways.append(_Way(self._may_be_local(fits, missing), has_room, first_token_s, later_s))
        return ways

    def _may_be_local(self, fits: Mask, missing: Column) -> Mask:
        if self._demand.max_local_tokens is None:
            return fits
        is_short: Mask = missing <= self._demand.max_local_tokens
        return fits & is_short

    def _roomiest(self, ways: Sequence[_Way], lowest: Callable[[Column], list[int]]) -> list[int]:
        """The workers that have most room of those that are only too full."""
        if not ways:
            return []
        fits = np.logical_or.reduce([way.fits for way in ways])
        columns = self._pool.columns
        room = columns[Figure.BATCH_SLOTS_FREE] * 2.0**26 + columns[Figure.BLOCKS_FREE]
        return lowest(np.where(fits, -room, np.inf))

    def _is_running(self) -> Mask:
        is_running: Mask = self._pool.columns[Figure.NUM_RUNNING] > 0
        return is_running

    def _large(self, fits: Mask) -> Mask:
        """Those that have the blocks for the prompt."""
        num_blocks = -(-(self._demand.num_prompt_tokens + 1) // self._shape.block_size)
        if num_blocks <= self._pool.columns.least_blocks:
            return fits
        return fits & (self._pool.columns[Figure.NUM_BLOCKS] >= num_blocks)

    def _blocks_needed(self) -> Column:
        demand, size, columns = self._demand, self._shape.block_size, self._pool.columns
        longest = (-(-demand.num_prompt_tokens // size) + self._policy.growth_blocks) * size
        num_tokens = min(longest, demand.num_prompt_tokens + max(1, demand.expected_output_tokens))
        num_blocks: Column | int = -(-num_tokens // size)
        if -(-num_tokens // size) > columns.least_blocks:
            num_blocks = np.minimum(num_blocks, columns[Figure.NUM_BLOCKS])
        needed: Column = num_blocks - self._pool.cached_blocks
        if demand.num_choices > 1:
            num_own = np.maximum(0, num_blocks - demand.num_prompt_tokens // size)
            needed = needed + num_own * (demand.num_choices - 1)
        return needed

    def _has_slots(self) -> Mask:
        columns, slots = self._pool.columns, self._demand.num_choices
        has_slots: Mask = columns[Figure.BATCH_SLOTS_FREE] >= (
            slots
            if slots <= columns.least_batch_slots
            else np.minimum(slots, columns[Figure.BATCH_SLOTS])
        )
        return has_slots

    def _with_extra(self, has_slots: Mask) -> Mask:
        """And those whose full batch takes in a request of a quiet tenant."""
        if not self._demand.is_quiet or self._demand.num_choices > 1:
            return has_slots
        has_extra: Mask = self._pool.columns[Figure.EXTRA_SLOTS_FREE] > 0
        return has_slots | has_extra

    def _itl_s(self, idle_s: Column, idle_step_s: float) -> Column:
        policy, demand = self._policy, self._demand
        step_s: Column | float = idle_step_s
        is_slow = idle_s > NOISE_FACTOR * idle_step_s
        if np.count_nonzero(is_slow):
            step_s = np.where(is_slow & self._is_running(), idle_s, idle_step_s)
        batch = demand.num_choices / policy.batch_doubling
        longer_s = step_s * (self._pool.columns[Figure.BATCH_FACTOR] + batch)
        num_tokens = max(1, demand.expected_output_tokens)
        return (longer_s - idle_step_s) * (policy.itl_weight * num_tokens)

    def _handoff_s(self, prefill_zone: str) -> Column:
        """Seconds of the handoff from a prefill worker of this zone."""
        rates, policy = self._pool.rates, self._policy
        missing = self._pool.missing_blocks(self._demand.num_prompt_tokens, self._shape.block_size)
        num_bytes = missing * self._shape.block_bytes
        least_s, per_s = rates.small_handoff_s(), rates.handoff_per_s()
        handoff_s = least_s + num_bytes / per_s
        for zone, is_there in self._pool.columns.zones.items():
            if (link := policy.links.between(prefill_zone, zone)) is not None:
                slow = np.minimum(per_s, policy.prior_far_handoff_bytes_per_s)
                far_s = (link.least_s or least_s) + num_bytes / (link.bytes_per_s or slow)
                handoff_s = np.where(is_there, far_s, handoff_s)
        return handoff_s

    def _step_wait_s(self, idle_step_s: float) -> Column | float:
        """Seconds until the decode worker lets the request in."""
        rates = self._pool.rates
        if not rates.means.step_wait:
            return idle_step_s
        return np.where(self._is_running(), rates.step_wait_s(), idle_step_s)

    def _later_s(self, prefill_zone: str, itl_s: Column) -> Column:
        """The cost of slower output and of leaving the zone."""
        zones = self._pool.columns.zones
        far = [zones[zone] for zone in zones if prefill_zone and zone not in ("", prefill_zone)]
        if not far:
            return itl_s
        later_s: Column = itl_s + self._policy.far_handoff_cost_s * np.logical_or.reduce(far)
        return later_s

    def _local_s(self, missing: Column, idle_step_s: float) -> Column:
        """Seconds until the decode worker has prefilled the prompt itself."""
        columns = self._pool.columns
        tokens = columns[Figure.QUEUED_TOKENS] + missing
        chunk = columns[Figure.CHUNK_TOKENS]
        num_steps = np.where(chunk > 0, np.ceil(tokens / np.maximum(chunk, 1)), 1)
        steps_s = np.where(self._is_running(), num_steps * self._step_s, idle_step_s)
        return tokens / self._pool.rates.prefill_per_s() + steps_s

    def _streams_s(self, missing: Column) -> Column:
        """Seconds that a local prefill costs the streams on the decode worker, weighted."""
        own_s = missing / self._pool.rates.prefill_per_s()
        return self._policy.itl_weight * self._pool.columns[Figure.NUM_RUNNING] * own_s
