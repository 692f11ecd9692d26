"""From two reads of the metrics pages to what people look at."""

from collections.abc import Mapping

import pytest

from baton.page.exposition import Samples, grown, quantile
from baton.page.fleet_view import Reading, fleet_view

DECODE = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="demo"}} {running}
# TYPE baton_kv_blocks gauge
baton_kv_blocks{{engine="0",model_name="demo"}} 200.0
# TYPE baton_kv_blocks_used gauge
baton_kv_blocks_used{{engine="0",model_name="demo"}} 50.0
# TYPE baton_kv_blocks_promised gauge
baton_kv_blocks_promised{{engine="0",model_name="demo"}} 20.0
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{{engine="0",model_name="demo"}} {tokens}
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{{engine="0",model_name="demo"}} {asked}
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{{engine="0",model_name="demo"}} {hits}
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_sum{{engine="0",model_name="demo"}} {computed}
"""
GATEWAY = """
# TYPE baton_gateway_open_requests gauge
baton_gateway_open_requests {open}
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{le="0.1",model_name="demo"}} {fast}
vllm:time_to_first_token_seconds_bucket{{le="1.0",model_name="demo"}} {all}
vllm:time_to_first_token_seconds_bucket{{le="+Inf",model_name="demo"}} {all}
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_count{{model_name="demo"}} {all}
"""


def decode(
    running: int = 0, tokens: int = 0, asked: int = 0, hits: int = 0, computed: int = 0
) -> Samples:
    page = DECODE.format(running=running, tokens=tokens, asked=asked, hits=hits, computed=computed)
    return Samples.of_page(page)


def gateway(num_open: int, fast: int, all_: int) -> Samples:
    return Samples.of_page(GATEWAY.format(open=num_open, fast=fast, all=all_))


def reading(at_s: float, pages: Mapping[str, Samples | None]) -> Reading:
    """Of a local stack, where a role begins the name."""
    return Reading(at_s, pages, {name: name.partition("-")[0] for name in pages})


def test_rates_are_what_grew_between_the_two_reads() -> None:
    before = reading(
        10.0, {"decode-1": decode(tokens=1000, asked=100), "gateway": gateway(1, 4, 4)}
    )
    after = reading(
        12.0,
        {
            "decode-1": decode(running=3, tokens=1500, asked=300, hits=150, computed=550),
            "gateway": gateway(5, 6, 8),
        },
    )
    view = fleet_view(before, after)
    (worker,) = view.workers
    assert (worker.role, worker.model, worker.num_running) == ("decode", "demo", 3)
    assert (worker.kv_share, worker.promised_share) == (0.25, 0.1)
    assert worker.output_tokens_per_s == 250
    assert worker.hit_share == 0.75
    assert worker.prompt_tokens_per_s == 25
    (row,) = view.gateways
    assert (row.num_open, row.requests_per_s) == (5, 2)
    assert view.first_token.p50_s == pytest.approx(0.1)


def test_a_service_that_does_not_answer_is_down_and_the_others_are_not() -> None:
    pages = {"decode-1": None, "gateway": gateway(0, 0, 0), "quota": None, "router": Samples()}
    view = fleet_view(reading(0.0, {}), reading(1.0, pages))
    assert not view.workers[0].is_up
    assert view.gateways[0].is_up
    assert view.others == {"quota": False, "router": True}
    assert view.first_token.p50_s is None


def test_a_prompt_that_was_handed_over_is_computed_once() -> None:
    pages = {
        "prefill-1": decode(asked=100, tokens=1, computed=100),
        "decode-1": decode(asked=100, tokens=20, computed=20),
    }
    view = fleet_view(reading(0.0, {}), reading(1.0, pages))
    assert sum(row.prompt_tokens_per_s for row in view.workers) == pytest.approx(100, abs=1)


def test_a_worker_that_both_routers_left_out_counts_once() -> None:
    page = (
        '# TYPE baton_router_ejections counter\nbaton_router_ejections_total{cause="silent"} %d\n'
    )
    routers = {f"router-{n}": Samples.of_page(page % num) for n, num in ((1, 2), (2, 1))}
    view = fleet_view(reading(0.0, {}), reading(1.0, routers))
    assert view.healed.num_ejections == 2


def test_a_counter_that_fell_started_anew() -> None:
    assert grown(decode(tokens=900), decode(tokens=40), "vllm:generation_tokens_total") == 40


def test_a_quantile_beyond_the_last_bound_is_that_bound() -> None:
    page = 'x_bucket{le="0.5"} 1\nx_bucket{le="+Inf"} 10\n'
    beyond = Samples.of_page("# TYPE x histogram\n" + page)
    assert quantile(Samples(), beyond, "x", 0.95) == 0.5
    assert quantile(Samples(), beyond, "x", 0.05) == pytest.approx(0.25)
