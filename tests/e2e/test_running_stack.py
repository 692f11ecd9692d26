"""Commands beside a running stack, and the example that the README shows."""

import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import ROOT, Stack

MAX_LOOKS = 5


def test_a_second_stack_in_the_same_folder_is_refused_in_one_line(stack: Stack) -> None:
    result = stack.command("up", "--port", "0")
    assert result.returncode == 2
    assert "already runs" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_taken_port_is_named(stack: Stack, tmp_path: Path) -> None:
    port = stack.base_url.split(":")[2].split("/")[0]
    result = Stack(tmp_path / "home").command("up", "--port", port)
    assert result.returncode == 2
    assert f"port {port} is taken" in result.stderr


def test_status_says_what_runs_where(stack: Stack) -> None:
    # A service that has no core for two seconds is shown as one that does not answer.
    results = [stack.command("status")]
    while results[-1].returncode and len(results) < MAX_LOOKS:
        results.append(stack.command("status"))
    result = results[-1]
    assert result.returncode == 0, result.stdout + result.stderr
    for name in ("gateway", "router", "prefill-1", "decode-2", "redis"):
        assert name in result.stdout
    assert stack.api_key not in result.stdout


def test_the_example_in_the_readme_runs_as_it_stands(stack: Stack) -> None:
    text = (ROOT / "README.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    assert 'base_url="http://127.0.0.1:8080/v1", api_key="..."' in example
    example = example.replace("http://127.0.0.1:8080/v1", stack.base_url)
    example = example.replace('api_key="..."', f'api_key="{stack.api_key}"')
    result = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=200, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "backpressure" in result.stdout.lower()
