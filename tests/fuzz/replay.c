// Runs a fuzz target over the files named on the command line, where libFuzzer is not linked.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int
main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        uint8_t *data = malloc(1 << 22);
        size_t bytes = file != NULL && data != NULL ? fread(data, 1, 1 << 22, file) : 0;

        if (file == NULL) {
            fprintf(stderr, "%s: cannot be read\n", argv[i]);
            return 2;
        }
        LLVMFuzzerTestOneInput(data, bytes);
        free(data);
        fclose(file);
    }
    printf("%d inputs replayed\n", argc - 1);
    return 0;
}
