// Log lines on stderr: time, level, a lasting event name, a sentence.
//
//     bt_log_info("ENGINE-PLAN", "weights %zu MiB, kv %zu MiB", …);
//
// Levels by volume: info is at most a few lines a request, debug a line a message, nothing a token. Any thread.
#pragma once

typedef enum { BT_LOG_DEBUG, BT_LOG_INFO, BT_LOG_WARN, BT_LOG_ERROR, BT_LOG_NONE } bt_log_level;

// Process-wide, set once at start. The default is BT_LOG_INFO.
void bt_log_set_level(bt_log_level level);
bt_log_level bt_log_get_level(void);

void bt_log_write(bt_log_level level, const char *event, const char *format, ...) __attribute__((format(printf, 3, 4)));

#define bt_log_debug(...) bt_log_write(BT_LOG_DEBUG, __VA_ARGS__)
#define bt_log_info(...) bt_log_write(BT_LOG_INFO, __VA_ARGS__)
#define bt_log_warn(...) bt_log_write(BT_LOG_WARN, __VA_ARGS__)
#define bt_log_error(...) bt_log_write(BT_LOG_ERROR, __VA_ARGS__)
