#include "cache.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace vivace {
namespace {

constexpr size_t MAX_PREFIX_BYTES = size_t(16) << 20;  // of all prefixes; 0.1 MB per row of 0.6B

}  // namespace

void FreeDeleter::operator()(void* p) const { std::free(p); }

Bytes allocate(size_t size) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, size ? size : 64)) throw std::bad_alloc();
    return Bytes(static_cast<char*>(memory));
}

void Cache::reserve(int num_positions, size_t page_bytes) {
    while (pages.size() * PAGE < size_t(num_positions)) {
        owned.push_back(allocate(page_bytes));
        pages.push_back(owned.back().get());
    }
}

// Calls copy(offset in a content, address in a page, bytes) for `count` positions.
template <class Copy>
void PrefixCache::for_each_part(int count, const Cache& cache, const Copy& copy) const {
    const size_t row = layout_.row_bytes();
    for (size_t block = 0; block < layout_.num_blocks; ++block)
        for (int first = 0; first < count; first += PAGE) {
            const int size = std::min(PAGE, count - first);
            copy((block * size_t(count) + size_t(first)) * row,
                 cache.pages[size_t(first / PAGE)] + block * layout_.block_bytes,
                 size_t(size) * row);
        }
}

int PrefixCache::restore(const float* rows, int count, const Cache& to) {
    const size_t size = size_t(count) * width_;
    for (auto found = entries_.begin(); found != entries_.end(); ++found) {
        if (found->rows.size() != size) continue;
        if (memcmp(found->rows.data(), rows, size * sizeof(float)) != 0) continue;
        const char* content = found->content.data();
        for_each_part(count, to, [&](size_t offset, char* page, size_t bytes) {
            memcpy(page, content + offset, bytes);
        });
        entries_.splice(entries_.begin(), entries_, found);
        return count;
    }
    return 0;
}

void PrefixCache::keep(const float* rows, int count, const Cache& from) {
    const size_t bytes = content_bytes(count);
    if (count == 0 || bytes > MAX_PREFIX_BYTES) return;
    while (num_bytes_ + bytes > MAX_PREFIX_BYTES) {
        num_bytes_ -= entries_.back().content.size();
        entries_.pop_back();
    }
    Entry entry{{rows, rows + size_t(count) * width_}, std::vector<char>(bytes)};
    for_each_part(count, from, [&](size_t offset, const char* page, size_t size) {
        memcpy(entry.content.data() + offset, page, size);
    });
    entries_.push_front(std::move(entry));
    num_bytes_ += bytes;
}

}  // namespace vivace
