"""Measures how exactly the engine computes, and what its results depend on.

`python -m bench.engine.numerics --model NAME` prints a JSON line for each measurement:

    error       log probabilities in bfloat16 against transformers' in float32, on known texts,
                beside transformers' own bfloat16; of the tokens that float32 finds likeliest (which
                it would emit) and of the texts' own tokens
    invariance  for which numbers of batch mates and which chunks logits are not bit-equal to those
                of the sequence alone, token by token
    cost        how much longer steps take with --deterministic

The bounds are of the likeliest tokens: on average 0.02, at most 0.15.
"""

import argparse
import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

import baton.demo_model
from baton.demo_model import demo_model_path
from baton.model.cpu import native
from baton.model.load.load import LoadOptions, load_model
from baton.model.tensors.torch_attention import TorchAttention
from baton.model.torch_runner import TorchRunner
from bench.engine.forced import ForcedTexts, in_chunks
from bench.models import SHAPES, cache_folder, ensure_model

Record = dict[str, Any]
PARTS = ("error", "invariance", "cost")
MEAN_BOUND, MAX_BOUND = 0.02, 0.15
MATES = (1, 3, 7, 15, 31)
CHUNKS = (2, 8, 9, 16, 17, 64, 128)
_NUM_CHECKED_TOKENS = 128
_NUM_DECODED_TOKENS = 8  # the last ones, beside mates
_NUM_RATE_TOKENS, _RATE_BATCH, _NUM_ROUNDS = 1024, 8, 5


def main() -> None:
    options = _parse()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    measures = {"error": measure_errors, "invariance": measure_invariance, "cost": measure_cost}
    for name in options.model.split(","):
        folder = _folder(name)
        for part in options.part.split(","):
            for record in measures[part](folder, options.tokens):
                print(json.dumps({"part": part, "model": name, **record}), flush=True)


def measure_errors(folder: Path, num_tokens: int) -> Iterator[Record]:
    """One record for each way to compute in bfloat16."""
    text = _tokens_of(folder, num_tokens)
    exact = _transformers_logprobs(folder, text, torch.float32)
    ways: dict[str, Callable[[], torch.Tensor]] = {
        f"baton, {_kernels()}": lambda: _engine_logprobs(_runner(folder, "bfloat16"), text),
        "baton, torch": lambda: _engine_logprobs(_torch_runner(folder, "bfloat16"), text),
        "transformers": lambda: _transformers_logprobs(folder, text, torch.bfloat16),
    }
    likeliest = exact[:-1].argmax(-1)
    own = torch.from_numpy(text[1:])
    for way, compute in ways.items():
        logprobs = compute()
        emitted = _distances(exact, logprobs, likeliest)
        is_within = emitted["mean"] < MEAN_BOUND and emitted["max"] < MAX_BOUND
        yield {
            "way": way,
            "num_tokens": len(own),
            "likeliest": emitted,
            "text": _distances(exact, logprobs, own),
            "is_within_bounds": is_within,
        }
        del logprobs
        gc.collect()


def measure_invariance(folder: Path, _: int) -> Iterator[Record]:
    """One record for each backend, dtype and mode: what differs from the sequence alone."""
    for dtype in ("bfloat16", "float32"):
        for way, make in ((_kernels(), _runner), ("torch", _torch_runner)):
            for is_deterministic in (False, True):
                runner = make(folder, dtype, is_deterministic=is_deterministic)
                yield {
                    "way": way,
                    "dtype": dtype,
                    "deterministic": is_deterministic,
                    **differing_shapes(runner, _texts(folder, MATES[-1] + 1)),
                }


def differing_shapes(runner: TorchRunner, texts: NDArray[np.int64]) -> Record:
    """Numbers of mates and sizes of chunks with which the first text's logits are others."""
    num_tokens = texts.shape[1]
    num_prompt = num_tokens - _NUM_DECODED_TOKENS
    forced = ForcedTexts(runner, texts)
    alone = forced.logits(in_chunks(num_tokens, 1))
    cut = {size: forced.logits(in_chunks(num_tokens, size)) for size in CHUNKS}
    forced.logits([[num_prompt] * len(texts)])

    def decoded(num_mates: int) -> torch.Tensor:
        return forced.logits([[1] * (num_mates + 1)] * _NUM_DECODED_TOKENS, num_prompt)

    lone = decoded(0)
    return {
        "mates": list(MATES),
        "mates_that_differ": [n for n in MATES if not torch.equal(decoded(n), lone)],
        "chunks": list(CHUNKS),
        "chunks_that_differ": [n for n in CHUNKS if not torch.equal(cut[n], alone)],
        "largest_difference": max(float((logits - alone).abs().max()) for logits in cut.values()),
    }


def measure_cost(folder: Path, _: int) -> Iterator[Record]:
    """One record for each kind of step of the fastest way: with the mode / without it."""
    tokens = np.stack([_tokens_of(folder, _NUM_RATE_TOKENS + 1)] * _RATE_BATCH)
    modes = [_runner(folder, "bfloat16", is_deterministic=mode) for mode in (False, True)]
    forced = [ForcedTexts(runner, tokens) for runner in modes]
    steps = {
        f"prefill of {_NUM_RATE_TOKENS}": ([_NUM_RATE_TOKENS], 0),
        "prefill of 256": ([256], 0),
        f"decode of {_RATE_BATCH} after {_NUM_RATE_TOKENS}": ([1] * _RATE_BATCH, _NUM_RATE_TOKENS),
    }
    for name, (counts, num_done) in steps.items():
        # In turns, so that a noisy moment hits both.
        rounds = [[one.step_s(counts, num_done) for one in forced] for _ in range(_NUM_ROUNDS)]
        plain, fixed = map(min, zip(*rounds, strict=True))
        yield {"way": _kernels(), "step": name, "ratio": round(fixed / plain, 2)}


def _engine_logprobs(runner: TorchRunner, text: NDArray[np.int64]) -> torch.Tensor:
    """A long chunk, short ones, then token by token, as a prompt and its answer are computed."""
    num_long = len(text) // 2
    num_short = min(64, len(text) - num_long)
    rest = in_chunks(num_short, 8) + in_chunks(len(text) - num_long - num_short, 1)
    return ForcedTexts(runner, text[None]).logits([[num_long], *rest]).log_softmax(-1)


@torch.inference_mode()
def _transformers_logprobs(
    folder: Path, text: NDArray[np.int64], dtype: torch.dtype
) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, local_files_only=True
    )
    logits: torch.Tensor = model(input_ids=torch.from_numpy(text)[None], use_cache=False).logits[0]
    return logits.float().log_softmax(-1)


def _distances(exact: torch.Tensor, other: torch.Tensor, tokens: torch.Tensor) -> Record:
    """Absolute differences of the log probabilities of `tokens`, the ones after each position."""
    at = tokens[:, None]
    distance = (exact[: len(at)].gather(-1, at) - other[: len(at)].gather(-1, at)).abs()
    return {
        "mean": round(float(distance.mean()), 4),
        "p99": round(float(distance.quantile(0.99)), 4),
        "max": round(float(distance.max()), 4),
    }


def _runner(folder: Path, dtype: str, *, is_deterministic: bool = False) -> TorchRunner:
    loaded = load_model(str(folder), LoadOptions(dtype=dtype))
    return TorchRunner(loaded, is_deterministic=is_deterministic)


def _torch_runner(folder: Path, dtype: str, *, is_deterministic: bool = False) -> TorchRunner:
    """As where no kernels are built, over modules as they are."""
    loaded = load_model(str(folder), LoadOptions(dtype=dtype))
    return TorchRunner(loaded, TorchAttention(), is_deterministic=is_deterministic)


def _kernels() -> str:
    """Name the kernels of the fastest way."""
    isas = native.usable_isas()
    return f"compiled for {isas[-1]}" if isas else "oneDNN"


def _texts(folder: Path, count: int) -> NDArray[np.int64]:
    """`[count, _NUM_CHECKED_TOKENS]`: the first is a real text, the others are its tokens mixed."""
    first = _tokens_of(folder, _NUM_CHECKED_TOKENS)
    rng = np.random.default_rng(1)
    return np.stack([first, *(rng.permutation(first) for _ in range(count - 1))])


def _tokens_of(folder: Path, count: int) -> NDArray[np.int64]:
    """English about this project, then Python: what the models at hand were made from."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    card = Path(baton.demo_model.__file__).with_name("README.md").read_text()
    ids = tokenizer(card + Path(argparse.__file__).read_text())["input_ids"]
    return np.array(ids[:count], np.int64)


def _folder(name: str) -> Path:
    if name == "baton-demo":
        return demo_model_path()
    return ensure_model(name, cache_folder()) if name in SHAPES else Path(name)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.engine.numerics")
    help_text = f"baton-demo, {', '.join(SHAPES)}, or folders (baton-demo,tiny)"
    parser.add_argument("--model", default="baton-demo,tiny", metavar="A,B", help=help_text)
    parser.add_argument("--part", default=",".join(PARTS), metavar="A,B", help=", ".join(PARTS))
    parser.add_argument("--tokens", type=int, default=384, help="length of the text (384)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (1)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
