"""`python -m bench gpu --engine vllm`: what a GPU has to prove of workers with vLLM's engine.

Without a GPU it prints the page of what there is to prove. With one it runs the proofs, in their
order, and says of each whether it held. None of them has run on a GPU: a worker refuses vLLM's
builds for GPUs, and the first proof says so until that is changed.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
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


PROOFS = (
    Proof(
        "A core keeps its promises",
        "Credit, parking, resume, cancel, suspects and prefix hashes with vLLM's runner for GPUs:"
        " it was built on the runner for CPUs, eager, without asynchronous scheduling, and"
        " tokens are chosen by a logits processor that the other runner does not take.",
        ("-m", "pytest", "tests/engines/test_conformance.py", "tests/engines/test_aborts.py", "-q"),
    ),
    Proof(
        "Blocks arrive as they were sent",
        "A page is read from the layout of the GPU's attention, and written back to it; a pair"
        " whose layouts differ is refused. Blocks go through a staging ring in host memory, which"
        " is smaller than the GPU's cache.",
        ("-m", "pytest", "tests/engines/connectors", "-q", "-s"),
    ),
    Proof(
        "An answer outlives its worker",
        "Killed cores and workers under load: the same text as without a kill, greedy and seeded,"
        " although a GPU's results depend on what else a step computes.",
        ("-m", "pytest", "tests/chaos/test_killed_workers.py", "-q", "-s"),
        (("BATON_CHAOS_ENGINE", "vllm"), ("BATON_CHAOS_EACH", "10")),
    ),
    Proof(
        "It costs no more than vllm serve",
        "Tokens a second, first tokens, gaps beside long prompts, aggregated and split; at most"
        " 10 us of the front's CPU for a token at 32 sequences.",
        ("-m", "bench", "engines"),
    ),
)


def page() -> str:
    """All proofs as Markdown, with their commands."""
    lines = ["# What a GPU has to prove of workers with vLLM", ""]
    for number, proof in enumerate(PROOFS, 1):
        variables = "".join(f"{name}={value} " for name, value in proof.variables)
        lines += [f"{number}. **{proof.title}.** {proof.proves}", ""]
        lines += [f"       {variables}python {' '.join(proof.words)}", ""]
    return "\n".join(lines)


def main() -> int:
    """Print the page, and run the proofs where there is a GPU; 1 when one failed, 2 without."""
    print(page())
    if not _has_gpu():
        print("bench gpu --engine vllm needs a GPU that vLLM can use", file=sys.stderr)
        return 2
    has_failed = False
    for title, has_held in run_proofs():
        print(f"{title}: {'held' if has_held else 'FAILED'}", flush=True)
        has_failed |= not has_held
    return int(has_failed)


def run_proofs() -> Iterator[tuple[str, bool]]:
    """The title of each proof, and whether its command ended well."""
    for proof in PROOFS:
        variables = {**dict(proof.variables), "BATON_VLLM_PYTHON": str(vllm_python())}
        argv = [sys.executable, *proof.words]
        try:
            ended = subprocess.run(
                argv, cwd=_ROOT, env={**os.environ, **variables}, timeout=_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            yield proof.title, False
        else:
            yield proof.title, ended.returncode == 0


def _has_gpu() -> bool:
    return Path("/dev/nvidia0").exists() and vllm_python().exists()
