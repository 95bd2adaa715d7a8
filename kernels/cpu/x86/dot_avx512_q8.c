#include "kernels/cpu/x86/dot_avx512.h"

DOT_TABLE(bt_dot_avx512_q8, 8)
