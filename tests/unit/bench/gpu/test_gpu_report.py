"""The page of a GPU run: what was wrong is seen first, what was left out says why."""

from pathlib import Path

from bench.gpu.gpu_report import Table, read_run, render, write_run

TABLES = [
    Table("machine", "Machine", ["what", "value"], [["GPU", "X"], ["copy, GB/s", 3012.34]]),
    Table("peer", "A peer", [], notes=["Left out: no module."]),
    Table("proof", "Proof", ["dim", "error"], [[64, 0.0312], [128, 2e-7]], errors=["64 is off"]),
]


def test_tables_show_numbers_short_and_errors_first() -> None:
    assert render(TABLES) == (
        "### Machine\n\n| what | value |\n|---|---|\n| GPU | X |\n| copy, GB/s | 3012 |\n\n"
        "### A peer\n\nLeft out: no module.\n\n"
        "### Proof\n\n**WRONG:** 64 is off\n\n"
        "| dim | error |\n|---|---|\n| 64 | 0.0312 |\n| 128 | 2.00e-07 |"
    )


def test_a_run_replaces_the_results_of_the_page_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "engine-gpu.md"
    page.write_text("# Title\n\nHow it is done.\n\n## Results\n\nNone yet.\n")
    path = write_run(TABLES, tmp_path, "gpu")
    text = page.read_text()
    assert text.startswith("# Title\n\nHow it is done.\n\n## Results\n\nFrom `results/gpu.json`.")
    assert "None yet" not in text
    assert write_run(TABLES, tmp_path, "gpu") == path
    assert page.read_text() == text
    assert render(read_run(path)) == render(TABLES)
