"""`python -m baton.worker.core_main`: the core process of a worker, with a real model.

Started by the front (`engine/process/process_client.py`), which passes three descriptors and then
options. A model that cannot be served is told to the front in one line; this process then exits.
"""

import gc
import os

# The imports below and the model make millions of objects that stay: collecting among them costs a
# tenth to a quarter of the time to load. main() leaves the modules out of each collection, and
# turns the collector on again.
if __name__ == "__main__":
    gc.disable()
    # Between two steps the other threads wait for the next one. OpenMP lets them look 300,000 times
    # for it, and where others want the CPUs that costs them their turn
    # (docs/benchmarks/engine-cpu.md). Read once, when torch is imported.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import argparse
import logging
import secrets
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import torch

from baton.engine.grammar.compiler import GrammarCompiler
from baton.engine.grammar.mask_thread import MaskThread
from baton.engine.grammar.states import GrammarStates
from baton.engine.kv.handoff_rows import num_ring_rows
from baton.engine.process.core import CoreLink, serve
from baton.engine.protocol.runner import Runner, StagingRunner
from baton.engine.step.engine import Engine, EngineConfig
from baton.engine.step.grammars import Grammars
from baton.handoff.transports.device_reads import DeviceReads, DeviceRunner
from baton.handoff.transports.nixl_agent import HOST, Memory, NixlAgent, NixlError, NixlMissing
from baton.model.device import DEVICES, choose_device, make_runner
from baton.model.load.load import DTYPES, LoadedModel, LoadOptions, load_model
from baton.model.load.load_error import LoadError
from baton.model.load.memory_need import LargestStep
from baton.model.load.pool_size import PoolOptions, choose_pool, fit_length
from baton.system.byte_size import parse_bytes
from baton.system.clock import SystemClock
from baton.system.cores import num_available_cores
from baton.system.crash_trace import leave_stack
from baton.system.load_progress import LoadStage, LoadTeller, Tell, untold

EXIT_CANNOT_SERVE = 3
_AGENT_LIFE_BYTES = 8
# As `baton.model.device.make_runner`.
RunnerMaker = Callable[..., tuple[Runner, LoadedModel]]


def main(argv: Sequence[str], make: RunnerMaker = make_runner) -> int:
    """Load, then step until the front says Shutdown or is gone. Returns the exit code."""
    leave_stack()
    link, rest = CoreLink.from_argv(argv)
    options = parse_options(rest)
    tell = LoadTeller().tell
    torch.set_num_threads(options.threads)
    # Loading collects garbage twice, which takes a third of a second with all of torch among it.
    gc.freeze()
    try:
        engine = build_engine(options, make, tell)
    except (LoadError, NixlMissing, NixlError) as error:
        link.refuse(str(error))
        return EXIT_CANNOT_SERVE
    _keep_what_is_loaded()
    tell(LoadStage("warm-up"))
    serve(link, engine)
    return 0


def _keep_what_is_loaded() -> None:
    """From here on the collector looks at what steps make, never again at modules and weights."""
    gc.collect()
    gc.freeze()
    gc.enable()


def build_engine(
    options: argparse.Namespace, make: RunnerMaker = make_runner, tell: Tell = untold
) -> Engine:
    """Load the model and size the pool. Raises LoadError, NixlMissing and NixlError."""
    device = choose_device(options.device)
    step = LargestStep(options.max_step_tokens, options.max_batch)
    load_options = LoadOptions(
        options.dtype,
        options.block_size,
        options.max_model_len,
        options.kv_memory or 0,
        step,
        keeps_float16=device.type == "cuda",
        device=device,
        verifies_weights=options.verify_weights == "on",
        tell=tell,
    )
    loaded = load_model(options.model, load_options)
    tell(LoadStage("self check"))
    runner, loaded = make(
        loaded,
        step,
        device,
        has_graphs=options.cuda_graphs == "on",
        is_deterministic=options.deterministic == "on",
    )
    wanted = PoolOptions(options.kv_memory, options.memory_share, options.max_batch)
    kv_bytes = choose_pool(loaded, wanted)
    loaded = fit_length(loaded, kv_bytes, is_length_wanted=bool(options.max_model_len))
    num_blocks = kv_bytes // loaded.kv_spec.row_bytes
    config = EngineConfig(
        model_fp=loaded.fingerprint,
        model_name=options.model_name or loaded.source.name,
        model_revision=loaded.source.revision,
        model_folder=str(loaded.source.folder),
        file_digests=loaded.digests,
        num_blocks=num_blocks,
        num_rows=_num_rows(loaded, runner, num_blocks, options.staging_memory),
        max_num_seqs=options.max_batch,
        max_step_tokens=options.max_step_tokens,
        max_step_s=options.max_step_ms / 1000 or None,
        num_draft_tokens=options.speculation_tokens,
    )
    handoff = _make_device_handoff(loaded, runner, device, options.nixl_agent)
    return Engine(config, runner, SystemClock(), _make_grammars(loaded), handoff)


def _num_rows(loaded: LoadedModel, runner: Runner, num_blocks: int, num_bytes: int | None) -> int:
    """The rows of the staging ring, where there is one. Raises LoadError."""
    if not isinstance(runner, StagingRunner):
        return 0
    try:
        return num_ring_rows(loaded.kv_spec, num_blocks, loaded.max_model_len, num_bytes)
    except ValueError as error:
        raise LoadError(f"model {loaded.source.name}: {error}") from None


def _make_device_handoff(
    loaded: LoadedModel, runner: Runner, device: torch.device, agent_name: str
) -> DeviceReads | None:
    """None where the pool is shared memory, which the front reads itself, or without a name."""
    if not agent_name or not isinstance(runner, DeviceRunner):
        return None
    # A name of its own in each life: peers know it by what they were told then.
    life = secrets.token_hex(_AGENT_LIFE_BYTES)
    memory = Memory("VRAM", device.index or 0) if device.type == "cuda" else HOST
    agent = NixlAgent(f"{agent_name}-{life}", is_read=True, memory=memory)
    return DeviceReads(loaded.kv_spec, runner, agent)


def _make_grammars(loaded: LoadedModel) -> Grammars | None:
    """None when the model has no tokenizer.json and none can be made."""
    if loaded.tokenizer_file is None:
        return None
    compiler = GrammarCompiler(loaded.tokenizer_file, loaded.vocab_size, loaded.eos_token_ids)
    compiling = ThreadPoolExecutor(1, thread_name_prefix="grammar-compile")
    return Grammars(GrammarStates(compiler, compiling, MaskThread()))


def parse_options(argv: Sequence[str]) -> argparse.Namespace:
    """The options after the three descriptors."""
    parser = argparse.ArgumentParser(prog="baton.worker.core_main", description=__doc__)
    parser.add_argument("--model", required=True, help="local folder or Hugging Face id")
    parser.add_argument("--model-name", default="", help="the name to serve it under")
    help_text = "read all weights, and hold them against the manifest of their download"
    parser.add_argument("--verify-weights", choices=("on", "off"), default="off", help=help_text)
    parser.add_argument("--dtype", choices=DTYPES, default="auto")
    parser.add_argument("--device", choices=DEVICES, default="auto")
    help_text = "whether steps on a GPU that are not large are captured"
    parser.add_argument("--cuda-graphs", choices=("on", "off"), default="on", help=help_text)
    help_text = "tokens do not depend on what else a step computes; CPU only, and slower"
    parser.add_argument("--deterministic", choices=("on", "off"), default="off", help=help_text)
    parser.add_argument("--threads", type=int, default=num_available_cores())
    help_text = "size of the KV pool, such as 2GiB; default: from --memory-share"
    parser.add_argument("--kv-memory", type=parse_bytes, default=None, help=help_text)
    help_text = "host memory through which a GPU's blocks are handed over; default: a quarter of "
    help_text += "the KV pool and 16GiB at most, or one longest sequence"
    parser.add_argument("--staging-memory", type=parse_bytes, default=None, help=help_text)
    help_text = "of free memory, for weights, activations and pool together"
    parser.add_argument("--memory-share", type=float, default=0.8, help=help_text)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--max-model-len", type=int, default=None)
    parser.add_argument("--max-batch", type=int, default=64, help="sequences in one step")
    parser.add_argument("--max-step-tokens", type=int, default=2048)
    help_text = "tokens of a sequence that a step guesses and checks; 0 = no speculation"
    parser.add_argument("--speculation-tokens", type=int, default=0, help=help_text)
    parser.add_argument("--max-step-ms", type=float, default=100.0)
    help_text = "the name under which a GPU's pool reads and is read by NIXL; empty = it does not"
    parser.add_argument("--nixl-agent", default="", help=help_text)
    return parser.parse_args(argv)


def end_process(status: int) -> NoReturn:
    """Nothing here outlives the process, and taking torch apart would hold up a worker that leaves:
    measured half a second of computing, several seconds beside a busy neighbour."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
