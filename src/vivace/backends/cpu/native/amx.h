// What all AMX kernels need: the configuration of the tiles and the test for the instructions.
#pragma once

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace vivace {

struct alignas(64) TileConfig {  // the format of ldtilecfg
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t num_rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64, "the format of ldtilecfg");

// Bits of register EDX of CPUID leaf 7.
constexpr unsigned AMX_BF16 = 1u << 22, AMX_TILE = 1u << 24, AMX_INT8 = 1u << 25;

// Whether the processor has tiles and these instructions, and the system grants the tiles to this
// process.
inline bool has_tiles(unsigned instructions) {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
    const unsigned wanted = instructions | AMX_TILE;
    if ((edx & wanted) != wanted) return false;
    constexpr long request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace vivace
