#include "tools/local_config.h"

#define AT(field) offsetof(bt_local_config, field)

static const char *const prompt_weights[] = {"same", "keep", "w8", "q4", NULL};

const bt_setting bt_local_settings[] = {
    {"listen", BT_SETTING_TEXT, AT(listen), 128, "127.0.0.1:8080", "HOST:PORT; * as the host means every address.", 0,
     0, NULL},
    {"gateway", BT_SETTING_TEXT, AT(gateway), 160, "",
     "RPC for gateways, tcp://HOST:PORT or tls+tcp://…; empty = none.", 0, 0, NULL},
    BT_ENGINE_TOP_ROWS(AT(engine)),
    {"prompt_weights", BT_SETTING_WORD, AT(prompt_weights), 0, "same",
     "What reads prompts, where that is not what writes answers: two engines, as prefill and decode nodes.", 0, 0,
     prompt_weights},
    {"model.path", BT_SETTING_TEXT, AT(model), 1024, "", "A .gguf file or a Hugging Face directory.", 0, 0, NULL},
    {"model.name", BT_SETTING_TEXT, AT(model_name), 128, "",
     "The name that clients use; empty = the file's, without its ending.", 0, 0, NULL},
    {"tls.cert_key", BT_SETTING_TEXT, AT(cert_key), 1024, "",
     "A gateway of tls+tcp shows this: a PEM file with certificate and key.", 0, 0, NULL},
    BT_ENGINE_ROWS(AT(engine)),
    BT_HTTP_ROWS(AT(http)),
    BT_LOG_ROW(AT(log_level)),
    {0},
};
