"""Moves pages between vLLM's KV cache and the staging ring that the front shares.

vLLM's connector interface: the scheduler's side says which blocks a step makes final and which have
come, a rank's side copies them. Bytes travel between workers by Baton's own transports, and are
verified before vLLM sees them. `pages.py` has the form of a page.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)

from baton.engines.vllm.model_facts import only_group
from baton.engines.vllm.ranks.cache_views import form_of
from baton.engines.vllm.ranks.pages import Heads, RankBlocks, RankPages

# What becomes of a request's blocks; the value of vLLM's kv_transfer_params.
KIND_KEY = "baton"


@dataclass
class StepCopies(KVConnectorMetadata):  # type: ignore[misc]
    """What one step asks of a rank's side."""

    # Blocks that become final, and the row for each.
    exports: list[tuple[int, int]] = field(default_factory=list)
    # Requests whose missing blocks are in the ring, with their rows and those blocks.
    imports: list[tuple[str, list[int], list[int]]] = field(default_factory=list)
    # Requests whose held blocks are given back: prefills that were released, and remote requests
    # that were given up before their blocks came.
    released: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)

    @property
    def is_empty(self) -> bool:
        return not (self.exports or self.imports or self.released or self.dropped)


class ConnectorOwner(Protocol):
    """The engine, as the scheduler's side of the connector knows it."""

    def on_allocated(self, name: str, block_ids: list[int], num_missing_tokens: int) -> None:
        """A remote request has its blocks; so many tokens of them are to come."""

    def take_copies(self, scheduled: Any) -> StepCopies:
        """What the step that was just scheduled has to copy."""


class BatonConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """Both sides, as vLLM makes them: one object for the scheduler, one for each rank."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        # Set on the scheduler's side once the engine is there.
        self.owner: ConnectorOwner | None = None
        self._num_heads: int = vllm_config.model_config.get_total_num_kv_heads()
        self._pages: RankPages
        self._sent: set[str] = set()
        self._received: set[str] = set()

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str:
        """A layer's heads one after the other in each block, where the backend takes that: copies
        are of long runs then."""
        return "LBHNC"

    # The scheduler's side.

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """All of a remote request's prompt comes from elsewhere, later."""
        if (request.kv_transfer_params or {}).get(KIND_KEY) != "remote":
            return 0, False
        return request.num_prompt_tokens - num_computed_tokens, True

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Note the blocks that were found for a remote request."""
        if num_external_tokens > 0 and self.owner is not None:
            block_ids = list(blocks.get_block_ids()[0])
            self.owner.on_allocated(request.request_id, block_ids, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepCopies:
        """Collect the step's copies."""
        return StepCopies() if self.owner is None else self.owner.take_copies(scheduler_output)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        """A prefill that has ended keeps its blocks until it is released."""
        kind = (request.kv_transfer_params or {}).get(KIND_KEY)
        return kind == "prefill" and request.status.name != "FINISHED_ABORTED", None

    # A rank's side.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Take vLLM's layers."""
        rank, num_ranks = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
        heads = Heads.of_rank(rank, num_ranks, self._num_heads)
        _, spec = only_group(self._kv_cache_config)
        form = form_of(spec, self._kv_cache_config.num_blocks)
        self._pages = RankPages(RankBlocks(kv_caches, heads, form), heads)

    def bind_ring(self, ring: memoryview, num_rows: int) -> bool:
        """Take the staging ring. Returns True where copies into it end after they were begun."""
        self._pages.bind(ring, num_rows)
        return self._pages.is_beside

    def num_saved(self) -> int:
        """The number of such steps with copies into the ring whose copies have ended."""
        return self._pages.num_saved()

    def start_load_kv(self, forward_context: Any, **_: Any) -> None:
        """Copy what has come into the cache."""
        copies = self._get_connector_metadata()
        for name, rows, block_ids in copies.imports:
            self._pages.load(rows, block_ids)
            self._received.add(name)
        self._received |= copies.dropped
        self._sent |= copies.released

    def wait_for_save(self) -> None:
        """Copy what the step has made final into the ring, or begin to."""
        exports = self._get_connector_metadata().exports
        self._pages.save([block for block, _ in exports], [row for _, row in exports])

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        """The requests whose blocks were given back, and those whose blocks have come."""
        sent, received = self._sent, self._received
        self._sent, self._received = set(), set()
        return sent, received

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: all layers are copied before the step ends."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_: Any) -> None:
        """Nothing: layers are copied together, by `wait_for_save`."""
