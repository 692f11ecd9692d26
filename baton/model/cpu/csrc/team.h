// The threads of one parallel region. They meet at barriers; between these each takes the units of
// its own share of the work in order, then what is left of the others', so that weights are read
// in long runs and a thread which the system has put aside delays the others by one unit only. A thread
// that waits spins for a moment and then sleeps: to spin, or to yield, on a core that others want
// costs it its turn just when the one it waits for is back. The OpenMP runtime's own barriers
// sleep or spin as its environment says, and cost microseconds.
#pragma once

#include <omp.h>

#include <atomic>
#include <memory>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#else
#include <thread>
#endif

namespace baton {

class Team {
   public:
    // For a region of at most so many threads.
    explicit Team(int max_threads) : taken_(new Taken[max_threads]) {}

    // Each thread of the region comes here first; a region may have fewer threads than asked for.
    void enter() { num_threads_.store(omp_get_num_threads(), std::memory_order_relaxed); }

    // Calls `work(unit)` for all units, each by one of the threads, and waits for the others.
    template <class Work>
    void share(int num_units, const Work& work) {
        const int num_threads = num_threads_.load(std::memory_order_relaxed);
        const int self = omp_get_thread_num();
        for (int i = 0; i < num_threads; ++i) {
            const int owner = self + i < num_threads ? self + i : self + i - num_threads;
            const int64_t end = static_cast<int64_t>(num_units) * (owner + 1) / num_threads;
            const int64_t begin = static_cast<int64_t>(num_units) * owner / num_threads;
            std::atomic<int>& taken = taken_[owner].count;
            while (begin + taken.load(std::memory_order_relaxed) < end) {
                const int64_t unit = begin + taken.fetch_add(1, std::memory_order_relaxed);
                if (unit >= end) break;
                work(static_cast<int>(unit));
            }
        }
        meet();
    }

    // Returns when all threads are here; what they wrote before is seen by all.
    void meet() {
        const int num_threads = num_threads_.load(std::memory_order_relaxed);
        const int phase = phase_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads) {
            arrived_.store(0, std::memory_order_relaxed);
            for (int i = 0; i < num_threads; ++i) taken_[i].count.store(0, std::memory_order_relaxed);
            phase_.store(phase + 1);
            if (num_asleep_.load() > 0) wake();
            return;
        }
        for (int spins = 0; spins < kSpins; ++spins) {
            if (phase_.load(std::memory_order_acquire) != phase) return;
            pause();
        }
        sleep(phase);
    }

   private:
    struct alignas(64) Taken {
        std::atomic<int> count{0};
    };

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }

    // Returns when the phase is over. The thread that ends it sees that this one is asleep, or
    // this one sees the new phase: both sides order their write before their read.
    void sleep(int phase) {
        num_asleep_.fetch_add(1);
        while (phase_.load() == phase) wait_for_change(phase);
        num_asleep_.fetch_sub(1, std::memory_order_relaxed);
    }

#if defined(__linux__)
    void wait_for_change(int phase) {
        syscall(SYS_futex, &phase_, FUTEX_WAIT_PRIVATE, phase, nullptr, nullptr, 0);
    }

    void wake() { syscall(SYS_futex, &phase_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }
#else
    void wait_for_change(int) { std::this_thread::yield(); }

    void wake() {}
#endif

    static constexpr int kSpins = 1000;
    std::unique_ptr<Taken[]> taken_;
    std::atomic<int> num_threads_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> phase_{0};
    std::atomic<int> num_asleep_{0};
};

}  // namespace baton
