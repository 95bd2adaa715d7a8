// Several links with one peer each as one link: peer i is member i. With loopbacks as members, programs of a cluster meet in one process.
#pragma once

#include "common/node/link.h"

#define BT_BUNDLE_MAX 64

// The members, 1 … BT_BUNDLE_MAX, are the bundle's from here on, and closed with it; on an error they stay the caller's.
bt_err bt_bundle_open(bt_link **out, bt_link *const *members, uint32_t count);
