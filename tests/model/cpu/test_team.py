"""The barrier of compiled steps, `baton/model/cpu/csrc/team.h`, in a program of its own."""

import subprocess
from pathlib import Path

from baton.model.cpu import native
from baton.system.compiler import find_compiler
from tests import needs

# Thread 1 comes to the barrier only when the system says that thread 0 sleeps there.
LATE_THREAD = r"""
#include "team.h"

#include <cstdio>

static bool sleeps(long thread) {
    char path[64], state = '?';
    snprintf(path, sizeof path, "/proc/self/task/%ld/stat", thread);
    FILE* file = fopen(path, "r");
    if (file != nullptr) {
        fscanf(file, "%*d (%*[^)]) %c", &state);
        fclose(file);
    }
    return state == 'S';
}

int main() {
    baton::Team team(2);
    std::atomic<long> waiting{0};
    int rounds[2] = {0, 0};
#pragma omp parallel num_threads(2)
    {
        const int self = omp_get_thread_num();
        team.enter();
        for (int round = 0; round < 3; ++round) {
            if (self == 0) waiting.store(syscall(SYS_gettid));
            while (self == 1 && !(waiting.load() != 0 && sleeps(waiting.load()))) {}
            if (self == 1) waiting.store(0);
            team.meet();
            ++rounds[self];
            team.meet();
        }
    }
    printf("%d %d\n", rounds[0], rounds[1]);
}
"""


@needs.linux
@needs.compiler
def test_threads_that_wait_for_a_late_one_sleep(tmp_path: Path) -> None:
    source, program = tmp_path / "late.cpp", tmp_path / "late"
    source.write_text(LATE_THREAD)
    compiler = find_compiler()
    assert compiler is not None
    flags = ["-std=c++17", "-O1", "-fopenmp", "-I", str(native.SOURCES)]
    subprocess.run([*compiler, *flags, str(source), "-o", str(program)], check=True)
    ended = subprocess.run([program], check=True, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "3 3\n"
