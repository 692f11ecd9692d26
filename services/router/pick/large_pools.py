"""Picks in large pools: the fleet's columns, and what they are for one request -> a shortlist.

Stands between the selector, which knows workers, and `shortlist.py`, which knows only columns. Says
nothing when the pools have several block shapes: then the picker looks at all, as it does in pools
of up to MAX_PLAIN workers.
"""

from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import NamedTuple

import numpy as np

from baton.system.clock import Clock
from services.router.fleet.columns import Column, PoolColumns, depths_of
from services.router.fleet.fleet import Fleet
from services.router.fleet.prefix_index import PrefixIndex
from services.router.fleet.speeds import Speeds
from services.router.fleet.views import NO_OTHERS, Demand, Others, Policy
from services.router.fleet.worker import Worker
from services.router.pick.shortlist import Candidates, Shortener
from services.router.settings import Settings


class CachedPrompt(NamedTuple):
    """A prompt's hashes, and where its first blocks are cached: by the index, or soon."""

    hashes: Sequence[int]
    prefix_index: PrefixIndex
    coming: Mapping[str, int]


class ShortPool(NamedTuple):
    """The workers of one pool to look at, the blocks that each has cached, and its speeds."""

    workers: Sequence[Worker]
    cached_blocks: Sequence[int]
    speeds: Speeds


class ShortPools(NamedTuple):
    """Both pools, and what the picker needs to know of the workers left out."""

    decodes: ShortPool
    prefills: ShortPool
    others: Others = NO_OTHERS


class LargePools:
    """Shortens a model's pools for one pick."""

    def __init__(
        self, settings: Settings, clock: Clock, random: Random, fleet: Fleet, policy: Policy
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._fleet = fleet
        self._shortener = Shortener(policy, random)

    def shorten(
        self,
        model_fp: str,
        roles: tuple[int, int],
        demand: Demand,
        prompt: CachedPrompt,
        kept_away: Collection[str],
    ) -> ShortPools | None:
        """Return the workers to look at; None when all of them should be.

        `roles` are of those that decode and of those that prefill for them. The workers `kept_away`
        must not get the request.
        """
        pools = [self._fleet.of_model(model_fp, role) for role in roles]
        decodes, prefills = (self._fleet.columns(model_fp, role) for role in roles)
        if decodes is None or not _have_one_shape(decodes, prefills):
            return None
        cached = self._cached_blocks(prompt, decodes, prefills)
        decode = self._candidates(decodes, prefills, demand, cached[0], kept_away)
        prefill = None
        if prefills is not None:
            prefill = self._candidates(prefills, decodes, demand, cached[1], kept_away)
        short = self._shortener.shorten(demand, decode, prefill)
        if short is None:
            return None
        return ShortPools(
            self._short_pool(pools[0], short.decodes, cached[0], decode),
            self._short_pool(pools[1], short.prefills, cached[1], prefill or decode),
            short.others,
        )

    def _cached_blocks(self, prompt: CachedPrompt, *pools: PoolColumns | None) -> list[Column]:
        """How many of the prompt's first blocks each worker of each pool has or will have."""
        depths = depths_of(prompt.prefix_index, prompt.prefix_index.steps(prompt.hashes))
        cached = [
            np.zeros(0) if columns is None else columns.cached_blocks(prompt.prefix_index, depths)
            for columns in pools
        ]
        for endpoint, num_blocks in prompt.coming.items():
            columns, row = self._fleet.row(endpoint) or (None, 0)
            # A worker that has another model by now has none of these blocks.
            for pool, of_pool in zip(pools, cached, strict=True):
                if pool is columns is not None and num_blocks > of_pool.item(row):
                    of_pool[row] = num_blocks
        return cached

    def _candidates(
        self,
        columns: PoolColumns,
        others: PoolColumns | None,
        demand: Demand,
        cached_blocks: Column,
        kept_away: Collection[str],
    ) -> Candidates:
        now = self._clock.now()
        columns.expire_leases(now)
        is_unfit = columns.unfit(now)
        if kept_away:
            is_unfit[self._rows(columns, kept_away)] = True
        session_rows = self._rows(columns, demand.session)
        return Candidates(
            columns, columns.rates(others, now), is_unfit, cached_blocks, session_rows
        )

    def _rows(self, columns: PoolColumns, worker_ids: Collection[str]) -> list[int]:
        """The rows of those workers that are in this pool. A peer may name one that this router has
        not met."""
        if not worker_ids:
            return []
        workers = (self._fleet.known(worker_id) for worker_id in worker_ids)
        places = [self._fleet.row(worker.endpoint) for worker in workers if worker is not None]
        return [place[1] for place in places if place is not None and place[0] is columns]

    def _short_pool(
        self, pool: Sequence[Worker], rows: Sequence[int], cached: Column, candidates: Candidates
    ) -> ShortPool:
        speeds = Speeds(candidates.rates.means, self._settings, self._clock.now())
        return ShortPool(
            [pool[row] for row in rows], [int(cached.item(row)) for row in rows], speeds
        )


def _have_one_shape(decodes: PoolColumns, prefills: PoolColumns | None) -> bool:
    return len(decodes.shapes) == 1 and (prefills is None or prefills.shapes == decodes.shapes)
