"""`python -m baton.worker.core_main`: the core process of a worker, with a real model.

Started by the front (`engine/process_client.py`), which passes three descriptors and then options.
A model that cannot be served is told to the front in one line; this process then exits.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence

import torch

from baton.engine.core import CoreLink, serve
from baton.engine.engine import Engine, EngineConfig
from baton.engine.model.load import DTYPES, LoadedModel, LoadOptions, load_model
from baton.engine.model.refusal import LoadError
from baton.engine.model.self_check import check_model
from baton.engine.model.torch_runner import TorchRunner
from baton.system.clock import SystemClock

DEFAULT_KV_BYTES = 512 * 1024 * 1024
MIN_CONTEXT_TOKENS = 256
EXIT_CANNOT_SERVE = 3


def main(argv: Sequence[str]) -> int:
    """Load, then step until the front says Shutdown or is gone. Returns the exit code."""
    link, rest = CoreLink.from_argv(argv)
    options = parse_options(rest)
    torch.set_num_threads(options.threads)
    try:
        engine = build_engine(options)
    except LoadError as error:
        link.refuse(str(error))
        return EXIT_CANNOT_SERVE
    serve(link, engine)
    return 0


def build_engine(options: argparse.Namespace) -> Engine:
    """Load the model and size the pool. Raises LoadError."""
    loaded = load_model(
        options.model,
        LoadOptions(options.dtype, options.block_size, options.max_model_len, options.kv_bytes),
    )
    loaded = fit_to_pool(loaded, options.kv_bytes, is_length_wanted=bool(options.max_model_len))
    config = EngineConfig(
        model_fp=loaded.fingerprint,
        model_name=options.model_name or loaded.source.name,
        model_revision=loaded.source.revision,
        num_blocks=options.kv_bytes // loaded.kv_spec.row_bytes,
        max_num_seqs=options.max_num_seqs,
        max_step_tokens=options.max_step_tokens,
        max_step_s=options.max_step_ms / 1000 or None,
    )
    runner = TorchRunner(loaded)
    check_model(loaded, runner)
    return Engine(config, runner, SystemClock())


def fit_to_pool(loaded: LoadedModel, kv_bytes: int, *, is_length_wanted: bool) -> LoadedModel:
    """Make sure that the pool holds one sequence of the longest length.

    A length that nobody asked for is lowered to what fits. Raises LoadError.
    """
    spec = loaded.kv_spec
    num_tokens = kv_bytes // spec.row_bytes * spec.block_size
    if num_tokens >= loaded.max_model_len:
        return loaded
    if num_tokens >= MIN_CONTEXT_TOKENS and not is_length_wanted:
        return dataclasses.replace(loaded, max_model_len=num_tokens)
    needed = spec.num_blocks_for(loaded.max_model_len) * spec.row_bytes
    raise LoadError(
        f"model {loaded.source.name}: a KV cache of {kv_bytes} bytes holds {num_tokens} tokens, "
        f"one sequence may have {loaded.max_model_len}: raise --kv-bytes to {needed}"
    )


def parse_options(argv: Sequence[str]) -> argparse.Namespace:
    """The options after the three descriptors."""
    parser = argparse.ArgumentParser(prog="baton.worker.core_main", description=__doc__)
    parser.add_argument("--model", required=True, help="local folder or Hugging Face id")
    parser.add_argument("--model-name", default="", help="the name to serve it under")
    parser.add_argument("--dtype", choices=DTYPES, default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kv-bytes", type=int, default=DEFAULT_KV_BYTES)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--max-model-len", type=int, default=None)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-step-tokens", type=int, default=2048)
    parser.add_argument("--max-step-ms", type=float, default=100.0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
