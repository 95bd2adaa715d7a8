#include "tools/run_report.h"

#include "common/base/log.h"
#include "common/json/write.h"

#include <stdio.h>

static void
put_ids(bt_json_writer *w, const char *key, const int32_t *ids, uint32_t count)
{
    bt_json_begin_array(w, key);
    for (uint32_t i = 0; i < count; i++) {
        bt_json_put_int(w, NULL, ids[i]);
    }
    bt_json_end(w);
}

static double
ms(bt_time from, bt_time to)
{
    return to > from ? (double)(to - from) / 1e6 : 0;
}

static void
print_json(const bt_run_report *r)
{
    bt_json_writer w;
    bt_buf out;

    bt_buf_init(&out, SIZE_MAX / 4);
    bt_json_write(&w, &out);
    bt_json_begin_object(&w, NULL);
    put_ids(&w, "prompt_ids", r->prompt_ids, r->prompt_count);
    put_ids(&w, "ids", r->ids, r->count);
    bt_json_put_text(&w, "text", r->text);
    bt_json_put_text(&w, "finish_reason", bt_str_of(r->finish_reason));
    bt_json_begin_object(&w, "usage");
    bt_json_put_int(&w, "prompt_tokens", r->usage.prompt_tokens);
    bt_json_put_int(&w, "completion_tokens", r->usage.completion_tokens);
    bt_json_put_int(&w, "cached_tokens", r->usage.cached_tokens);
    bt_json_end(&w);
    bt_json_begin_object(&w, "timing");
    bt_json_put_real(&w, "load_ms", ms(r->started, r->loaded));
    bt_json_put_real(&w, "prefill_ms", ms(r->loaded, r->first));
    bt_json_put_real(&w, "decode_ms", ms(r->first, r->ended));
    bt_json_end(&w);
    bt_json_end(&w);
    puts(out.failed ? "{\"error\":\"out of memory\"}" : out.data);
    bt_buf_fini(&out);
}

static void
print_summary(const bt_run_report *r)
{
    double seconds = ms(r->first, r->ended) / 1e3;
    uint32_t tokens = r->usage.completion_tokens;

    printf("\n");
    fflush(stdout); // before the log, where both go to one file
    bt_log_info("RUN-DONE", "load %.0f ms, prompt %u tokens (%u cached) in %.0f ms, answer %u tokens at %.1f tok/s, %s",
                ms(r->started, r->loaded), r->usage.prompt_tokens, r->usage.cached_tokens, ms(r->loaded, r->first),
                tokens, seconds > 0 && tokens > 1 ? (tokens - 1) / seconds : 0, r->finish_reason);
}

void
bt_run_report_print(const bt_run_report *report, bool json)
{
    (json ? print_json : print_summary)(report);
}
