"""`baton size`: workers for a traffic, what they carry, and what does not fit."""

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import yaml

from baton.cli.__main__ import main
from baton.cli.sizing.machines import ACCELERATORS, Machines, Traffic
from baton.cli.sizing.plan import Plan, make_plan
from baton.cli.sizing.values import Deployment, values_yaml
from baton.cli.sizing.worker import DoesNotFit, Rates, Wanted, Weights, Worker

H100 = ACCELERATORS["h100"]
KIB = 1024
# The example of docs/operations.md.
EXAMPLE = Traffic(20, 1500, 300, cached_share=0.6, itl_s=0.025)


def worker_8b(max_batch: int, num_kv_tokens: int = 450_000, num_ranks: int = 1) -> Worker:
    weights = Weights(16_060_000_000, 15e9, 524_288)
    return Worker(weights, 2**30, 128 * KIB, num_kv_tokens, num_ranks, max_batch, 131_072)


def plan_for(
    traffic: Traffic = EXAMPLE,
    num_gpus: int | None = None,
    worker_of: Callable[[int], Worker] = worker_8b,
    wanted: Wanted | None = None,
    rates: Rates | None = None,
) -> Plan:
    machines = Machines(H100, num_gpus)
    return make_plan(worker_of, wanted or Wanted(), rates or Rates(H100), traffic, machines)


def test_without_machines_the_traffic_says_how_many_with_one_to_spare() -> None:
    plan = plan_for()
    assert plan.num_needed == (1, 2)
    assert (plan.num_prefill, plan.num_decode) == (2, 3)
    assert list(plan.problems()) == []


def test_machines_are_divided_so_that_most_requests_are_carried() -> None:
    plan = plan_for(num_gpus=8)
    others = [replace(plan, num_prefill=n, num_decode=8 - n).carried for n in range(1, 8)]
    assert plan.num_prefill + plan.num_decode == 8
    assert plan.carried == max(others)


def test_the_largest_batch_keeps_the_token_gap() -> None:
    relaxed, tight = (plan_for(replace(EXAMPLE, itl_s=itl_s)) for itl_s in (0.05, 0.012))
    assert relaxed.worker.max_batch > tight.worker.max_batch
    assert tight.rates.step_s(tight.worker, EXAMPLE, tight.worker.max_batch) <= 0.012
    assert tight.step_s is not None
    assert tight.step_s <= 0.012


def test_each_sequence_of_a_batch_has_room_for_its_request() -> None:
    plan = plan_for(replace(EXAMPLE, itl_s=1), worker_of=lambda n: worker_8b(n, 40_000))
    assert plan.worker.max_batch == 16  # 24 would need 43,200 tokens
    assert plan.worker.max_model_len == 9 * 1024  # a quarter of the pool


def test_a_lone_worker_does_both_and_carries_less() -> None:
    lone = plan_for(num_gpus=1)
    assert (lone.num_prefill, lone.num_decode) == (0, 1)
    assert lone.carried < min(lone.prefill_rate, lone.decode_rate) * 2 / 3
    assert lone.blocks_per_s == (0.0, 0.0)


def test_what_is_not_carried_is_said_with_what_would_carry_it() -> None:
    problems = list(plan_for(num_gpus=2).problems())
    assert len(problems) == 1
    assert "20 are wanted: 3 devices would" in problems[0]


def test_without_the_only_prefill_worker_decode_workers_compute_prompts() -> None:
    plan = plan_for(num_gpus=3)
    assert plan.num_prefill == 1
    without_prefill = 2 / (1 / plan.prefill_rate + 1 / plan.decode_rate)
    assert plan.carried_with_one_down == min(plan.decode_rate, without_prefill)


def test_a_first_token_that_comes_too_late_is_said() -> None:
    assert any(
        "a first token" in text for text in plan_for(replace(EXAMPLE, ttft_s=0.01)).problems()
    )


def test_a_pool_of_few_long_sequences_is_said() -> None:
    wanted = Wanted(max_model_len=32_768, max_batch=64)
    plan = plan_for(worker_of=lambda n: worker_8b(n, 30_000), wanted=wanted)
    problems = list(plan.problems())
    assert any("fewer than 4 sequences of 32,768" in text for text in problems)
    assert any("fewer than 512 for each of 64 sequences" in text for text in problems)


def test_a_request_longer_than_a_sequence_may_be_is_said() -> None:
    plan = plan_for(wanted=Wanted(max_model_len=1024))
    assert any("1,800 tokens, a sequence may have 1,024" in text for text in plan.problems())


def test_measured_rates_stand_for_computed_ones() -> None:
    plan = plan_for(rates=Rates(H100, prefill_measured=6_000, decode_measured=600))
    assert plan.prefill_rate == 6_000 / 600
    assert plan.decode_rate == 2


def test_ranks_are_faster_together_but_not_by_their_number() -> None:
    alone, pair = (plan_for(worker_of=lambda n, r=r: worker_8b(n, num_ranks=r)) for r in (1, 2))
    assert 1.5 < pair.prefill_rate / alone.prefill_rate < 2


def test_a_worker_stays_on_one_node() -> None:
    machines = Machines(H100, 8, num_nodes=4)
    with pytest.raises(DoesNotFit, match="--tp 4: a node has 2 devices"):
        make_plan(lambda n: worker_8b(n, num_ranks=4), Wanted(), Rates(H100), EXAMPLE, machines)


def test_blocks_that_are_cached_do_not_travel() -> None:
    usual, most = plan_for().blocks_per_s
    assert most == 20 * 1500 * 128 * KIB
    assert usual == pytest.approx(most * 0.4)


def test_values_have_each_pool_with_its_devices_and_settings() -> None:
    plan = plan_for(worker_of=lambda n: worker_8b(n, num_ranks=2), num_gpus=8)
    deployment = Deployment("org/model-8b", "vllm", 0.9, "rdma/ib")
    values = yaml.safe_load("\n".join(values_yaml(plan, deployment)))
    model = values["models"]["org/model-8b"]
    assert values["models"]["baton-demo"] is None
    assert model["source"] == {"hub": {"repository": "org/model-8b"}}
    assert model["prefill"]["replicas"] + model["decode"]["replicas"] == 4
    decode = model["decode"]
    assert decode["accelerator"] == {"resource": "nvidia.com/gpu"}
    assert decode["parallelism"] == {"tensor": 2}
    assert decode["rdma"] == {"resource": "rdma/ib", "count": 1}
    assert decode["settings"]["engine"] == "vllm"
    assert decode["settings"]["max_model_len"] == plan.worker.max_model_len
    assert decode["resources"] == {"requests": {"cpu": 8}}


def test_values_say_what_vllm_on_gpus_asks_for_and_leave_it_to_the_operator() -> None:
    told = {
        engine: "\n".join(values_yaml(plan_for(), Deployment("org/model-8b", engine, 0.9)))
        for engine in ("vllm", "baton")
    }
    assert '# vLLM\'s engine starts on GPUs only with settings.unproven: "on"' in told["vllm"]
    assert "unproven" not in told["baton"]
    for values in map(yaml.safe_load, told.values()):
        assert "unproven" not in values["models"]["org/model-8b"]["decode"]["settings"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpu", "cpu"], "give --gib, --prefill-rate and --decode-rate"),
        (["--tp", "2"], "take --engine vllm"),
        (["--gpus", "3", "--nodes", "2"], "a multiple of --nodes 2"),
        (["--cached", "1"], "is not a share from 0 to below 1"),
        (["--rate", "none"], "is not a number above 0"),
        (["--prompt", "1.5"], "is not a whole number"),
    ],
)
def test_wrong_input_is_refused_in_one_line(options, message, monkeypatch, capsys) -> None:
    traffic = ["--rate", "1", "--prompt", "100", "--output", "10"]
    command = ["baton", "size", "--model", "any", *traffic, *options]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
