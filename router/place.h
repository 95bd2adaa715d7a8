// Which decode node a request goes to.
//
// Cost = blocks in use and to come + active sequences, integers, so that decisions replay; ties by a seeded hash of the session (or
// request) and the node's name, which pins sessions softly. A node that is full takes a few more into its own queue, so that its next
// step never waits for a message of ours; the rest stays here, in our order. Pure.
#pragma once

#include "router/registry.h"

// BT_REQUEST_NONE when no node should be given it now.
uint32_t bt_place_decode(const bt_registry *registry, const bt_request *request, uint64_t seed, bt_time now);
