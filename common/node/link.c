#include "common/node/link.h"

bool
bt_link_receive(bt_link *link, bt_link_event *out)
{
    return link->ops->receive(link, out);
}

bt_err
bt_link_send(bt_link *link, uint32_t peer, const bt_message *message)
{
    return link->ops->send(link, peer, message);
}

bool
bt_link_pending(const bt_link *link)
{
    return link->ops->pending(link);
}

void
bt_link_close(bt_link *link)
{
    if (link != NULL)
        link->ops->close(link);
}
