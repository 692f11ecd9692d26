"""The options of `python -m bench`, as `--help` lists them."""

import argparse
from pathlib import Path
from typing import Any

QUICK_MODELS, QUICK_BATCHES = "tiny", "1,8"
MODELS, BATCHES = "tiny,small", "1,8,32"


def add_parsers(kinds: Any) -> None:
    """Add the options of each kind of benchmark."""
    engine = kinds.add_parser("engine", help="speed beside vLLM and transformers on this machine")
    help_text = "machine, core, offline, served (default: all)"
    engine.add_argument("--part", default="machine,core,offline,served", help=help_text)
    help_text = f"models to make and run ({MODELS}; also: nano)"
    engine.add_argument("--model", default=MODELS, metavar="A,B", help=help_text)
    help_text = f"batch sizes and concurrencies ({BATCHES})"
    engine.add_argument("--batch", default=BATCHES, metavar="N,M", help=help_text)
    help_text = "baton, vllm, transformers, transformers-continuous (default: what is installed)"
    engine.add_argument("--engine", default="", metavar="A,B", help=help_text)
    engine.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of a cell (3)")
    help_text = "requests per connection of a served run (10)"
    engine.add_argument("--requests", type=int, default=10, metavar="N", help=help_text)
    engine.add_argument("--threads", type=int, default=2, metavar="N", help="CPU threads (2)")
    engine.add_argument("--kv-memory", default="4GiB", metavar="SIZE", help="KV pool (4GiB)")
    help_text = "no engine uses more than avx2 or avx512 (without AMX); default: all there is"
    engine.add_argument("--isa", default="", metavar="NAME", help=help_text)
    help_text = f"minutes: {QUICK_MODELS} at {QUICK_BATCHES}, fewer rounds and requests"
    engine.add_argument("--quick", action="store_true", help=help_text)
    help_text = "folder for models and logs (~/.cache/baton-bench)"
    engine.add_argument("--cache", type=Path, metavar="FOLDER", help=help_text)
    _add_results(engine)
    handoff = kinds.add_parser("handoff", help="KV blocks between two processes, per transport")
    help_text = "which, if they are there (shm,nixl,grpc)"
    handoff.add_argument("--transports", default="shm,nixl,grpc", metavar="A,B", help=help_text)
    handoff.add_argument(
        "--rounds", type=int, default=15, metavar="N", help="transfers of each (15)"
    )
    handoff.add_argument("--mib", type=int, default=128, metavar="N", help="per transfer (128)")
    help_text = "the prefill takes so many times an idle transfer (2)"
    handoff.add_argument("--prefill-factor", type=float, default=2.0, metavar="F", help=help_text)
    help_text = "CPU threads of the core that computes prefills (1)"
    handoff.add_argument("--threads", type=int, default=1, metavar="N", help=help_text)
    _add_results(handoff)
    _add_disagg(kinds)
    _add_router(kinds)
    _add_overload(kinds)
    _add_gateway(kinds)
    _add_engines(kinds)
    _add_gpu(kinds)


def _add_results(parser: argparse.ArgumentParser) -> None:
    help_text = "append JSON lines here (default: a new file in ~/.cache/baton-bench/results)"
    parser.add_argument("--output", type=Path, metavar="FILE", help=help_text)
    help_text = "measure nothing; render these results"
    parser.add_argument("--report", type=Path, nargs="+", metavar="FILE", help=help_text)
    help_text = "put the tables between the marks of this Markdown file"
    parser.add_argument("--into", type=Path, metavar="FILE", help=help_text)


def _add_disagg(kinds: Any) -> None:
    disagg = kinds.add_parser("disagg", help="split, aggregated and automatic on the same cores")
    disagg.add_argument("--model", default="tiny", metavar="NAME", help="tiny, small or nano")
    disagg.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each (3)")
    help_text = "with short prompts, at once (4)"
    disagg.add_argument("--streams", type=int, default=4, metavar="N", help=help_text)
    help_text = "long prompts that arrive meanwhile, one after the other (8)"
    disagg.add_argument("--long", type=int, default=8, metavar="N", help=help_text)
    help_text = "of each long prompt (2000)"
    disagg.add_argument("--long-tokens", type=int, default=2000, metavar="N", help=help_text)
    disagg.add_argument("--quick", action="store_true", help="seconds: one round, 3 long prompts")
    help_text = "folder for models and logs (~/.cache/baton-bench)"
    disagg.add_argument("--cache", type=Path, metavar="FOLDER", help=help_text)
    _add_results(disagg)


def _add_router(kinds: Any) -> None:
    router = kinds.add_parser("router", help="recorded traffic through the router; cost of a pick")
    help_text = "replay, bursts, picks, routers (default: all)"
    router.add_argument("--part", default="replay,bursts,picks,routers", help=help_text)
    help_text = "folder of recorded traces (default: synthetic ones are made)"
    router.add_argument("--traces", type=Path, metavar="FOLDER", help=help_text)
    help_text = "of each trace (1800)"
    router.add_argument("--seconds", type=int, default=1800, metavar="N", help=help_text)
    help_text = "prefill workers, and as many decode workers (8)"
    router.add_argument("--workers", type=int, default=8, metavar="N", help=help_text)
    help_text = "of the fleet's prefill speed, without caches (0.7)"
    router.add_argument("--load", type=float, default=0.7, metavar="SHARE", help=help_text)
    router.add_argument("--seed", type=int, default=1, metavar="N", help="of everything (1)")
    help_text = "about a minute: 300 s of each trace, fewer picks"
    router.add_argument("--quick", action="store_true", help=help_text)
    _add_results(router)
    help_text = "put these parts' lines into this file, for older ones, and render all of it"
    router.add_argument("--renew", type=Path, metavar="FILE", help=help_text)
    help_text = "folder for one SVG picture of each trace"
    router.add_argument("--plots", type=Path, metavar="FOLDER", help=help_text)


def _add_overload(kinds: Any) -> None:
    help_text = "the real stack under more load than it can serve, and beside a loud tenant"
    overload = kinds.add_parser("overload", help=help_text)
    overload.add_argument("--part", default="shed,fair", help="shed, fair (default: both)")
    help_text = "of the phase at 3x; others take 0.5 to 1.5 times as long (60)"
    overload.add_argument("--seconds", type=int, default=60, metavar="N", help=help_text)
    overload.add_argument("--seed", type=int, default=1, metavar="N", help="of the arrivals (1)")
    help_text = "time of a step of the workers; an answer takes 5 s (50)"
    overload.add_argument("--step-ms", type=int, default=50, metavar="N", help=help_text)
    _add_results(overload)


def _add_gateway(kinds: Any) -> None:
    help_text = "the gateway before simulated workers: CPU of a token and of a request, memory"
    gateway = kinds.add_parser("gateway", help=help_text)
    help_text = "tokens, requests, ttft, traces, idle (default: all)"
    gateway.add_argument("--part", default="tokens,requests,ttft,traces,idle", help=help_text)
    gateway.add_argument("--seconds", type=int, default=4, metavar="N", help="of each run (4)")
    gateway.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each (3)")
    gateway.add_argument("--processes", type=int, default=1, metavar="N", help="of the gateway (1)")
    gateway.add_argument("--quick", action="store_true", help="one run of 2 s of each")
    help_text = "beside other gateways that `make bench-peers` installed, and nothing else"
    gateway.add_argument("--peers", action="store_true", help=help_text)
    _add_results(gateway)


def _add_engines(kinds: Any) -> None:
    help_text = "whole stacks whose workers run vLLM's engine, beside vllm serve"
    engines = kinds.add_parser("engines", help=help_text)
    engines.add_argument("--model", default="tiny", metavar="NAME", help="tiny, small or nano")
    engines.add_argument("--rounds", type=int, default=2, metavar="N", help="runs of each (2)")
    _add_results(engines)


def _add_gpu(kinds: Any) -> None:
    gpu = kinds.add_parser("gpu", help="on one GPU: the engine, or workers with vLLM's")
    help_text = "baton: as python -m bench.gpu; vllm: what is to be proved, and the proofs (baton)"
    gpu.add_argument("--engine", choices=("baton", "vllm"), default="baton", help=help_text)
    gpu.add_argument("options", nargs=argparse.REMAINDER, help="of python -m bench.gpu")
