"""Cases of the alerts on objectives: samples come every minute, and so are rules looked at."""

from tests.chart.seeing.rule_tests import Case, Series

EVERY = "1m"
FOREVER = 480
MODEL = {"model_name": "demo"}
IN_FIVE_DAYS = "the budget of 30 days is gone within 5 at this rate"
TOO_SOON = "the budget of 30 days will not last"


def served(all_of_them: int, failed: int = 0, reason: str = "worker_lost") -> Series:
    """Requests in a minute, and how many of them failed."""
    return {
        'vllm:e2e_request_latency_seconds_count{model_name="demo"}': f"0+{all_of_them}x{FOREVER}",
        f'baton_gateway_failed_requests_total{{model_name="demo",reason="{reason}"}}': (
            f"0+{failed}x{FOREVER}"
        ),
    }


def outage(minutes: int) -> Series:
    """All requests fail for that long, and none later."""
    failed = 'baton_gateway_failed_requests_total{model_name="demo",reason="no_worker"}'
    total = 1000 * minutes
    return {**served(1000), failed: f"0+1000x{minutes} {total}+0x{FOREVER}"}


def refused(status: int) -> Series:
    name = f'baton_gateway_refused_requests_total{{reason="r",status="{status}"}}'
    return {**served(900), name: f"0+100x{FOREVER}"}


def first_tokens(all_of_them: int, late: int) -> Series:
    name = 'vllm:time_to_first_token_seconds_%s{model_name="demo"%s}'
    return {
        name % ("bucket", ',le="5.0"'): f"0+{all_of_them - late}x{FOREVER}",
        name % ("bucket", ',le="+Inf"'): f"0+{all_of_them}x{FOREVER}",
        name % ("count", ""): f"0+{all_of_them}x{FOREVER}",
    }


def fails(percent: str, how_soon: str) -> tuple[tuple[dict[str, str], str], ...]:
    return (({}, f"{percent} of the requests fail: {how_soon}"),)


def late(percent: str, how_soon: str) -> tuple[tuple[dict[str, str], str], ...]:
    return ((MODEL, f"{percent} of the first tokens of demo are late: {how_soon}"),)


OBJECTIVES: dict[str, list[Case]] = {
    "BatonAvailabilityBurnsFast": [
        Case("one in fifty fails", served(1000, 20), "70m", fails("2%", IN_FIVE_DAYS)),
        Case("one in 125 fails, for hours", served(1000, 8), "7h", fails("0.8%", IN_FIVE_DAYS)),
        Case("a tenth is refused", refused(503), "70m", fails("10%", IN_FIVE_DAYS)),
        Case("an outage goes on", outage(10), "9m", fails("100%", IN_FIVE_DAYS)),
        Case("it is over", outage(10), "50m"),
        Case("clients have a wrong key", refused(401), "70m"),
        Case("clients ask too much", served(1000, 100, "context_length_exceeded"), "70m"),
        Case("one in 500 fails, which is for a ticket", served(1000, 2), "7h"),
    ],
    "BatonAvailabilityBurnsSlowly": [
        Case("one in 250 fails", served(1000, 4), "3h", fails("0.4%", TOO_SOON)),
        Case("one in 500 fails", served(1000, 2), "7h", fails("0.2%", TOO_SOON)),
        Case("one in 2,000 fails, as the budget allows", served(2000, 1), "7h"),
    ],
    "BatonFirstTokenBurnsFast": [
        Case("four in five are late", first_tokens(100, 80), "70m", late("80%", IN_FIVE_DAYS)),
        Case("two in five, for hours", first_tokens(100, 40), "7h", late("40%", IN_FIVE_DAYS)),
        Case("nobody asks", first_tokens(0, 0), "70m"),
        Case("one in five is, which is for a ticket", first_tokens(100, 20), "7h"),
    ],
    "BatonFirstTokenBurnsSlowly": [
        Case("one in five is late", first_tokens(100, 20), "3h", late("20%", TOO_SOON)),
        Case("one in ten is late", first_tokens(100, 10), "7h", late("10%", TOO_SOON)),
        Case("one in fifty is late, as the budget allows", first_tokens(100, 2), "7h"),
    ],
}
