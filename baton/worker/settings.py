"""Settings of a worker process, decode and prefill alike, from BATON_WORKER_* variables."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from baton.system.byte_size import parse_bytes
from baton.wire.limits import ADAPTER_RANKS
from baton.worker.core_watch import WatchLimits
from baton.worker.transports import HandoffOptions

ENVIRONMENT_PREFIX = "BATON_WORKER_"
AUTO = "auto"
MAX_SPECULATION_TOKENS = 32


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A worker's settings, one field for each: what it serves, where, and with how much."""

    # The model: a local folder or a Hugging Face id.
    model: str
    # The name under which it is served; empty = the model's own.
    model_name: str = ""
    # Whether a start reads all weights and holds them against the manifest of their download.
    verify_weights: Literal["on", "off"] = "off"
    # Address of its gRPC server, host:port; port 0 = any free one.
    listen: str = "127.0.0.1:0"
    # Address of metrics, liveness and readiness, plain HTTP; port 0 = any free one.
    admin_listen: str = "127.0.0.1:0"
    # Its name in the fleet; empty = host name and process id.
    worker_id: str = ""
    # Where it runs, as the cloud or the cluster names it; empty = not known.
    zone: str = ""

    # The engine that computes: Baton's own, or vLLM's.
    engine: Literal["baton", "vllm"] = "baton"
    # The interpreter of the environment that has the engine; empty = this one. vllm needs one of
    # its own.
    engine_python: str = ""
    # Ranks, with a part of the weights and some of the KV heads each; more than one for vllm only.
    tensor_parallel: int = 1
    # Whether each rank has some of a mixture's experts whole, not a part of each of them.
    expert_parallel: Literal["on", "off"] = "off"
    # Whether vLLM's build for GPUs is started, although nothing of it was ever run on one.
    unproven: Literal["on", "off"] = "off"
    # Whether vLLM compiles its steps; auto = on CPUs, where a C++ compiler is. Starts take longer
    # then, the first one with a model most.
    compile: Literal["auto", "on", "off"] = "auto"

    # Type of the weights and of the computation; auto = the checkpoint's where the device is made
    # for it, else float32.
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    # auto = the GPU where there is one.
    device: Literal["auto", "cpu", "cuda"] = "auto"
    # Whether steps on a GPU that are not large are captured as CUDA graphs.
    cuda_graphs: Literal["on", "off"] = "on"
    # Whether tokens must not depend on what else a step computes; for CPUs only, and slower.
    deterministic: Literal["on", "off"] = "off"
    # Threads of the computation on a CPU; None = all cores that it may use.
    threads: int | None = None
    # Size of the KV pool, such as 2GiB; auto = what memory_share leaves of the free memory.
    kv_memory: str = AUTO
    # The part of the memory that is free before loading, for weights, activations and pool
    # together.
    memory_share: float = 0.8
    # Host memory through which blocks of a GPU, or of vLLM, are handed over, such as 4GiB; auto = a
    # quarter of the KV pool and 16 GiB at most, but never less than one longest sequence.
    staging_memory: str = AUTO
    # Tokens of a KV block: 16, 32 or 64. None = as the engine likes it: 16, vllm 32.
    block_size: int | None = None
    # Longest sequence in tokens; None = what the model was made for, as far as the pool holds it.
    max_model_len: int | None = None
    # Sequences in one step.
    max_batch: int = 64
    # Tokens of one step, prompts and outputs together; at least max_batch.
    max_step_tokens: int = 2048
    # How long a step with running streams should take at most, in milliseconds; twice as long while
    # prompts are read without a break, and up to eight times where they are long beside answers.
    # 0 = no limit.
    max_step_ms: float = 100.0

    # Speculative decoding: tokens of a sequence that a step guesses from its past and checks, 32 at
    # most; 0 = off.
    speculation_tokens: int = 0

    # LoRA, by vllm alone: a folder in which each folder is an adapter, served under its name. What
    # comes and goes there is seen within seconds. None = no adapters.
    adapters: Path | None = None
    # Adapters that may be in use at once; others are loaded when they are asked for.
    adapter_slots: int = 8
    # Rank of the largest adapter: 1, 8, 16, 32, 64, 128, 256, 320 or 512.
    adapter_rank: int = 16

    # Seconds after which a core stands still, when its step or command also takes six times as long
    # as it should.
    stall_s: float = 1.5
    # Seconds for which it may stand still before it is ended, and the worker with it. None = 10,
    # with several ranks 1: they may wait for one of them for ever.
    hang_s: float | None = None
    # Seconds between two tokens that an idle core computes to show that it can.
    probe_s: float = 3.0
    # Where the worker notes which requests run, so that its next life can tell if it dies in a step
    # with them; None = nowhere.
    state_dir: Path | None = None

    # Ways to move KV blocks between workers, best first: shm, nixl, grpc. Each pair takes the first
    # that works between the two.
    transports: str = "shm,grpc"
    # A folder that the workers of this host share, for shm; empty = no shm.
    handoff_dir: str = ""

    # Between GPUs, by nixl: every so many-th block is verified. One that its sender gave away too
    # early is found so.
    checksum_every: int = 1

    # Seconds that loading the model may take.
    load_timeout_s: float = 600.0
    # Seconds for which running work may go on after the signal to stop.
    drain_s: float = 120.0

    def __post_init__(self) -> None:
        positive = ("threads", "max_model_len", "max_batch", "max_step_tokens", "drain_s")
        own = ("stall_s", "hang_s", "probe_s", "tensor_parallel", "adapter_slots")
        for name in (*positive, *own):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be greater than 0")
        if not 0 < self.memory_share <= 1:
            raise ValueError("memory_share must be above 0 and at most 1")
        for name in ("kv_memory", "staging_memory"):
            value = getattr(self, name)
            if value != AUTO and _num_bytes(name, value) <= 0:
                raise ValueError(f"{name} must be greater than 0")
        if not 0 <= self.speculation_tokens <= MAX_SPECULATION_TOKENS:
            raise ValueError(f"speculation_tokens must be from 0 to {MAX_SPECULATION_TOKENS}")
        if self.max_step_ms < 0:
            raise ValueError("max_step_ms must not be below 0")
        if self.tensor_parallel > 1 and self.engine != "vllm":
            raise ValueError("tensor_parallel above 1 is for engine vllm only")
        if self.expert_parallel == "on" and self.tensor_parallel == 1:
            raise ValueError("expert_parallel needs tensor_parallel above 1: the ranks share them")
        if self.deterministic == "on" and self.device == "cuda":
            raise ValueError("deterministic is for device cpu only")
        if self.adapters is not None and self.engine != "vllm":
            raise ValueError("adapters are for engine vllm only")
        if self.adapter_rank not in ADAPTER_RANKS:
            raise ValueError(f"adapter_rank {self.adapter_rank} is none of {ADAPTER_RANKS}")
        if self.block_size not in (None, 16, 32, 64):
            raise ValueError(f"block_size {self.block_size} is none of 16, 32, 64")
        if self.max_step_tokens < self.max_batch:
            raise ValueError("max_step_tokens must be at least max_batch")

        self.handoff()

    def handoff(self) -> HandoffOptions:
        """The names of the transports to use. Raises ValueError."""
        folder = Path(self.handoff_dir) if self.handoff_dir else None
        return HandoffOptions(tuple(self.transports.split(",")), folder, self.checksum_every)

    def identity(self) -> str:
        """The name under which this worker is known."""
        return self.worker_id or f"{os.uname().nodename}-{os.getpid()}"

    def watch_limits(self) -> WatchLimits:
        """When the core stands still, and when it is ended."""
        hang_s = self.hang_s or (10.0 if self.tensor_parallel == 1 else 1.0)
        return WatchLimits(stall_s=self.stall_s, hang_s=hang_s, probe_s=self.probe_s)

    def page_file(self) -> Path | None:
        """The progress page of this worker. Raises OSError when its folder cannot be made."""
        if self.state_dir is None:
            return None
        self.state_dir.mkdir(parents=True, exist_ok=True)
        return self.state_dir / f"{self.identity().replace('/', '-')}.page"

    def core_arguments(self) -> list[str]:
        """Options of `baton.worker.core_main`."""
        options = {
            "--model": self.model,
            "--model-name": self.model_name,
            "--verify-weights": "on" if self.verify_weights == "on" else None,
            "--dtype": self.dtype,
            "--device": self.device,
            "--cuda-graphs": self.cuda_graphs,
            "--deterministic": self.deterministic,
            "--threads": self.threads,
            "--kv-memory": None if self.kv_memory == AUTO else self.kv_memory,
            "--memory-share": self.memory_share,
            "--staging-memory": None if self.staging_memory == AUTO else self.staging_memory,
            "--block-size": self.block_size,
            "--max-model-len": self.max_model_len,
            "--max-batch": self.max_batch,
            "--max-step-tokens": self.max_step_tokens,
            "--max-step-ms": self.max_step_ms,
            "--speculation-tokens": self.speculation_tokens,
            "--tensor-parallel": self.tensor_parallel if self.tensor_parallel > 1 else None,
            "--expert-parallel": "on" if self.expert_parallel == "on" else None,
            "--unproven": "on" if self.unproven == "on" and self.engine == "vllm" else None,
            "--compile": None if self.compile == "auto" or self.engine == "baton" else self.compile,
            "--adapter-slots": None if self.adapters is None else self.adapter_slots,
            "--adapter-rank": None if self.adapters is None else self.adapter_rank,
            "--nixl-agent": self.identity() if "nixl" in self.handoff().names else "",
        }
        return [
            str(word)
            for name, value in options.items()
            if value not in ("", None)
            for word in (name, value)
        ]


def _num_bytes(name: str, text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
