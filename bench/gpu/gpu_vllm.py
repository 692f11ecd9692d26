"""`python -m bench gpu --engine vllm`: what a GPU has to prove of workers with vLLM's engine.

Without a GPU it prints the page of what there is to prove. With one it runs the proofs, in their
order, and says of each whether it held. None of them has run on a GPU yet: a worker starts vLLM's
build for GPUs only with `BATON_WORKER_UNPROVEN=on`, which the proofs have.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.contenders import vllm_python

_ROOT = Path(__file__).parents[2]
_LIMIT_S = 1800


@dataclass(frozen=True, slots=True)
class Proof:
    """One command that must end well. `words` are arguments of this interpreter."""

    title: str
    proves: str
    words: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()
    num_gpus: int = 1


_CORE_TESTS = ("-m", "pytest", "-q", "-s")
PROOFS = (
    Proof(
        "A core keeps its promises",
        "Credit, parking, resume, cancel, suspects, grammars and prefix hashes with vLLM's first"
        " model runner on CUDA, eager and without asynchronous scheduling; tokens are chosen by"
        " Baton's sampling kernels. In float32, for which vLLM takes no FlashAttention.",
        (*_CORE_TESTS, "tests/engines/test_conformance.py", "tests/engines/test_aborts.py"),
    ),
    Proof(
        "The attention of a GPU keeps blocks as it was read",
        "The same in bfloat16, with the backend that vLLM prefers there: a page is read from its"
        " cache and written back to it, through page-locked slots and beside the steps, and the"
        " answer goes on as if it had never moved.",
        (*_CORE_TESTS, "tests/engines/test_conformance.py", "-k", "handed_over or elsewhere"),
        (("BATON_TEST_DTYPE", "bfloat16"),),
    ),
    Proof(
        "It answers what a CPU answers",
        "In float32 the tokens of Baton's own engine on the host's CPU, greedy and sampled; a"
        " difference is shown with its place in the answer.",
        (*_CORE_TESTS, "tests/engines/devices/test_gpu_answers.py"),
    ),
    Proof(
        "Faults of a handoff are noticed",
        "The faults under which vLLM's own connector answers wrong text, hangs or leaks. That one"
        " runs beside it.",
        (*_CORE_TESTS, "tests/engines/connectors"),
    ),
    Proof(
        "Several ranks are one worker",
        "Ranks that were spawned, on a GPU each: a dead or hung one ends its worker, none outlives"
        " its core, and blocks go from any number of ranks to any other. Needs two GPUs.",
        (*_CORE_TESTS, "tests/engines/test_tensor_parallel.py"),
        num_gpus=2,
    ),
    Proof(
        "Blocks move at the speed of the bus",
        "GB/s between a GPU's cache and the ring, for Baton's own form and for vLLM's in two"
        " orders of memory.",
        ("-m", "bench.gpu", "--only", "staging"),
    ),
    Proof(
        "An answer outlives its worker",
        "Killed cores and workers under load: the same text as without a kill, greedy and seeded,"
        " although a GPU's results depend on what else a step computes.",
        (*_CORE_TESTS, "tests/chaos/test_killed_workers.py"),
        (("BATON_CHAOS_ENGINE", "vllm"), ("BATON_CHAOS_EACH", "10")),
    ),
    Proof(
        "It costs no more than vllm serve",
        "Tokens a second, first tokens, gaps beside long prompts, aggregated and split; at most"
        " 10 us of the front's CPU for a token at 32 sequences. `vllm serve` has its CUDA graphs"
        " and asynchronous scheduling, which are off here: what they are worth shows in this row.",
        ("-m", "bench", "engines"),
    ),
)
_VARIABLES = (("BATON_WORKER_UNPROVEN", "on"),)


def page() -> str:
    """All proofs as Markdown, with their commands."""
    lines = ["# What a GPU has to prove of workers with vLLM", ""]
    for number, proof in enumerate(PROOFS, 1):
        variables = "".join(f"{name}={value} " for name, value in (*_VARIABLES, *proof.variables))
        lines += [f"{number}. **{proof.title}.** {proof.proves}", ""]
        lines += [f"       {variables}python {' '.join(proof.words)}", ""]
    return "\n".join(lines)


def main() -> int:
    """Print the page, and run the proofs where there is a GPU; 1 when one failed, 2 without."""
    print(page())
    num_gpus = _num_gpus()
    if not num_gpus:
        print("bench gpu --engine vllm needs a GPU that vLLM can use", file=sys.stderr)
        return 2
    has_failed = False
    for proof in PROOFS:
        if proof.num_gpus > num_gpus:
            print(f"{proof.title}: left out, it needs {proof.num_gpus} GPUs", flush=True)
            continue
        has_held = _has_held(proof)
        print(f"{proof.title}: {'held' if has_held else 'FAILED'}", flush=True)
        has_failed |= not has_held
    return int(has_failed)


def _has_held(proof: Proof) -> bool:
    """Run its command, which must end well."""
    variables = {**dict((*_VARIABLES, *proof.variables)), "BATON_VLLM_PYTHON": str(vllm_python())}
    argv = [sys.executable, *proof.words]
    try:
        ended = subprocess.run(
            argv, cwd=_ROOT, env={**os.environ, **variables}, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 0


def _num_gpus() -> int:
    """The number of GPUs that are there, for an environment that has vLLM."""
    is_ready = vllm_python().exists()
    return len(list(Path("/dev").glob("nvidia[0-9]*"))) if is_ready else 0
