#include "threads.h"

#include <climits>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <chrono>
#endif

namespace vivace {
namespace {

constexpr int NUM_SPINS = 4000;  // about 50 microseconds
constexpr int NUM_YIELDS = 20;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");  // as long as a pause of x86; `yield` takes no time
#endif
}

// Sleeps while `value` is `old`, or less.
void sleep_on(const std::atomic<uint32_t>& value, uint32_t old) {
#if defined(__linux__)
    syscall(SYS_futex, &value, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
#else
    (void)value, (void)old;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
#endif
}

void wake_all(std::atomic<uint32_t>& value) {
#if defined(__linux__)
    syscall(SYS_futex, &value, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
    (void)value;
#endif
}

}  // namespace

Pool::Pool(int num_threads) : size_(num_threads < 1 ? 1 : num_threads) {
    try {
        for (int thread = 1; thread < size_; ++thread)
            threads_.emplace_back([this, thread] { serve(thread); });
    } catch (...) {  // the system has no more threads
        is_closed_ = true;
        epoch_.fetch_add(1);
        wake(epoch_);
        for (auto& each : threads_) each.join();
        throw;
    }
}

Pool::~Pool() {
    is_closed_ = true;
    epoch_.fetch_add(1);
    wake(epoch_);
    for (auto& each : threads_) each.join();
}

void Pool::start(Function function, const void* context) {
    if (size_ == 1) {
        function(context, 0);
        return;
    }
    function_ = function;
    context_ = context;
    epoch_.fetch_add(1);
    wake(epoch_);
    function(context, 0);
    meet();
}

void Pool::serve(int thread) {
    for (uint32_t seen = 0;;) {
        wait_for_change(epoch_, seen);
        ++seen;
        if (is_closed_) return;
        function_(context_, thread);
        meet();
    }
}

void Pool::meet() {
    const uint32_t generation = generation_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1) + 1 == static_cast<uint32_t>(size_)) {
        arrived_.store(0);
        generation_.fetch_add(1);
        wake(generation_);
    } else {
        wait_for_change(generation_, generation);
    }
}

void Pool::wait_for_change(const std::atomic<uint32_t>& value, uint32_t old) {
    for (int i = 0; i < NUM_SPINS; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause();
    }
    for (int i = 0; i < NUM_YIELDS; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        std::this_thread::yield();
    }
    num_sleeping_.fetch_add(1);
    while (value.load() == old) sleep_on(value, old);
    num_sleeping_.fetch_sub(1);
}

// The value was changed before: a thread that sleeps later compares it first.
void Pool::wake(std::atomic<uint32_t>& value) {
    if (num_sleeping_.load() > 0) wake_all(value);
}

}  // namespace vivace
