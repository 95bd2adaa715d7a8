// Tensor cores: a warp's products at once, a warpgroup's at the wait for them. See emulated.h.
#include "state.h"

static int
byte_of(uint32_t word, uint32_t i, bool is_unsigned)
{
    return is_unsigned ? (int)(word >> 8 * i & 0xff) : (int8_t)(word >> 8 * i);
}

// m16n8k32: A's rows are g and g + 8 of lane 4g + t, B's column g, D's columns 2t and 2t + 1.
void
emu_mma(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const int32_t c[4], bool a_unsigned,
        bool b_unsigned)
{
    uint32_t lane = emu_now % 32, *mine = emu_words(lane), *all = emu_words(0);
    int32_t r[4];

    memcpy(mine, a, 16), mine[4] = b0, mine[5] = b1;
    emu_warp();
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;

        r[i] = c[i];
        for (uint32_t k = 0; k < 32; k++) {
            uint32_t x = all[(row % 8 * 4 + k % 16 / 4) * 16 + row / 8 + k / 16 * 2];
            uint32_t y = all[(col * 4 + k % 16 / 4) * 16 + 4 + k / 16];

            r[i] += byte_of(x, k % 4, a_unsigned) * byte_of(y, k % 4, b_unsigned);
        }
    }
    memcpy(d, r, 16);
}

// Where a byte of a matrix lies.
static uint32_t
place_of(uint64_t desc, uint32_t row, uint32_t k)
{
    uint32_t first = (uint32_t)desc * 16, at = first + row * 128 + k, at_64 = first + row * 64 + k;

    if ((desc & EMU_SIXTEENS) != 0) {
        return first + row / 8 * 256 + k / 16 * 128 + row % 8 * 16 + k % 16;
    }
    return (desc & EMU_ROWS_64) != 0 ? at_64 ^ (at_64 >> 7 & 3) << 4 : at ^ (at >> 7 & 7) << 4;
}

static int
byte_at(uint64_t desc, uint32_t row, uint32_t k, bool is_unsigned)
{
    uint8_t byte = emu_shared[place_of(desc, row, k)];

    return is_unsigned ? byte : (int8_t)byte;
}

static void
multiply(const emu_product &p)
{
    uint32_t g = emu_now % 32 / 4, t = emu_now % 4, first = emu_now / 32 % 4 * 16;

    if (place_of(p.b, p.n - 1, 31) >= emu_shared_bytes || (p.shared && place_of(p.a_desc, 63, 31) >= emu_shared_bytes)) {
        emu_fail("a product of what lies beyond shared memory");
    }
    for (uint32_t half = 0; half < 2; half++) {
        int a[32];

        for (uint32_t k = 0; k < 32; k++) {
            a[k] = p.shared       ? byte_at(p.a_desc, first + g + half * 8, k, p.a_unsigned)
                   : p.a_unsigned ? p.a[half][k]
                                  : (int8_t)p.a[half][k];
        }
        for (uint32_t i = 0; i < p.n / 4; i++) {
            int32_t *d = &p.d[i / 2 * 4 + half * 2 + i % 2], sum = p.add ? *d : 0;

            for (uint32_t k = 0; k < 32; k++) {
                sum += a[k] * byte_at(p.b, i / 2 * 8 + t * 2 + i % 2, k, p.b_unsigned);
            }
            *d = sum;
        }
    }
}

void
emu_gmma(uint32_t n, int32_t *d, const uint32_t *a, uint64_t a_desc, uint64_t b, int add, bool a_unsigned,
         bool b_unsigned)
{
    emu_product p = {n, d, {}, a == NULL, a_unsigned, b_unsigned, a_desc, b, add};
    uint32_t lane = emu_now % 32, *mine = emu_words(lane), *all = emu_words(0);

    if (a != NULL) {
        memcpy(mine, a, 16);
        emu_warp();
        for (uint32_t i = 0; i < 64; i++) {
            uint32_t half = i / 32, k = i % 32;

            p.a[half][k] = (uint8_t)(all[(lane / 4 * 4 + k % 16 / 4) * 16 + half + k / 16 * 2] >> 8 * (k % 4));
        }
        emu_warp();
    }
    if (emu_eager) {
        multiply(p);
        return;
    }
    for (uint32_t i = 0; !add && i < n / 2; i++) {
        d[i] = 0x55555555; // nobody reads it before the wait
    }
    emu_self()->products.push_back(p);
}

void
emu_gmma_commit(void)
{
    emu_self()->product_groups.push_back(std::move(emu_self()->products));
    emu_self()->products.clear();
}

void
emu_gmma_wait(uint32_t left)
{
    auto &groups = emu_self()->product_groups;

    while (groups.size() > left) {
        for (const emu_product &p : groups.front()) {
            multiply(p);
        }
        groups.erase(groups.begin());
    }
}
