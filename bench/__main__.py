"""`python -m bench KIND`, KIND as `--help` lists them: tables and JSON lines.

Exit status 2 = wrong usage or a clear refusal, in one line.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.options import BadBenchOption, bytes_of, replace_between_marks, words_of

_QUICK_MODELS, _QUICK_BATCHES = "tiny", "1,8"
_MODELS, _BATCHES = "tiny,small", "1,8,32"


def main() -> None:
    """Entry point of `python -m bench`."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks of Baton")
    _add_parsers(parser.add_subparsers(dest="kind", required=True))
    arguments = parser.parse_args()
    try:
        status = arguments.run(arguments)
    except BadBenchOption as error:
        print(f"bench: {error}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        status = 130
    raise SystemExit(status)


def _add_parsers(kinds: Any) -> None:
    engine = kinds.add_parser("engine", help="speed beside vLLM and transformers on this machine")
    help_text = "machine, core, offline, served (default: all)"
    engine.add_argument("--part", default="machine,core,offline,served", help=help_text)
    help_text = f"models to make and run ({_MODELS}; also: nano)"
    engine.add_argument("--model", default=_MODELS, metavar="A,B", help=help_text)
    help_text = f"batch sizes and concurrencies ({_BATCHES})"
    engine.add_argument("--batch", default=_BATCHES, metavar="N,M", help=help_text)
    help_text = "baton, vllm, transformers, transformers-continuous (default: what is installed)"
    engine.add_argument("--engine", default="", metavar="A,B", help=help_text)
    engine.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of a cell (3)")
    help_text = "requests per connection of a served run (10)"
    engine.add_argument("--requests", type=int, default=10, metavar="N", help=help_text)
    engine.add_argument("--threads", type=int, default=2, metavar="N", help="CPU threads (2)")
    engine.add_argument("--kv-memory", default="4GiB", metavar="SIZE", help="KV pool (4GiB)")
    help_text = f"minutes: {_QUICK_MODELS} at {_QUICK_BATCHES}, fewer rounds and requests"
    engine.add_argument("--quick", action="store_true", help=help_text)
    help_text = "folder for models and logs (~/.cache/baton-bench)"
    engine.add_argument("--cache", type=Path, metavar="FOLDER", help=help_text)
    _add_results(engine)
    engine.set_defaults(run=_engine)
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
    handoff.set_defaults(run=_handoff)
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
    disagg.set_defaults(run=_disagg)


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
    router.set_defaults(run=_router)


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
    overload.set_defaults(run=_overload)


def _add_gateway(kinds: Any) -> None:
    help_text = "the gateway before simulated workers: CPU of a token and of a request, memory"
    gateway = kinds.add_parser("gateway", help=help_text)
    help_text = "tokens, requests, ttft, idle (default: all)"
    gateway.add_argument("--part", default="tokens,requests,ttft,idle", help=help_text)
    gateway.add_argument("--seconds", type=int, default=4, metavar="N", help="of each run (4)")
    gateway.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each (3)")
    gateway.add_argument("--processes", type=int, default=1, metavar="N", help="of the gateway (1)")
    gateway.add_argument("--quick", action="store_true", help="one run of 2 s of each")
    _add_results(gateway)
    gateway.set_defaults(run=_gateway)


def _add_engines(kinds: Any) -> None:
    help_text = "whole stacks whose workers run vLLM's engine, beside vllm serve"
    engines = kinds.add_parser("engines", help=help_text)
    engines.add_argument("--model", default="tiny", metavar="NAME", help="tiny, small or nano")
    engines.add_argument("--rounds", type=int, default=2, metavar="N", help="runs of each (2)")
    _add_results(engines)
    engines.set_defaults(run=_engines)


def _add_gpu(kinds: Any) -> None:
    gpu = kinds.add_parser("gpu", help="on one GPU: the engine, or workers with vLLM's")
    help_text = "baton: as python -m bench.gpu; vllm: what is to be proved, and the proofs (baton)"
    gpu.add_argument("--engine", choices=("baton", "vllm"), default="baton", help=help_text)
    gpu.add_argument("options", nargs=argparse.REMAINDER, help="of python -m bench.gpu")
    gpu.set_defaults(run=_gpu)


def _engine(arguments: argparse.Namespace) -> int:
    # Imported here: other commands need none of it.
    from bench.engine.engine_bench import read_records, run_bench
    from bench.report import render

    if not arguments.report:
        options = _options(arguments)
        _measure(arguments, "engine", options.cache, partial(run_bench, options))
    return _show(render(read_records(arguments.report)), arguments.into)


def _handoff(arguments: argparse.Namespace) -> int:
    from bench.engine.engine_bench import read_records
    from bench.handoff.handoff import BenchOptions, run_bench
    from bench.handoff.handoff_report import render
    from bench.handoff.overlap import run_overlap
    from bench.models import cache_folder

    if not arguments.report:
        names = words_of("--transports", arguments.transports, ("shm", "nixl", "grpc"))
        if arguments.mib < 1 or arguments.rounds < 1 or arguments.prefill_factor <= 0:
            raise BadBenchOption("--mib, --rounds and --prefill-factor must be greater than 0")
        sizes = (arguments.mib, arguments.rounds, arguments.prefill_factor)
        options = BenchOptions(*sizes, names, arguments.threads)

        def run_both(output: Path, report: Callable[[str], None]) -> None:
            run_bench(options, output, report)
            run_overlap(options, output, report)

        _measure(arguments, "handoff", cache_folder(), run_both)
    return _show(render(read_records(arguments.report)), arguments.into)


def _disagg(arguments: argparse.Namespace) -> int:
    from bench.engine.engine_bench import read_records
    from bench.serving.disagg import run_bench
    from bench.serving.disagg_report import render

    if not arguments.report:
        options = _disagg_options(arguments)
        _measure(arguments, "disagg", options.cache, partial(run_bench, options))
    return _show(render(read_records(arguments.report)), arguments.into)


def _router(arguments: argparse.Namespace) -> int:
    from bench.engine.engine_bench import read_records
    from bench.models import cache_folder
    from bench.results import replace_parts
    from bench.router.plots import write_plots
    from bench.router.router_bench import run_bench
    from bench.router.router_report import render

    if not arguments.report:
        options = _router_options(arguments)
        _measure(arguments, "router", cache_folder(), partial(run_bench, options))
        if arguments.renew:
            replace_parts(arguments.renew, arguments.report[0])
            arguments.report = [arguments.renew]
    records = read_records(arguments.report)
    if arguments.plots:
        write_plots(records, arguments.plots)
    return _show(render(records), arguments.into)


def _overload(arguments: argparse.Namespace) -> int:
    from bench.engine.engine_bench import read_records
    from bench.models import cache_folder
    from bench.pressure.overload_bench import PARTS, BenchOptions, run_bench
    from bench.pressure.overload_report import render

    if not arguments.report:
        if arguments.seconds < 1 or not 1 <= arguments.step_ms <= 1000:
            raise BadBenchOption("--seconds must be 1 or more, and --step-ms 1 to 1000")
        parts, cache = words_of("--part", arguments.part, PARTS), cache_folder()
        options = BenchOptions(
            parts=parts,
            cache=cache,
            seconds=arguments.seconds,
            step_s=arguments.step_ms / 1000,
            num_output=5000 // arguments.step_ms,
            seed=arguments.seed,
        )
        _measure(arguments, "overload", cache, partial(run_bench, options))
    return _show(render(read_records(arguments.report)), arguments.into)


def _gateway(arguments: argparse.Namespace) -> int:
    from bench.engine.engine_bench import read_records
    from bench.gateway.gateway_bench import PARTS, BenchOptions, run_bench
    from bench.gateway.gateway_report import render
    from bench.models import cache_folder

    if not arguments.report:
        if arguments.seconds < 1 or arguments.rounds < 1:
            raise BadBenchOption("--seconds and --rounds must be 1 or more")
        parts, cache, quick = (
            words_of("--part", arguments.part, PARTS),
            cache_folder(),
            arguments.quick,
        )
        seconds, num_rounds = (2, 1) if quick else (arguments.seconds, arguments.rounds)
        num_idle = 500 if quick else 2_000
        options = BenchOptions(
            parts, cache, seconds, num_rounds, num_idle, num_processes=arguments.processes
        )
        _measure(arguments, "gateway", cache, partial(run_bench, options))
    return _show(render(read_records(arguments.report)), arguments.into)


def _engines(arguments: argparse.Namespace) -> int:
    from bench.contenders import vllm_python
    from bench.engine.engine_bench import read_records
    from bench.models import SHAPES, cache_folder
    from bench.serving.engines import BenchOptions, run_bench
    from bench.serving.engines_report import render

    if not arguments.report:
        (model,) = words_of("--model", arguments.model, tuple(SHAPES)) or ("tiny",)
        if arguments.rounds < 1:
            raise BadBenchOption("--rounds must be 1 or more")
        if not vllm_python().exists():
            raise BadBenchOption(f"there is no {vllm_python()}; make setup ENGINE=vllm makes one")
        options = BenchOptions(model, cache_folder(), num_rounds=arguments.rounds)
        _measure(arguments, "engines", options.cache, partial(run_bench, options))
    return _show(render(read_records(arguments.report)), arguments.into)


def _gpu(arguments: argparse.Namespace) -> int:
    if arguments.engine == "vllm":
        from bench.gpu import gpu_vllm

        return gpu_vllm.main()
    from bench.gpu.__main__ import main as run_parts

    return run_parts(arguments.options)


def _router_options(arguments: argparse.Namespace) -> Any:
    from bench.router.router_bench import PARTS, BenchOptions

    quick = arguments.quick
    for name in ("seconds", "workers"):
        if getattr(arguments, name) < 1:
            raise BadBenchOption(f"--{name} must be 1 or more")
    if arguments.load <= 0:
        raise BadBenchOption("--load must be greater than 0")
    if arguments.traces and not arguments.traces.is_dir():
        raise BadBenchOption(f"--traces {str(arguments.traces)!r} is not a folder")
    return BenchOptions(
        parts=words_of("--part", arguments.part, PARTS),
        traces=arguments.traces,
        duration_s=min(arguments.seconds, 300) if quick else arguments.seconds,
        num_workers=arguments.workers,
        load=arguments.load,
        seed=arguments.seed,
        is_quick=quick,
    )


def _disagg_options(arguments: argparse.Namespace) -> Any:
    from bench.models import MAX_MODEL_LEN, SHAPES, cache_folder
    from bench.serving.disagg import NUM_TURNS, BenchOptions

    (model,) = words_of("--model", arguments.model, tuple(SHAPES)) or ("tiny",)
    least = {"rounds": 1, "streams": 1, "long": 1, "long_tokens": 1}
    for name, lowest in least.items():
        if getattr(arguments, name) < lowest:
            raise BadBenchOption(f"--{name.replace('_', '-')} must be {lowest} or more")
    if arguments.long_tokens > MAX_MODEL_LEN // 2:
        raise BadBenchOption(f"--long-tokens must be {MAX_MODEL_LEN // 2} or less")
    quick = arguments.quick
    return BenchOptions(
        model=model,
        cache=arguments.cache or cache_folder(),
        num_rounds=1 if quick else arguments.rounds,
        num_streams=arguments.streams,
        num_turns=1 if quick else NUM_TURNS,
        num_long=min(arguments.long, 3) if quick else arguments.long,
        long_tokens=arguments.long_tokens,
    )


def _measure(
    arguments: argparse.Namespace, kind: str, cache: Path, run: Callable[..., object]
) -> None:
    """Run into a file of JSON lines, which is what `--report` names then."""
    output = arguments.output or cache / "results" / time.strftime(f"{kind}-%Y%m%d-%H%M%S.jsonl")
    # What is being measured must not outlive a bench that is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    run(output, lambda line: print(line, flush=True))
    print(f"\nJSON lines: {output}\n")
    arguments.report = [output]


def _show(text: str, into: Path | None) -> int:
    if into:
        into.write_text(replace_between_marks(into.read_text(), text))
    else:
        print(text)
    return 0


def _options(arguments: argparse.Namespace) -> Any:
    from bench.contenders import Parity
    from bench.engine.engine_bench import PARTS, BenchOptions
    from bench.models import SHAPES, cache_folder

    if arguments.quick:
        _make_quick(arguments)
    batches = words_of("--batch", arguments.batch)
    if not all(batch.isdigit() and int(batch) for batch in batches):
        raise BadBenchOption(f"--batch {arguments.batch!r}: say numbers from 1 on, as in 1,8")
    return BenchOptions(
        parts=words_of("--part", arguments.part, PARTS),
        models=words_of("--model", arguments.model, tuple(SHAPES)),
        batches=tuple(int(batch) for batch in batches),
        engines=words_of("--engine", arguments.engine),
        num_rounds=arguments.rounds,
        requests_per_client=arguments.requests,
        parity=Parity(arguments.threads, bytes_of("--kv-memory", arguments.kv_memory)),
        cache=arguments.cache or cache_folder(),
    )


def _make_quick(arguments: argparse.Namespace) -> None:
    """Smaller values for what was not asked for otherwise."""
    if arguments.model == _MODELS:
        arguments.model = _QUICK_MODELS
    if arguments.batch == _BATCHES:
        arguments.batch = _QUICK_BATCHES
    arguments.rounds = min(arguments.rounds, 2)
    arguments.requests = min(arguments.requests, 3)


if __name__ == "__main__":
    main()
