// Identity of the library, and the choice of the instruction set.
#include "api.h"
#include "kernels.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#endif

namespace vivace {
namespace {

bool has_dotprod() {
#if defined(__aarch64__) && defined(__linux__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#elif defined(__aarch64__) && defined(__APPLE__)
    return true;
#else
    return false;
#endif
}

bool has_i8mm() {
#if defined(__aarch64__) && defined(__linux__)
    constexpr unsigned long i8mm = 1ul << 13;  // HWCAP2_I8MM, which old headers lack
    return has_dotprod() && (getauxval(AT_HWCAP2) & i8mm);
#elif defined(__aarch64__) && defined(__APPLE__)
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname("hw.optional.arm.FEAT_I8MM", &value, &size, nullptr, 0) == 0 && value;
#else
    return false;
#endif
}

#if defined(__x86_64__)
bool has_f16c() {  // GCC 10 has no __builtin_cpu_supports("f16c")
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

bool has_avx2() {
#if defined(__x86_64__)
    static const bool is_f16c = has_f16c();  // asked once: a virtual machine takes microseconds
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && is_f16c;
#else
    return false;
#endif
}

bool has_avx512f() {
#if defined(__x86_64__)
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}

bool has_vnni() {
#if defined(__x86_64__)
    return has_avx512f() && __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

}  // namespace

const Kernels* find_kernels(const char* name) {
    const Kernels* known[] = {
        has_vnni() ? amx_kernels() : nullptr,
        has_vnni() ? avx512_kernels() : nullptr,
        has_avx512f() ? avx512f_kernels() : nullptr,
        has_avx2() ? avx2_kernels() : nullptr,
        has_i8mm() ? i8mm_kernels() : nullptr,
        has_dotprod() ? dotprod_kernels() : nullptr,
        portable_kernels(),
    };
    for (const Kernels* each : known)
        if (each && (!name || !*name || strcmp(name, each->name) == 0)) return each;
    return nullptr;
}

}  // namespace vivace

// Hash of sources and flags (build.py). Python rejects a library of other sources.
VIVACE_API const char* vivace_source_hash() { return VIVACE_SOURCE_HASH; }

// The instruction set that is used for this name ("": the fastest), or null if it cannot run.
VIVACE_API const char* vivace_instructions(const char* name) {
    const vivace::Kernels* kernels = vivace::find_kernels(name);
    return kernels ? kernels->name : nullptr;
}
