// What the program that runs needs of its machine: a model, a secret that is one, certificates, keys.
#include "tools/cluster_check.h"

#include "common/net/challenge.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// What the program that runs cannot do without; others may get theirs elsewhere (--set).
static bt_err
check_needs(bt_cluster_checker *k, const bt_cluster_program *p)
{
    if (p->model[0] == 0) {
        return BT_CLUSTER_FAIL(k, p, "model.path",
                               "model.path: expected a .gguf file or a Hugging Face directory for %s", p->name);
    }
    if (p->cluster->secret[0] == 0 && p->cluster->secret_file[0] == 0) {
        return BT_CLUSTER_FAIL(k, p, "cluster.secret_file",
                               "cluster.secret_file: expected a file with the secret that %s shares with the others",
                               p->name);
    }
    if (p->cluster->secret[0] != 0 && p->cluster->secret_file[0] != 0) {
        return BT_CLUSTER_FAIL(k, p, "cluster.secret", "cluster.secret: expected either this or cluster.secret_file");
    }
    return BT_OK;
}

static bt_err
check_readable(bt_cluster_checker *k, const bt_cluster_program *p, const char *key, const char *path)
{
    return path[0] == 0 || access(path, R_OK) == 0
               ? BT_OK
               : BT_CLUSTER_FAIL(k, p, key, "%s: %s: %s", key, path, strerror(errno));
}

static bt_err
take_secret(bt_cluster_checker *k, const bt_cluster_program *p, int fd)
{
    const char *path = p->cluster->secret_file, *key = "cluster.secret_file";
    char line[BT_SECRET_BYTES_MAX + 3];
    struct stat info;
    ssize_t got;
    size_t len;

    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        return BT_CLUSTER_FAIL(k, p, key, "%s: %s: expected a plain file", key, path);
    }
    if ((info.st_mode & 077) != 0) {
        return BT_CLUSTER_FAIL(k, p, key,
                               "%s: %s: expected a file that only its owner can read (chmod 600), found mode %03o", key,
                               path, (unsigned)info.st_mode & 0777);
    }
    if ((got = read(fd, line, sizeof line - 1)) < 0) {
        return BT_CLUSTER_FAIL(k, p, key, "%s: %s: %s", key, path, strerror(errno));
    }
    line[got] = 0;
    len = strcspn(line, "\r\n");
    if (len == 0) {
        return BT_CLUSTER_FAIL(k, p, key, "%s: %s: expected a secret in its first line, found none", key, path);
    }
    if (len > BT_SECRET_BYTES_MAX || strlen(line) != (size_t)got) {
        return BT_CLUSTER_FAIL(k, p, key, "%s: %s: expected one line of at most %d bytes of text", key, path,
                               BT_SECRET_BYTES_MAX);
    }
    memcpy(p->cluster->secret, line, len);
    p->cluster->secret[len] = 0;
    return BT_OK;
}

// ipc://…, tcp://127.….….…:PORT, tcp://localhost:PORT, tcp://[::1]:PORT
static bool
is_loopback(const char *link)
{
    const char *host = strstr(link, "://") + 3;
    struct in_addr address;
    char text[INET_ADDRSTRLEN];

    if (strncmp(link, "ipc://", 6) == 0 || strncmp(host, "[::1]:", 6) == 0 || strncmp(host, "localhost:", 10) == 0) {
        return true;
    }
    snprintf(text, sizeof text, "%.*s", (int)strcspn(host, ":"), host);
    return inet_pton(AF_INET, text, &address) == 1 && ntohl(address.s_addr) >> 24 == 127;
}

// A secret that stands in the cluster's file itself is as open as that file; on one machine that may be so.
static bt_err
check_own_file(bt_cluster_checker *k, const bt_cluster_program *p, const char *path)
{
    struct stat info;
    bool far = false;

    for (uint32_t pool = BT_CLUSTER_PREFILL; pool <= BT_CLUSTER_DECODE; pool++) {
        for (uint32_t i = 0; i < bt_cluster_count(k->c, pool); i++) {
            far = far || !is_loopback(bt_cluster_get(k->c, pool, i).as_node->link);
        }
    }
    if (p->cluster->secret_file[0] != 0 || !far || stat(path, &info) != 0 || (info.st_mode & 077) == 0 ||
        bt_config_tree_line(k->tree, p->pool, p->node, "cluster.secret") == 0) {
        return BT_OK;
    }
    return BT_CLUSTER_FAIL(
        k, p, "cluster.secret",
        "cluster.secret: others can read this file (mode %03o): expected it to be its owner's alone (chmod 600), "
        "or cluster.secret_file",
        (unsigned)info.st_mode & 0777);
}

static bt_err
read_secret(bt_cluster_checker *k, const bt_cluster_program *p)
{
    bt_err err;
    int fd;

    if (p->cluster->secret_file[0] == 0) {
        return BT_OK;
    }
    // A pipe without a writer would wait.
    if ((fd = open(p->cluster->secret_file, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) < 0) {
        return BT_CLUSTER_FAIL(k, p, "cluster.secret_file", "cluster.secret_file: %s: %s", p->cluster->secret_file,
                               strerror(errno));
    }
    err = take_secret(k, p, fd);
    close(fd);
    return err;
}

bt_err
bt_cluster_check_here(bt_cluster_checker *k, const bt_cluster_program *p, const char *path)
{
    bt_why why = {""};
    bt_err err;

    if ((err = check_needs(k, p)) != BT_OK || (err = check_own_file(k, p, path)) != BT_OK ||
        (err = read_secret(k, p)) != BT_OK ||
        (err = check_readable(k, p, "cluster.tls.ca", p->cluster->ca_file)) != BT_OK ||
        (err = check_readable(k, p, "cluster.tls.cert_key", p->cluster->cert_key_file)) != BT_OK ||
        (err = check_readable(k, p, "model.path", p->model)) != BT_OK) {
        return err;
    }
    if (p->as_router != NULL && p->as_router->http.auth_file[0] != 0 &&
        bt_http_settings_read_keys(&p->as_router->http, &why) != BT_OK) {
        return BT_CLUSTER_FAIL(k, p, "auth.file", "%s", why.text);
    }
    return BT_OK;
}
