"""How many threads a step computes in beside other programs, by the test's clock and waits."""

from baton.model.cpu.thread_count import LOOK_S, ThreadCount


class Process:
    """Its threads wait for a CPU for a part of the time."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.waited_s = 40.0
        self.num_looks = 0
        self.threads = ThreadCount(self.look, lambda: self.now_s)
        self.threads.next(2)

    def look(self) -> float:
        self.num_looks += 1
        return self.waited_s

    def run(self, waits: float, num_looks: int = 1) -> int:
        """The threads after so many looks; `waits`: those of all threads, a second."""
        found = 0
        for _ in range(num_looks):
            self.now_s += LOOK_S
            self.waited_s += waits * LOOK_S
            found = self.threads.next(2)
        return found


def test_all_threads_compute_while_they_have_cpus() -> None:
    process = Process()
    assert process.run(waits=0.0) == 2
    # A busy gateway beside two threads: each waits for a fifth of the time.
    assert process.run(waits=0.4, num_looks=20) == 2


def test_one_thread_computes_while_all_would_wait_and_all_do_again_afterwards() -> None:
    process = Process()
    assert process.run(waits=1.2) == 1
    # Alone it waits for as much of the time as before, then for less.
    assert process.run(waits=0.7, num_looks=20) == 1
    assert process.run(waits=0.2) == 1
    assert process.run(waits=0.1) == 2


def test_waits_of_long_ago_are_not_those_of_now() -> None:
    process = Process()
    assert process.run(waits=1.2) == 1
    process.now_s += 60.0
    assert process.threads.next(2) == 2


def test_one_thread_is_never_looked_after_and_others_rarely() -> None:
    process = Process()
    for _ in range(1000):
        assert process.threads.next(1) == 1
        process.threads.next(2)
        process.now_s += LOOK_S / 100
    assert process.num_looks <= 12
