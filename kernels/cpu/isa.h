// Which instruction set the CPU operations use: the best this machine has, or the one that a setting names.
#pragma once

#include "kernels/cpu/cpu.h"

// `wanted`: "auto" or NULL, "ref", "avx2", "avx512", "amx". BT_ERR_INVALID for another word, BT_ERR_UNSUPPORTED for what the
// machine lacks.
bt_err bt_cpu_isa_choose(bt_cpu_isa *out, const char *wanted, bt_why *why);
const char *bt_cpu_isa_name(bt_cpu_isa isa);
bt_cpu_isa bt_cpu_isa_best(void);
