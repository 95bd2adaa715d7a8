// A link between two parts of one process, driven by one thread: each side's messages lie in a bounded ring until the other side's
// turn. Each end has one peer, number 0, that is up from the start.
#pragma once

#include "common/node/link.h"

// `bytes` a direction; a RESERVE may fill three quarters of it, the last quarter belongs to the other kinds. The two ends are
// closed each with bt_link_close, in any order; the end that remains sees DOWN.
bt_err bt_loopback_open(bt_link **a, bt_link **b, size_t bytes);
