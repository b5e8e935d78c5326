// Memory of the model: aligned arrays, keys and values in pages, and those of known prefixes.
#pragma once

#include <list>
#include <memory>
#include <vector>

#include "kernels.h"

namespace vivace {

struct FreeDeleter {
    void operator()(void* p) const;
};
using Bytes = std::unique_ptr<char[], FreeDeleter>;

Bytes allocate(size_t size);  // aligned to a cache line; throws std::bad_alloc

template <class T>
struct Aligned {  // allocates whole cache lines
    using value_type = T;
    Aligned() = default;
    template <class U>
    Aligned(const Aligned<U>&) {}
    T* allocate(size_t count) {
        return reinterpret_cast<T*>(vivace::allocate(count * sizeof(T)).release());
    }
    void deallocate(T* p, size_t) { FreeDeleter()(p); }
    bool operator==(const Aligned&) const { return true; }
    bool operator!=(const Aligned&) const { return false; }
};
using Floats = std::vector<float, Aligned<float>>;  // rows of vectors

// A page has blocks of PAGE positions: the keys or the values of one head of one layer.
struct PageLayout {
    size_t block_bytes = 0, num_blocks = 0;

    size_t page_bytes() const { return block_bytes * num_blocks; }
    size_t row_bytes() const { return block_bytes / PAGE; }
};

// Keys and values of one sequence.
struct Cache {
    std::vector<Bytes> owned;
    std::vector<char*> pages;
    int length = 0;

    void reserve(int num_positions, size_t page_bytes);
};

// Keys and values of the rows with which earlier prompts began, such as those of a voice. They depend
// on these rows alone, so a prompt with the same rows can begin with them.
class PrefixCache {
public:
    PrefixCache(size_t width, const PageLayout& layout) : width_(width), layout_(layout) {}

    // Fills the first positions of a cache if `count` rows are known. Returns the number of positions.
    int restore(const float* rows, int count, const Cache& to);
    void keep(const float* rows, int count, const Cache& from);
    size_t num_bytes() const { return num_bytes_; }  // of keys and values

private:
    struct Entry {
        std::vector<float> rows;
        std::vector<char> content;  // [blocks, positions, row_bytes]
    };

    size_t content_bytes(int count) const {
        return size_t(count) * layout_.row_bytes() * layout_.num_blocks;
    }
    template <class Copy>
    void for_each_part(int count, const Cache& cache, const Copy& copy) const;

    size_t width_;
    PageLayout layout_;
    std::list<Entry> entries_;  // the last used first
    size_t num_bytes_ = 0;
};

}  // namespace vivace
