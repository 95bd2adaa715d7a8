#include "tools/cluster_config.h"

static int
print_cluster(const bt_cluster_config *cluster)
{
    bt_buf out;

    bt_buf_init(&out, 1 << 20);
    bt_cluster_config_print(cluster, &out);
    return bt_program_print(&out);
}

int
bt_cluster_begin(bt_cluster_config *out, const char *command, bt_node_role role, const bt_program_args *args)
{
    // Looking at a file is possible anywhere; its program runs where its secret and its model are.
    bt_cluster_ask ask = {.path = args->config,
                          .role = role,
                          .name = args->name,
                          .sets = args->sets,
                          .set_count = args->set_count,
                          .here = !args->print};
    bt_why why = {""};

    if (args->config == NULL) {
        bt_fail(&why, BT_ERR_INVALID, "which cluster? --config FILE");
        return bt_program_wrong(command, &why);
    }
    if (bt_cluster_config_read(out, &ask, &why) != BT_OK) {
        return bt_program_wrong(command, &why);
    }
    return args->print ? print_cluster(out) : args->check ? 0 : -1;
}
