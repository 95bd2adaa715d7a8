// Safetensors files: whatever is accepted has extents within the file that fill their shapes.
#include "common/base/mem.h"
#include "common/model/safetensors.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static volatile unsigned sink;

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    bt_safetensors *files;
    bt_why why;

    if (bt_safetensors_parse(&files, data, bytes, "fuzz", &why) == BT_OK) {
        for (size_t i = 0; i < bt_safetensors_count(files); i++) {
            const bt_safetensor *tensor = bt_safetensors_at(files, i);

            assert(tensor->data >= data && tensor->bytes <= (size_t)(data + bytes - tensor->data));
            sink = sink + (tensor->bytes != 0 ? tensor->data[tensor->bytes - 1] : 0);
        }
        bt_safetensors_close(files);
    }
    assert(bt_mem_live() == 0);
    return 0;
}
