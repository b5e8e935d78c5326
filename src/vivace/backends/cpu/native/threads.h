// A pool of threads that run one function together and meet at barriers.
//
// Waiting threads spin for a few microseconds, then sleep. The calling thread is thread 0, so a
// pool of one has no threads of its own and survives a fork.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace vivace {

class Pool {
public:
    explicit Pool(int num_threads);  // throws std::system_error
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return size_; }

    // Calls `work(thread)` on every thread and returns when all are done. Not reentrant: one
    // caller at a time.
    template <class Work>
    void run(const Work& work) {
        start([](const void* context, int thread) { (*static_cast<const Work*>(context))(thread); },
              &work);
    }

    // Waits inside `run` until every thread has arrived. Writes before it are visible after it.
    void barrier() {
        if (size_ > 1) meet();
    }

    // Calls `work(i)` for 0 <= i < count, in parallel; contiguous ranges per thread.
    template <class Work>
    void for_each(int64_t count, const Work& work) {
        run([&](int thread) {
            const int64_t end = count * (thread + 1) / size_;
            for (int64_t i = count * thread / size_; i < end; ++i) work(i);
        });
    }

private:
    using Function = void (*)(const void*, int);

    void start(Function function, const void* context);
    void meet();
    void serve(int thread);
    void wait_for_change(const std::atomic<uint32_t>& value, uint32_t old);
    void wake(std::atomic<uint32_t>& value);

    int size_;
    Function function_ = nullptr;
    const void* context_ = nullptr;
    bool is_closed_ = false;
    // On separate cache lines: threads poll one while others change the next.
    alignas(64) std::atomic<uint32_t> epoch_{0};       // number of runs started
    alignas(64) std::atomic<uint32_t> arrived_{0};     // threads at the barrier
    alignas(64) std::atomic<uint32_t> generation_{0};  // number of barriers passed
    alignas(64) std::atomic<int> num_sleeping_{0};
    std::vector<std::thread> threads_;
};

}  // namespace vivace
