// baton top: a cluster, live, in a terminal.
#include "common/base/mem.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/top/watch.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

typedef struct {
    const char *url, *key;
    float interval;
    bool once, json;
    bt_top_watch *watch;
    bt_top_view view;
    bt_buf out;
    bool terminal; // stdout is one: pictures replace each other
    bool keys;     // stdin is one
    struct termios saved;
    sigset_t unblocked; // signals come while it waits, and at no other time: none is missed
} top;

static volatile sig_atomic_t stopped, resized;

static void
on_signal(int number)
{
    *(number == SIGWINCH ? &resized : &stopped) = 1;
}

// ---- the terminal ----

static void
take_terminal(top *t)
{
    struct termios raw;

    t->keys = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &t->saved) == 0;
    if (t->keys) {
        raw = t->saved;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    fputs("\033[?1049h\033[?25l", stdout); // a screen of our own, without a cursor
}

static void
give_terminal_back(top *t)
{
    fputs("\033[?25h\033[?1049l", stdout);
    fflush(stdout);
    if (t->keys) {
        tcsetattr(STDIN_FILENO, TCSANOW, &t->saved);
    }
}

static void
size_of_terminal(unsigned *columns, unsigned *rows)
{
    struct winsize size;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;

    *columns = known ? size.ws_col : 100;
    *rows = known && size.ws_row > 1 ? size.ws_row - 1u : 0;
}

// ---- pictures ----

// False when stdout is gone.
static bool
show(top *t, const char *note)
{
    unsigned columns = 160, rows = 0;

    bt_buf_clear(&t->out);
    if (t->json) {
        bt_top_write_json(&t->view, &t->out);
        bt_buf_append_char(&t->out, '\n');
    } else if (t->terminal) {
        size_of_terminal(&columns, &rows);
        bt_buf_append_text(&t->out, "\033[H");
        bt_top_write_text(&t->view, note, columns, rows, true, "\033[K\n", &t->out);
        bt_buf_append_text(&t->out, "\033[J");
    } else {
        bt_top_write_text(&t->view, note, columns, rows, false, "\n", &t->out);
        bt_buf_append_text(&t->out, t->once ? "" : "\n");
    }
    return fwrite(t->out.data, 1, t->out.len, stdout) == t->out.len && fflush(stdout) == 0;
}

// Until the time, a q, or a signal to stop. A terminal of another size is drawn anew at once.
static void
wait_until(top *t, bt_time until, const char *note)
{
    struct pollfd keys = {.fd = t->terminal && t->keys ? STDIN_FILENO : -1, .events = POLLIN};
    char key;

    for (bt_time now; !stopped && (now = bt_time_now()) < until;) {
        struct timespec left = {(until - now) / BT_SECOND, (until - now) % BT_SECOND};

        if (ppoll(&keys, 1, &left, &t->unblocked) > 0 &&
            (read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q')) {
            stopped = 1;
        }
        if (resized) {
            resized = 0;
            show(t, note);
        }
    }
}

// The look before this had to succeed; later ones may fail for a while, and the picture says so. Rates need two looks: where one picture
// is all, or pictures stay, the first comes with the second.
static int
watch(top *t)
{
    bt_time interval = (bt_time)((double)t->interval * BT_SECOND), next = bt_time_now() + interval;
    bt_why why = {""};
    bool good = true, shown = !t->terminal || show(t, NULL);

    while (shown) {
        wait_until(t, next, good ? NULL : why.text);
        next = bt_time_now() + interval;
        good = stopped || bt_top_look(t->watch, &t->view, &why) == BT_OK;
        if (stopped) {
            return 0;
        }
        if (good || t->terminal) {
            shown = show(t, good ? NULL : why.text);
        } else {
            fprintf(stderr, "baton top: %s\n", why.text);
        }
        if (t->once) {
            return good && shown ? 0 : 1;
        }
    }
    return 1;
}

static int
run(top *t)
{
    struct sigaction action = {.sa_handler = on_signal};
    bt_get_server server;
    bt_why why = {""};
    sigset_t ours;
    int code = 1;

    if (bt_get_parse(&server, t->url, "8080", &why) != BT_OK) {
        fprintf(stderr, "baton top: %s\n", why.text);
        return 2;
    }
    if (bt_top_watch_open(&t->watch, &server, t->key, &why) != BT_OK ||
        bt_top_look(t->watch, &t->view, &why) != BT_OK) {
        fprintf(stderr, "baton top: no router answers at %s: %s\n", t->url, why.text);
        bt_top_watch_close(t->watch);
        return 1;
    }
    sigemptyset(&ours);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGTERM);
    sigaddset(&ours, SIGWINCH);
    sigprocmask(SIG_BLOCK, &ours, &t->unblocked);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGWINCH, &action, NULL);
    bt_buf_init(&t->out, 1 << 20);
    t->terminal = !t->once && !t->json && isatty(STDOUT_FILENO);
    if (t->terminal) {
        take_terminal(t);
    }
    code = watch(t);
    if (t->terminal) {
        give_terminal_back(t);
    }
    bt_buf_fini(&t->out);
    bt_top_watch_close(t->watch);
    return code;
}

int
bt_top_main(int argc, char **argv)
{
    static top t = {.url = "http://127.0.0.1:8080", .interval = 1}; // large, and there is one
    static const bt_arg args[] = {
        {"once", BT_ARG_FLAG, &t.once, NULL, "one picture, after one interval, and end", NULL},
        {"json", BT_ARG_FLAG, &t.json, NULL, "a JSON object a picture", NULL},
        {"interval", BT_ARG_FLOAT, &t.interval, "SECONDS", "between looks", NULL},
        {"key", BT_ARG_STRING, &t.key, "KEY", "where the router wants one [$BATON_KEY]", NULL},
        {NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL},
    };
    static const bt_args_spec spec = {
        .usage = "baton top [URL] [options]",
        .about =
            "Shows a router's cluster live: its nodes, what they do, and how long clients wait. q or Ctrl-C ends.\n"
            "Nodes' rates come from their own status addresses; without one a node has none.",
        .example = "  baton top http://127.0.0.1:8080\n  baton top r1.example:8080 --once --json | jq .ttft_p99_ms",
        .args = args,
        .positional_max = 1,
    };
    uint32_t count = 0;
    int code;

    if ((code = bt_args_parse(&spec, argc, argv, &t.url, &count)) >= 0) {
        return code;
    }
    t.key = t.key != NULL ? t.key : getenv("BATON_KEY"); // not before: --help shows what is set
    if (!(t.interval >= 0.05f && t.interval <= 3600)) {
        fprintf(stderr, "baton top: --interval: expected 0.05 to 3600 seconds\n");
        return 2;
    }
    return run(&t);
}
