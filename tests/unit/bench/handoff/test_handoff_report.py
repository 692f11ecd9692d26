from bench.handoff.handoff_report import render

RECORD = {
    "part": "handoff",
    "contender": "shm",
    "num_bytes": 2_000_000_000,
    "memory_copy_s": [0.5, 1.0, 0.5],
    "socket_s": [1.0, 1.0, 2.0],
    "grpc_stream_s": [2.0, 2.0, 2.0],
    "transfer_s": [1.0, 1.0, 1.0],
    "exposed_s": [0.1, 0.2, 0.5],
}


def test_a_transport_is_compared_with_its_baseline_round_by_round() -> None:
    lines = render([RECORD]).splitlines()

    assert lines[2] == "| memory copy | 4.00 | 4.00 | - | - | - | - | - | - |"
    assert lines[-1] == (
        "| **shm** | 2.00 | 2.00 | memory copy | 0.50 | 0.50 | >= 0.70 | 0.20 | <= 0.15 |"
    )


def test_the_last_run_of_a_transport_counts() -> None:
    later = RECORD | {"transfer_s": [0.5, 0.5, 0.5]}

    assert "| **shm** | 4.00 | 4.00 |" in render([RECORD, later])
    assert render([RECORD, later]).count("**shm**") == 1


def test_what_was_left_out_has_no_row() -> None:
    left_out = {"part": "left out", "contender": "nixl", "reason": "not installed"}

    assert "nixl" not in render([RECORD, left_out])


def test_what_is_exposed_behind_a_real_prefill_has_a_table_of_its_own() -> None:
    overlap = {
        "part": "overlap",
        "contender": "shm",
        "num_tokens": 500,
        "num_bytes": 58 * 2**20,
        "prefill_s": [0.5, 0.4, 0.6],
        "exposed_s": [0.002, 0.004, 0.003],
        "idle_s": [0.02, 0.02, 0.02],
    }

    lines = render([RECORD, overlap]).splitlines()

    assert lines[-4] == ""
    assert lines[-1] == "| **shm** | 500 | 58 | 500.0 | 20.0 | 3.0 | 0.15 | <= 0.20 |"
