// Attention and post-norms by AVX2: the words of simd16_avx2.h, the sentences of attention_tile.h.
#include "kernels/cpu/x86/simd16_avx2.h"

#define DOT16 SIMD_DOT16
#define ENCODE8 simd_int8_codes
#include "kernels/cpu/add_norm.h"
#include "kernels/cpu/ref/attention_prepare.h"
#include "kernels/cpu/x86/attention_tile.h"

const bt_attention_path bt_attention_path_avx2 = {prepare, attend, finish};

void
bt_avx2_add_norm_row(const bt_add_norm_args *args, uint32_t token)
{
    add_norm_row(args, token);
}
