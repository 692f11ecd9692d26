"""Random schedules of faults on virtual time: no token lost, doubled or foreign, no block leaked.

A failing seed is named in the error; `BATON_SIM_SEED=n pytest tests/simulation/test_schedules.py`
runs it alone.
"""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from baton.testing.virtual_clock import run_virtual
from services.tokenizer.served_model import ServedModel
from tests.simulation.fleet import load_sim_model
from tests.simulation.schedule import NUM_REQUESTS, Report, run_schedule

IS_LONG = bool(os.environ.get("BATON_TEST_LONG"))
ONLY_SEED = os.environ.get("BATON_SIM_SEED")
SEEDS_PER_TEST = 500 if IS_LONG else 25
NUM_SEEDS = 10_000 if IS_LONG else 200
FIRST_SEEDS = [int(ONLY_SEED)] if ONLY_SEED else range(0, NUM_SEEDS, SEEDS_PER_TEST)
# Of all requests, how many may end with an error: new ones that come while no worker is in sight.
MAX_ERROR_SHARE = 0.01

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return run_virtual(load_sim_model(tmp_path_factory.mktemp("model")))


def seeds_from(first: int) -> range:
    return range(first, first + SEEDS_PER_TEST)


@pytest.mark.timeout(3600 if IS_LONG else 300)
@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_any_schedule_of_faults_gives_right_answers_and_leaves_nothing_behind(
    first: int, model: ServedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    started_s = time.monotonic()
    seeds = [first] if ONLY_SEED else seeds_from(first)
    reports = [run_schedule(seed, model) for seed in seeds]
    with capsys.disabled():
        print(summary(reports, time.monotonic() - started_s))
    num_errors = sum(sum(errors_of(report).values()) for report in reports)
    if not ONLY_SEED:
        assert num_errors <= MAX_ERROR_SHARE * NUM_REQUESTS * len(reports)


def errors_of(report: Report) -> dict[str, int]:
    return {k: n for k, n in report.endings.items() if k not in ("whole", "left")}


def summary(reports: list[Report], real_s: float) -> str:
    endings, faults = Counter[str](), Counter[str]()
    for report in reports:
        endings += report.endings
        faults += report.faults
    virtual_s = sum(report.virtual_s for report in reports)
    return (
        f"\nseeds {reports[0].seed}-{reports[-1].seed}: {virtual_s:.0f} virtual s in {real_s:.1f} "
        f"real s; {sum(report.num_tokens for report in reports)} tokens; "
        f"requests {dict(endings)}; faults {dict(faults)}"
    )


@pytest.mark.timeout(600)
def test_the_same_seed_gives_the_same_events_in_every_process() -> None:
    """Under another hash seed and other addresses in memory, too."""
    program = (
        "import tempfile, pathlib\n"
        "from baton.testing.virtual_clock import run_virtual\n"
        "from tests.simulation.fleet import load_sim_model\n"
        "from tests.simulation.schedule import run_schedule\n"
        "model = run_virtual(load_sim_model(pathlib.Path(tempfile.mkdtemp())))\n"
        "for seed in range(6): print(run_schedule(seed, model))\n"
    )
    outputs = []
    for hash_seed in ("1", "2"):
        result = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=250,
            check=True,
        )
        outputs.append(result.stdout)
    assert outputs[0].count("digest=") == 6
    assert outputs[0] == outputs[1]
