"""A Runner without a model: token i is a hash of (all tokens so far, seed, choice, i).

Each KV slot holds its token and a chained state that depends on all tokens up to there, per layer.
Every step checks the chain of the whole context that it attends to, so that a lost, doubled, stale
or foreign block raises AssertionError, and a whole table of another sequence changes the tokens.
Logprobs are made of the same hash. Purpose: decision 0023.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from baton.engine.protocol.batch import RowLogprobs, SampleRow, StepBatch, StepResult
from baton.engine.protocol.messages import SamplingParams
from baton.wire.kv_spec import KVSpec
from baton.wire.pooling import Pooling

_MASK = (1 << 64) - 1
_LAYER_ROOT = 0x9E3779B97F4A7C15
# K of a slot: token, state after it (16 bytes). V: the state's complement (8 bytes).
_K_DIM, _V_DIM, _DTYPE = 4, 2, "float32"


def mix(state: int, value: int) -> int:
    """One link of the chain: 64 bits from 64 bits and a number (splitmix64's finalizer)."""
    x = (state + (value + 1) * _LAYER_ROOT) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _mix_all(states: NDArray[np.uint64], values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = states + (values + np.uint64(1)) * np.uint64(_LAYER_ROOT)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed


class FakeRunner:
    """`mean_output_tokens` > 0 makes about one token in so many the end token; 0 = never."""

    def __init__(
        self,
        *,
        block_size: int = 16,
        num_layers: int = 2,
        vocab_size: int = 1000,
        max_model_len: int = 4096,
        mean_output_tokens: int = 0,
        eos_token_id: int | None = None,
        pooling: Pooling | None = None,
    ) -> None:
        self.kv_spec = KVSpec.of_layers(block_size, [(1, _K_DIM, _V_DIM, _DTYPE)] * num_layers)
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.eos_token_ids: tuple[int, ...] = (
            vocab_size - 1 if eos_token_id is None else eos_token_id,
        )
        self._mean_output_tokens = mean_output_tokens
        self.pooling = pooling

    def bind_pool(self, pool: memoryview) -> None:
        size = self.kv_spec.block_size
        num_layers = len(self.kv_spec.layers)
        self._rows = np.frombuffer(pool, np.uint64).reshape(-1, num_layers, 3 * size)
        # By block, layer and slot; a key's token and state lie side by side.
        self._keys = self._rows[:, :, : 2 * size].reshape(-1, num_layers, size, 2)
        self._values = self._rows[:, :, 2 * size :]

    def run(self, batch: StepBatch) -> StepResult:
        for source, target in batch.block_copies:
            self._rows[target] = self._rows[source]
        for row in range(len(batch.context_lens)):
            self._compute(batch, row)
        if batch.layer_marks is not None:
            for mark in batch.layer_marks.marks:
                batch.layer_marks.reached(mark)
        masks = None
        if batch.masks is not None:
            batch.masks.start()
            masks = batch.masks.result()
        states = self._states_to_sample(batch)
        pairs = zip(states, batch.sample_rows, strict=True)
        tokens = [self._sample(*pair, masks) for pair in pairs]
        logprobs: list[RowLogprobs | None] = []
        if any(row.num_logprobs is not None for row in batch.sample_rows):
            logprobs = [
                None if row.num_logprobs is None else self.logprobs(state, row, token)
                for state, row, token in zip(states, batch.sample_rows, tokens, strict=True)
            ]
        return StepResult(np.array(tokens, np.int64), logprobs, self._pooled_sums(batch))

    def logprobs(self, states: list[int], row: SampleRow, token: int) -> RowLogprobs:
        """A falling line over the tokens after `token`, from a start that is the state's own; a
        token of the prompt is told to be the likeliest."""
        num_top = row.num_logprobs
        assert num_top is not None, "the row asks for logprobs"
        start = -1.0 - (states[0] % 997) / 997
        top_ids = [(token + index) % self.vocab_size for index in range(num_top)]
        rank = 0 if row.forced_token is None else 1
        return RowLogprobs(start, top_ids, [start - index for index in range(num_top)], rank)

    def _pooled_sums(self, batch: StepBatch) -> NDArray[np.float32] | None:
        """The state of a token is its id, its place, and ones."""
        if self.pooling is None:
            return None
        states = np.ones((len(batch.token_ids), self.pooling.width), np.float32)
        states[:, 0], states[:, 1] = batch.token_ids, batch.positions
        sums = [states[first:end].sum(axis=0) for first, end in batch.pooled_spans]
        return np.array(sums, np.float32)

    def _states_to_sample(self, batch: StepBatch) -> list[list[int]]:
        """Of each sample row, the stored state per layer of its flat query token."""
        rows = np.array([row.token_row for row in batch.sample_rows], np.int64)
        seq_rows = np.searchsorted(batch.query_starts, rows, side="right") - 1
        blocks, slots = np.divmod(batch.positions[rows], self.kv_spec.block_size)
        block_ids = batch.block_tables[seq_rows, blocks]
        states: list[list[int]] = self._keys[block_ids, :, slots, 1].tolist()
        return states

    def lone_run(self, prompt: Iterable[int], params: SamplingParams, choice: int = 0) -> list[int]:
        """The output that this prompt must get, whatever happens around it."""
        states = [mix(_LAYER_ROOT, layer) for layer in range(len(self.kv_spec.layers))]
        num_tokens = 0
        for token in prompt:
            states = [mix(state, token) for state in states]
            num_tokens += 1
        output: list[int] = []
        while True:
            row = SampleRow(0, params, choice, len(output))
            output.append(token := self._sample(states, row))
            is_end = token in self.eos_token_ids and not params.ignore_eos
            has_all = len(output) == params.max_tokens
            if is_end or token in params.stop_token_ids or has_all:
                return output
            if num_tokens + len(output) == self.max_model_len:
                return output
            states = [mix(state, token) for state in states]

    def lone_logprobs(self, tokens: Iterable[int], row: SampleRow) -> RowLogprobs:
        """The token that `row` must bring after these tokens."""
        states = [mix(_LAYER_ROOT, layer) for layer in range(len(self.kv_spec.layers))]
        for token in tokens:
            states = [mix(state, token) for state in states]
        return self.logprobs(states, row, self._sample(states, row))

    def _compute(self, batch: StepBatch, row: int) -> None:
        """Check one sequence's context and store its new slots."""
        start, end = batch.query_starts[row], batch.query_starts[row + 1]
        tokens = batch.token_ids[start:end].tolist()
        assert tokens, f"sequence {batch.seq_ids[row]} is in the batch with nothing to compute"
        length = int(batch.context_lens[row])
        first = length - len(tokens)
        assert batch.positions[start:end].tolist() == list(range(first, length))
        num_blocks = self.kv_spec.num_blocks_for(length)
        blocks = batch.block_tables[row][:num_blocks]
        has_all = len(blocks) == num_blocks and bool((blocks >= 0).all())
        assert has_all, f"sequence {batch.seq_ids[row]} has no block for a token"
        states = self._check(blocks, first)
        self._store(blocks, first, tokens, states)

    def _check(self, blocks: NDArray[np.int32], num_cached: int) -> list[int]:
        """Check the chain of the first `num_cached` slots; the state after them, per layer."""
        size, num_layers = self.kv_spec.block_size, len(self.kv_spec.layers)
        roots = [mix(_LAYER_ROOT, layer) for layer in range(num_layers)]
        if not num_cached:
            return roots
        rows = self._rows[blocks[: self.kv_spec.num_blocks_for(num_cached)]].swapaxes(0, 1)
        keys = rows[:, :, : 2 * size].reshape(num_layers, -1)
        tokens, states = keys[:, 0 : 2 * num_cached : 2], keys[:, 1 : 2 * num_cached : 2]
        values = rows[:, :, 2 * size :].reshape(num_layers, -1)[:, :num_cached]
        before = np.empty_like(states)
        before[:, 0], before[:, 1:] = roots, states[:, :-1]
        assert (states == _mix_all(before, tokens)).all(), "broken KV chain in K"
        assert (values == ~states).all(), "bad KV in V"
        after: list[int] = states[:, -1].tolist()
        return after

    def _store(
        self, blocks: NDArray[np.int32], first: int, tokens: list[int], states: list[int]
    ) -> None:
        """Store these tokens from slot `first` on, with the states that follow from `states`."""
        chains = []
        for state in states:
            chain = [state := mix(state, token) for token in tokens]
            chains.append(chain)
        new = np.array(chains, np.uint64).T
        indexes, slots = np.divmod(np.arange(first, first + len(tokens)), self.kv_spec.block_size)
        block_ids = blocks[indexes]
        self._keys[block_ids, :, slots, 0] = np.array(tokens, np.uint64)[:, None]
        self._keys[block_ids, :, slots, 1] = new
        self._values[block_ids, :, slots] = ~new

    def _sample(
        self, states: list[int], row: SampleRow, masks: NDArray[np.int32] | None = None
    ) -> int:
        if row.forced_token is not None:
            return row.forced_token
        token = self._draw(states, row)
        if masks is not None and row.mask_row is not None:
            bits = np.unpackbits(masks[row.mask_row].view(np.uint8), bitorder="little")
            (allowed,) = np.nonzero(bits[: self.vocab_size])
            token = int(allowed[token % len(allowed)])
        ends = (*self.eos_token_ids, *row.params.stop_token_ids)
        while row.output_index < row.params.min_tokens and row.mask_row is None and token in ends:
            token = (token + 1) % self.vocab_size
        return token

    def _draw(self, states: list[int], row: SampleRow) -> int:
        noise = 0
        for value in (*states, row.params.seed & _MASK, row.choice, row.output_index):
            noise = mix(noise, value)
        if self._mean_output_tokens and noise % self._mean_output_tokens == 0:
            return self.eos_token_ids[0]
        return (noise >> 8) % (self.vocab_size - 1)
