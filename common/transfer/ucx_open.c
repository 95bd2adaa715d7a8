// UCX made ready: its messages among ours, its settings, two workers, the pool that it may read, and one descriptor to sleep on.
//
// One-sided operations over tcp are never used: UCX plays them in software, and the surviving side aborted in half of the kills
// (reference/libraries.md 2). For the same reason tcp's own put is switched off: then the rendezvous comes in fragments that
// the receiver's UCX copies itself while the receive is there, and nothing lands after the receive has ended.
// Two workers: `mouth` makes the endpoints and sends, `ear` is whom others reach. With one for both, UCX pairs the endpoints that two
// sides make to each other, and when one side closes its own early the *other* process aborts (an assertion on remote ids in 1.13).
// Endpoints that always go from a mouth to an ear are nobody's pair: peers connect and disconnect in any order.
#include "common/base/log.h"
#include "common/transfer/ucx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

// UCX prints to stdout by itself, where `--json` writes; its warnings belong among ours.
static ucs_log_func_rc_t
log_line(const char *file, unsigned line, const char *function, ucs_log_level_t level,
         const ucs_log_component_config_t *component, const char *format, va_list args)
{
    char text[512];

    (void)function;
    (void)component;
    if (level > UCS_LOG_LEVEL_WARN) {
        return UCS_LOG_FUNC_RC_CONTINUE;
    }
    vsnprintf(text, sizeof text, format, args);
    if (strncmp(text, "invalid configuration", 21) == 0) {
        bt_log_debug("UCX", "%s", text); // a setting of a transport that was not opened
        return UCS_LOG_FUNC_RC_STOP;
    }
    bt_log_warn("UCX", "%s (%s:%u)", text, strrchr(file, '/') != NULL ? strrchr(file, '/') + 1 : file, line);
    return level == UCS_LOG_LEVEL_FATAL ? UCS_LOG_FUNC_RC_CONTINUE : UCS_LOG_FUNC_RC_STOP;
}

bt_err
bt_ucx_fail(bt_why *why, bt_err err, const char *what, ucs_status_t status)
{
    return bt_fail(why, err, "transfer: UCX %s: %s", what, ucs_status_string(status));
}

// What the operator has set in the environment stays. False: this UCX knows no such setting.
static bool
configure(ucp_config_t *config, const char *key, const char *value)
{
    char name[64];

    snprintf(name, sizeof name, "UCX_%s", key);
    return value == NULL || getenv(name) != NULL || ucp_config_modify(config, key, value) == UCS_OK;
}

static void
configure_all(const bt_ucx *u, ucp_config_t *config)
{
    // Without it shared memory is not used in PEER mode.
    bool well = configure(config, "MM_ERROR_HANDLING", "y") && configure(config, "KEEPALIVE_INTERVAL", "1s");

    // tcp's, by the name that 1.13 takes here, or by that of 1.22
    well = (configure(config, "PUT_ENABLE", "n") || configure(config, "TCP_PUT_ENABLE", "n")) && well;
    well = configure(config, "TLS", u->o.tls) && configure(config, "NET_DEVICES", u->o.net_devices) && well;
    if (!well) {
        bt_log_warn("UCX", "UCX %s did not accept all settings: transports %s, devices %s", ucp_get_version_string(),
                    u->o.tls != NULL ? u->o.tls : "any", u->o.net_devices != NULL ? u->o.net_devices : "any");
    }
}

static bt_err
open_context(bt_ucx *u, bt_why *why)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
                           .features = UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                           .estimated_num_eps = u->o.peers_max};
    ucp_config_t *config;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);

    if (status != UCS_OK) {
        return bt_ucx_fail(why, BT_ERR_DEVICE, "settings", status);
    }
    configure_all(u, config);
    status = ucp_init(&params, config, &u->context);
    ucp_config_release(config);
    return status == UCS_OK ? BT_OK : bt_ucx_fail(why, BT_ERR_DEVICE, "start", status);
}

// UCX registers the pool for what it reads by itself (RDMA); the direct path needs none of it.
static bt_err
open_pool(bt_ucx *u, size_t bytes, bt_why *why)
{
    ucp_mem_map_params_t params = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_ADDRESS,
                                   .length = bytes};
    bt_err err = bt_shared_open(&u->pool, bytes, u->identity, why);
    ucs_status_t status;

    if (err != BT_OK) {
        return err;
    }
    params.address = u->pool.memory;
    if ((status = ucp_mem_map(u->context, &params, &u->memh)) != UCS_OK ||
        (status = ucp_rkey_pack(u->context, u->memh, &u->key, &u->key_bytes)) != UCS_OK) {
        return bt_ucx_fail(why, BT_ERR_DEVICE, "pool", status);
    }
    memcpy(u->keys, &u->pool.key, sizeof u->pool.key);
    if (u->key_bytes <= sizeof u->keys - sizeof u->pool.key) {
        memcpy(u->keys + sizeof u->pool.key, u->key, u->key_bytes);
    }
    return BT_OK;
}

// One descriptor for both workers.
static void
open_fd(bt_ucx *u)
{
    const ucp_worker_h workers[] = {u->mouth, u->ear};
    struct epoll_event event = {.events = EPOLLIN};
    int fd;

    u->fd = epoll_create1(EPOLL_CLOEXEC);
    for (size_t i = 0; i < 2 && u->fd >= 0; i++) {
        if (ucp_worker_get_efd(workers[i], &fd) != UCS_OK || epoll_ctl(u->fd, EPOLL_CTL_ADD, fd, &event) != 0) {
            close(u->fd);
            u->fd = -1;
        }
    }
}

static bt_err
open_workers(bt_ucx *u, bt_why *why)
{
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucs_status_t status = ucp_worker_create(u->context, &params, &u->mouth);

    if (status != UCS_OK || (status = ucp_worker_create(u->context, &params, &u->ear)) != UCS_OK ||
        (status = ucp_worker_get_address(u->ear, &u->address, &u->address_bytes)) != UCS_OK ||
        (status = bt_ucx_listen(u)) != UCS_OK) {
        return bt_ucx_fail(why, BT_ERR_DEVICE, "worker", status);
    }
    return BT_OK;
}

static bt_err
check_sizes(const bt_ucx *u, bt_why *why)
{
    if (u->address_bytes <= BT_DESCRIPTION_ADDRESS_MAX &&
        u->key_bytes + sizeof(bt_shared_key) <= BT_DESCRIPTION_KEY_MAX) {
        return BT_OK;
    }
    return bt_fail(why, BT_ERR_UNSUPPORTED,
                   "transfer: UCX's address has %zu bytes and its key %zu, at most %d and %d fit; choose transports by "
                   "UCX_TLS or UCX_NET_DEVICES",
                   u->address_bytes, u->key_bytes, BT_DESCRIPTION_ADDRESS_MAX, BT_DESCRIPTION_KEY_MAX);
}

bt_err
bt_ucx_open_library(bt_ucx *u, size_t bytes, bt_why *why)
{
    static bool logging;
    bt_err err;

    if (!__atomic_exchange_n(&logging, true, __ATOMIC_RELAXED)) {
        ucs_log_push_handler(log_line);
    }
    if ((err = open_context(u, why)) != BT_OK || (err = open_workers(u, why)) != BT_OK ||
        (err = open_pool(u, bytes, why)) != BT_OK || (err = check_sizes(u, why)) != BT_OK) {
        return err;
    }
    open_fd(u);
    return BT_OK;
}
