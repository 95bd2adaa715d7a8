#include "kernels/cpu/isa.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_TILE_DATA 18
#endif

static const char *const names[] = {"ref", "avx2", "avx512", "amx"};

#if defined(__x86_64__)
// clang 14's __builtin_cpu_supports does not know this one.
static int
has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

// AMX has to be there, switched on by the system, and granted to this process: tiles are 8 KB of state a thread.
static bool
has_amx(void)
{
    unsigned a, b, c, d, low, high;

    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (1u << 24)) == 0 || (d & (1u << 25)) == 0) {
        return false;
    }
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_OSXSAVE) == 0) {
        return false;
    }
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low >> 17 & 3) == 3 && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0;
}
#endif

bt_cpu_isa
bt_cpu_isa_best(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) {
        return BT_CPU_REF;
    }
    // Everything an "avx512" path may use: VNNI for the dot products, BW and VL beside it.
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vnni")) {
        return BT_CPU_AVX2;
    }
    return has_amx() ? BT_CPU_AMX : BT_CPU_AVX512;
#else
    return BT_CPU_REF;
#endif
}

const char *
bt_cpu_isa_name(bt_cpu_isa isa)
{
    return names[isa];
}

bt_err
bt_cpu_isa_choose(bt_cpu_isa *out, const char *wanted, bt_why *why)
{
    bt_cpu_isa best = bt_cpu_isa_best();

    if (wanted == NULL || strcmp(wanted, "auto") == 0) {
        *out = best;
        return BT_OK;
    }
    for (int i = 0; i < 4; i++) {
        if (strcmp(wanted, names[i]) != 0) {
            continue;
        }
        if ((bt_cpu_isa)i > best) {
            return bt_fail(why, BT_ERR_UNSUPPORTED, "cpu.isa: this machine has no %s (it has %s)", wanted, names[best]);
        }
        *out = (bt_cpu_isa)i;
        return BT_OK;
    }
    return bt_fail(why, BT_ERR_INVALID, "cpu.isa: \"%s\" is none of auto, ref, avx2, avx512, amx", wanted);
}
