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
from bench.parsers import BATCHES, MODELS, QUICK_BATCHES, QUICK_MODELS, add_parsers


def main() -> None:
    """Entry point of `python -m bench`."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks of Baton")
    add_parsers(parser.add_subparsers(dest="kind", required=True))
    arguments = parser.parse_args()
    try:
        status = _RUNS[arguments.kind](arguments)
    except BadBenchOption as error:
        print(f"bench: {error}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        status = 130
    raise SystemExit(status)


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
    from bench.gateway.peers_bench import run_peers
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
        run = run_peers if arguments.peers else run_bench
        _measure(arguments, "gateway", cache, partial(run, options))
    mark = "peers" if arguments.peers else "bench"
    return _show(render(read_records(arguments.report)), arguments.into, mark)


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


def _show(text: str, into: Path | None, mark: str = "bench") -> int:
    if into:
        into.write_text(replace_between_marks(into.read_text(), text, mark))
    else:
        print(text)
    return 0


def _options(arguments: argparse.Namespace) -> Any:
    from bench.contenders import ISAS, Parity
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
        parity=Parity(
            arguments.threads,
            bytes_of("--kv-memory", arguments.kv_memory),
            isa="".join(words_of("--isa", arguments.isa, ISAS)[:1]),
        ),
        cache=arguments.cache or cache_folder(),
    )


def _make_quick(arguments: argparse.Namespace) -> None:
    """Smaller values for what was not asked for otherwise."""
    if arguments.model == MODELS:
        arguments.model = QUICK_MODELS
    if arguments.batch == BATCHES:
        arguments.batch = QUICK_BATCHES
    arguments.rounds = min(arguments.rounds, 2)
    arguments.requests = min(arguments.requests, 3)


_RUNS = {
    "engine": _engine,
    "handoff": _handoff,
    "disagg": _disagg,
    "router": _router,
    "overload": _overload,
    "gateway": _gateway,
    "engines": _engines,
    "gpu": _gpu,
}

if __name__ == "__main__":
    main()
