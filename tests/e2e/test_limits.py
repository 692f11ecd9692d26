"""Limits of a key through the whole stack."""

import time

import openai
import pytest

from tests.e2e.conftest import wait_until


def ask(client, max_tokens: int = 4):
    return client.chat.completions.with_raw_response.create(
        model="baton-demo",
        messages=[{"role": "user", "content": "What is TTFT?"}],
        max_tokens=max_tokens,
    )


def new_key(stack, *arguments: str) -> str:
    result = stack.command("keys", "create", *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_requests_per_minute_end_in_429_with_openai_headers(stack) -> None:
    client = stack.client(new_key(stack, "--tenant", "rpm", "--rpm", "2"))
    remaining = [ask(client).headers["x-ratelimit-remaining-requests"] for _ in range(2)]
    assert remaining == ["1", "0"]
    with pytest.raises(openai.RateLimitError) as limited:
        ask(client)
    headers = limited.value.response.headers
    assert limited.value.code == "rate_limit_exceeded"
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert headers["x-ratelimit-reset-requests"].endswith("s")
    assert 1 <= int(headers["retry-after"]) <= 60


def test_tokens_per_minute_count_prompt_and_reserved_output(stack) -> None:
    client = stack.client(new_key(stack, "--tenant", "tpm", "--tpm", "100"))
    assert ask(client, max_tokens=50).headers["x-ratelimit-limit-tokens"] == "100"
    with pytest.raises(openai.RateLimitError):
        ask(client, max_tokens=80)


def test_keys_of_a_tenant_share_its_limits(stack) -> None:
    keys = [new_key(stack, "--tenant", "bigco/shared", "--rpm", "60") for _ in range(2)]
    told = stack.command("keys", "limit", "--tenant", "bigco/shared", "--rpm", "1")
    assert told.returncode == 0, told.stderr
    headers = ask(stack.client(keys[0])).headers
    assert headers["x-ratelimit-limit-requests"] == "1"
    assert headers["x-ratelimit-scope-requests"] == "tenant"
    with pytest.raises(openai.RateLimitError, match="requests per minute of the tenant"):
        ask(stack.client(keys[1]))


def test_a_request_that_can_never_fit_is_the_clients_fault(stack) -> None:
    client = stack.client(new_key(stack, "--tenant", "tpm", "--tpm", "100"))
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, max_tokens=500)
    assert refused.value.code == "request_exceeds_limit"


def test_a_finished_request_has_exactly_one_usage_record_with_true_counts(stack) -> None:
    answer = ask(stack.client(new_key(stack, "--tenant", "usage")), max_tokens=9)
    usage, request_id = answer.parse().usage, answer.headers["x-request-id"]
    wait_until(lambda: stack.usage_records(request_id))
    (record,) = stack.usage_records(request_id)
    assert record["tenant"] == "usage"
    assert record["num_prompt_tokens"] == usage.prompt_tokens
    assert record["num_output_tokens"] == usage.completion_tokens


def test_an_exhausted_budget_is_insufficient_quota(stack) -> None:
    client = stack.client(new_key(stack, "--tenant", "poor", "--budget", "60/day"))
    ask(client, max_tokens=30)
    with pytest.raises(openai.RateLimitError) as refused:
        for _ in range(5):
            ask(client, max_tokens=30)
    assert refused.value.code == "insufficient_quota"


# What a gateway knows of a key it believes for 5 s; what is revoked is read every second.
MAX_BELIEVED_S = 8.0


def test_a_revoked_key_is_refused_within_five_seconds(stack) -> None:
    key = new_key(stack, "--tenant", "gone")
    client = stack.client(key)
    ask(client)
    listing = stack.command("keys", "list").stdout
    assert key not in listing
    key_id = next(line.split()[0] for line in listing.splitlines() if "tenant=gone" in line)
    assert stack.command("keys", "revoke", key_id).returncode == 0

    # Of each request that is still served it counts when it began: answers may take their time.
    revoked_s = began_s = time.monotonic()
    with pytest.raises(openai.AuthenticationError):
        while began_s - revoked_s < MAX_BELIEVED_S:
            began_s = time.monotonic()
            ask(client)
