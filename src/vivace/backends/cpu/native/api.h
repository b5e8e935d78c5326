// What every file of the library needs: exported functions, and errors across the C interface.
#pragma once

#include <cstddef>
#include <cstdint>

// Functions that Python calls. All other names are hidden.
#define VIVACE_API extern "C" __attribute__((visibility("default")))

namespace vivace {

// Results of functions of the C interface.
enum Result : int { OK = 0, NO_MEMORY = -1, BAD_ARGUMENT = -2, NO_THREADS = -3 };

}  // namespace vivace
