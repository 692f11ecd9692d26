"""The messages between front and core, over their socket pair: msgpack, one batch a step each way.

The front numbers sequences (`seq_id`, never reused in one core's life). A sequence is one choice of
one attempt of one request. KV bytes never cross here: both processes map the pool. Times are
`time.monotonic()`, which both processes share. All that a step brings is one message.

A sequence's `kind` says what the core does with it:

    local    prefill and decode here
    prefill  prefill here, sample one token, then hold the blocks until Release
    remote   promise room (Admitted), bind blocks on Bind (Bound), decode from Start on
"""

from typing import Literal

import msgspec

from baton.engine.protocol.adapter_messages import AdaptersServed, ServeAdapters
from baton.engine.protocol.cache_messages import SnapshotHashes, StoredBlocks
from baton.engine.protocol.device_messages import (
    BlockChecksums,
    DeviceCommand,
    DevicePool,
    PagesRead,
)
from baton.engine.protocol.pooled_messages import Pooled
from baton.engine.protocol.reasons import FinishReason, RefusalReason
from baton.engine.protocol.vllm_stats import VllmStats
from baton.system.violation import Violation
from baton.wire.kv_spec import KVSpec
from baton.wire.pooling import Pooling

SequenceKind = Literal["local", "prefill", "remote"]
EarlyStopping = Literal["heuristic", "full", "never"]
# Parameters that an engine may not serve, by their names in the API.
Parameter = Literal["use_beam_search", "n", "prompt_logprobs", "response_format"]


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """The form that structured output must have; `choice` holds a JSON list of strings. `frame` is
    Lark around it, in which it is named @form; empty: it is the whole output."""

    kind: Literal["json_schema", "json_object", "regex", "choice", "ebnf"]
    text: str = ""
    frame: str = ""


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """The options by which one sequence chooses tokens, one field each.

    temperature 0 = greedy, top_p 1 and top_k 0 = off.

    Penalties and biases as OpenAI and vLLM define them; 0 (repetition: 1) = off. Logprobs are of
    the raw logits: None = none, 0 = of the token alone, N = also of the N likeliest tokens.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    # End and stop tokens are not sampled before this many output tokens.
    min_tokens: int = 0
    # (token id, added to its logit)
    logit_bias: tuple[tuple[int, float], ...] = ()
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    # Beams of a beam search; 0 = sampling. A result scores sum of logprobs / length^length_penalty.
    beam_width: int = 0
    length_penalty: float = 1.0
    # A search ends when no live beam is likely to beat the results ("heuristic"), when there are
    # `beam_width` results ("full"), or when none can beat them ("never"), as transformers has it.
    early_stopping: EarlyStopping = "heuristic"
    grammar: Grammar | None = None


class Fork(msgspec.Struct, frozen=True, array_like=True):
    """A further choice of a request, as a sequence of its own."""

    seq_id: int
    choice: int


class AddSequence(msgspec.Struct, array_like=True, tag="add"):
    """A new sequence, with a field for each thing that the core must know of it.

    `token_ids` (u32 little-endian) is the prompt and then `num_emitted` output tokens of earlier
    attempts, which are never sampled again. `block_hashes` covers the full blocks of the prompt
    part, or some first ones, or is empty: the core computes what is missing and trusts what is
    given. `credit` is the output index (exclusive) up to which the sequence may emit; without
    credit for its next token it is not computed either. A larger `priority` is more important.

    `forks` are further choices of the same request, without emitted tokens, that share the prompt:
    it is computed once, and each fork's first token comes from the same logits. From then on they
    are sequences like any other. They have the same fields, are reported by their own seq_id, and
    can be credited and aborted at any time. In a beam search they are the other results.
    """

    seq_id: int
    request_id: str
    choice: int
    kind: SequenceKind
    token_ids: bytes
    num_emitted: int
    block_hashes: bytes
    cache_key: bytes
    sampling: SamplingParams
    credit: int
    priority: int = 0
    deadline: float | None = None
    forks: tuple[Fork, ...] = ()
    # Its request is computed in steps of its own until it has proved harmless (`wire/limits.py`).
    is_suspect: bool = False
    # Its tenant has had little lately: it goes before others of its priority.
    is_quiet: bool = False
    # For a prefill sequence whose blocks the peer reads where they are: checksums of every so
    # many-th one are reported. None = the front reads the blocks, in the shared pool.
    checksum_every: int | None = None
    # The answer is one vector, pooled over the prompt, and no token. Of a local sequence only.
    pools: bool = False
    # The fingerprint of the LoRA adapter that it is computed with; empty = the model alone.
    adapter: str = ""
    # The first blocks of a prefill sequence, which its peer has already: they do not travel.
    num_peer_blocks: int = 0


class Bind(msgspec.Struct, array_like=True, tag="bind"):
    """A remote sequence's prefill starts now: turn its promise into blocks, which will come by
    ReadPages if `is_on_device`. Sent again where they come otherwise."""

    seq_id: int
    is_on_device: bool = False


class Start(msgspec.Struct, array_like=True, tag="start"):
    """All blocks of a remote sequence are filled and verified: decode after `first_token`.

    `fork_tokens` are the first tokens of its forks, as (seq_id, token). A beam search begins with
    the likeliest first tokens instead, `top_ids` and `top_logprobs`.
    """

    seq_id: int
    first_token: int
    fork_tokens: tuple[tuple[int, int], ...] = ()
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()
    # Its blocks came by ReadPages, not through the shared pool.
    is_on_device: bool = False


class Credit(msgspec.Struct, array_like=True, tag="credit"):
    seq_id: int
    up_to_index: int


class Abort(msgspec.Struct, array_like=True, tag="abort"):
    """End a sequence and free everything, in any state. Unknown or ended ids are ignored."""

    seq_id: int


class Release(msgspec.Struct, array_like=True, tag="release"):
    """A prefill sequence's blocks were handed over (or given up): free them into the cache."""

    seq_id: int


class Probe(msgspec.Struct, array_like=True, tag="probe"):
    """Ask for a step, even if there is nothing to compute: the progress page shows whether it ran.
    Such a step computes one token of no sequence and is reported nowhere else."""


class Shutdown(msgspec.Struct, array_like=True, tag="shutdown"):
    pass


Command = (
    AddSequence
    | Bind
    | Start
    | Credit
    | Abort
    | Release
    | SnapshotHashes
    | ServeAdapters
    | Probe
    | Shutdown
    | DeviceCommand
)


class CommandBatch(msgspec.Struct, array_like=True, tag="commands"):
    commands: list[Command]


class EngineInfo(msgspec.Struct, array_like=True, tag="info"):
    """The core's first message: what its front reads of the loaded model and the mapped pool."""

    model_fp: str
    model_name: str
    model_revision: str
    kv_spec: KVSpec
    num_blocks: int
    max_model_len: int
    max_num_seqs: int
    vocab_size: int
    eos_token_ids: list[int]
    # The tokenizer.json of its vocabulary, for grammars; None = they cannot be served.
    tokenizer_file: str | None = None
    # Set when peers can read and be read there; else blocks move through the shared pool.
    device_pool: DevicePool | None = None
    # Which engine it is, with its version where that is not Baton's own.
    engine: str = "baton"
    # What it refuses by name; routers send no such request here.
    unsupported: list[Parameter] = []
    # Set when the model gives vectors, and then nothing else.
    pooling: Pooling | None = None
    # The adapters that sequences may have at once; 0 = none are served.
    num_adapter_slots: int = 0
    # Of the staging ring, which is the shared pool then; 0 = the cache itself is.
    num_rows: int = 0
    model_folder: str = ""
    file_digests: dict[str, str] = {}  # as they were when it was loaded (wire/fingerprint.py)


class LoadFailed(msgspec.Struct, array_like=True, tag="load_failed"):
    """The core cannot serve this model; it exits after this message."""

    message: str


class Admitted(msgspec.Struct, array_like=True):
    """A remote sequence has its room promised; its first `num_cached_blocks` blocks are here.

    That can be all blocks of the prompt: then only the first token is missing.
    """

    seq_id: int
    num_cached_blocks: int


class SequenceRefused(msgspec.Struct, array_like=True):
    """The engine does not take the sequence and holds nothing for it."""

    seq_id: int
    reason: RefusalReason
    message: str


class Started(msgspec.Struct, array_like=True):
    """Prefill compute of a local or prefill sequence, with so many blocks, starts in this step.

    In `rows` of the shared pool the front will find the blocks that a prefill's peer lacks; where
    the peer reads them on the device, they are those blocks. The first `num_cached_tokens` tokens
    are in the cache already and are not computed. Not reported again after a preemption.
    """

    seq_id: int
    rows: list[int]
    num_cached_tokens: int
    num_blocks: int


class Bound(msgspec.Struct, array_like=True):
    """A remote sequence has so many blocks. The front writes those that are missing into `rows` of
    the shared pool; where they come by ReadPages, they are those blocks."""

    seq_id: int
    rows: list[int]
    num_blocks: int


class Progress(msgspec.Struct, array_like=True):
    """A prefill sequence's KV is final for its first `num_computed_tokens` tokens, and in its rows.

    With `num_layers` it is so in the first layers alone: the step computes the others still. Also
    told of a beam search, once: its prompt is computed, its tokens come at the end.
    """

    seq_id: int
    num_computed_tokens: int
    checksums: list[BlockChecksums] = []
    num_layers: int | None = None


class Finished(msgspec.Struct, array_like=True):
    """The sequence has ended by itself.

    `message` says more about a failure, in one line for the client, where there is more to say.
    Blocks of a prefill sequence that was Started stay held until Release; all others are free. A
    sequence that was aborted gets no Finished. A remote sequence does not expire between Bound and
    Start, since the front may be writing into its blocks: the front aborts it.
    """

    seq_id: int
    reason: FinishReason
    num_output_tokens: int
    message: str = ""


class TokenLogprobs(msgspec.Struct, array_like=True):
    """The logprobs of output token `index`, or of prompt token `index`, never the first."""

    seq_id: int
    index: int
    token_id: int
    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]
    # Of a prompt token: how many tokens are as likely or likelier, itself among them.
    rank: int = 0


class EngineLoad(msgspec.Struct, array_like=True):
    """Measured at the end of a step; rates are exponential means, 0 = not measured yet.

    Free blocks include cached and promised ones; free rows are the staging ring's.
    `num_not_started` remote sequences are admitted but not running yet: their prompt is on its way.
    """

    num_running: int
    num_waiting: int
    num_blocks_free: int
    num_blocks_promised: int
    num_queued_prefill_tokens: int
    prefill_tokens_per_s: float
    decode_step_s: float
    num_not_started: int = 0
    # Running or waiting only for credit; those that wait so are not among `num_waiting`.
    num_parked: int = 0
    # Prefill tokens that a step takes beside the decodes that run now, or ran last.
    chunk_tokens: int = 0
    num_rows_free: int = 0


class StepEvents(msgspec.Struct, array_like=True, tag="events"):
    """Everything that one turn of the core's loop brought: one message costs less than many.

    `token_seq_ids`, `token_ids` and `token_indexes` are columns: one new output token each, with
    its index among the output tokens of its choice. KV events are in order: removed before stored.

    So are `spent_seq_ids`, `spent_us` and `held_block_us`: the share that each sequence of the step
    had in its time; and the blocks that it held since that was last told, times microseconds, with
    how many it holds now, two columns that are empty in most steps. `left_seq_ids` and
    `left_block_us` say the same of sequences that gave their blocks back. `prefills` names entries
    by index that were prefill, each with the part of its time that computed again what a preemption
    had taken.
    """

    step: int
    load: EngineLoad
    num_step_tokens: int = 0
    num_step_seqs: int = 0
    token_seq_ids: list[int] = []
    token_ids: list[int] = []
    token_indexes: list[int] = []
    admitted: list[Admitted] = []
    refused: list[SequenceRefused] = []
    started: list[Started] = []
    bound: list[Bound] = []
    progress: list[Progress] = []
    finished: list[Finished] = []
    removed_hashes: bytes = b""
    stored: list[StoredBlocks] = []
    snapshot: bytes | None = None
    num_preemptions: int = 0
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    # Speculated tokens of this step, and how many of them were right.
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    # Sequences of the Aborts and Releases that were applied. They hold nothing any more, unless a
    # fork that was not aborted still needs its leader's prompt.
    freed: list[int] = []
    violations: list[Violation] = []
    pages_read: list[PagesRead] = []
    # The prefix cache after the KV events above: its number of hashes, and their digest.
    num_cached_hashes: int = 0
    cache_digest: int = 0
    # The time of all steps since the last report, with that of planning them.
    busy_us: int = 0
    spent_seq_ids: list[int] = []
    spent_us: list[int] = []
    held_block_us: list[int] = []
    prefills: list[tuple[int, int]] = []
    held_blocks: list[int] = []
    left_seq_ids: list[int] = []
    left_block_us: list[int] = []
    pooled: list[Pooled] = []
    adapters: AdaptersServed | None = None
    vllm: VllmStats | None = None


CoreMessage = EngineInfo | LoadFailed | StepEvents
