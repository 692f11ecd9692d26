"""What a GPU has to prove of workers with vLLM: a page, and files that are there."""

from pathlib import Path

import pytest

from bench.gpu import gpu_vllm

ROOT = Path(__file__).parents[4]


def test_every_proof_names_what_it_proves_and_files_that_are_there() -> None:
    page = gpu_vllm.page()
    for proof in gpu_vllm.PROOFS:
        assert proof.title in page
        assert " ".join(proof.words) in page
        paths = [word for word in proof.words if word.startswith("tests/")]
        assert all((ROOT / path).exists() for path in paths)


def test_without_a_gpu_it_prints_the_page_and_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_vllm, "_num_gpus", lambda: 0)
    assert gpu_vllm.main() == 2
    shown = capsys.readouterr()
    assert shown.out == gpu_vllm.page() + "\n"
    assert "needs a GPU" in shown.err


def test_each_proof_starts_what_is_unproven_and_one_that_needs_more_gpus_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_vllm, "_num_gpus", lambda: 1)
    show = "import os, sys; sys.exit(os.environ.get('BATON_WORKER_UNPROVEN') != 'on')"
    proofs = (
        gpu_vllm.Proof("One", "", ("-c", show)),
        gpu_vllm.Proof("Two", "", ("-c", show), num_gpus=2),
        gpu_vllm.Proof("Wrong", "", ("-c", "raise SystemExit(1)")),
    )
    monkeypatch.setattr(gpu_vllm, "PROOFS", proofs)
    assert gpu_vllm.main() == 1
    shown = capsys.readouterr().out.splitlines()[-3:]
    assert shown == ["One: held", "Two: left out, it needs 2 GPUs", "Wrong: FAILED"]
