// Calls with one answer. They change nothing, so one whose connection is lost is asked again until its deadline.
#include "common/client/client_impl.h"

#include "common/base/time.h"

static uint32_t
ms_left(bt_time deadline)
{
    bt_time left = deadline - bt_time_now();

    return left > 0 ? (uint32_t)(left / BT_MILLISECOND + 1) : 1;
}

static bt_err
ask_once(bt_client *client, bt_gateway_method method, bt_str body, bt_time deadline, bt_gateway_reply *out, bt_why *why)
{
    size_t used = client->write.used; // the body stays for another attempt
    bt_gateway_request request = {
        .id = ++client->last_id, .method = method, .timeout_ms = ms_left(deadline), .name = {"", 0}, .body = body};
    bt_err err;

    if ((err = bt_client_connect(client, deadline, why)) == BT_OK &&
        (err = bt_client_send(client, &request, deadline, why)) == BT_OK &&
        (err = bt_client_await(client, request.id, out, deadline, why)) == BT_OK) {
        err = bt_client_note(client, &out->status, why);
    }
    client->write.used = used;
    return err;
}

static bt_err
ask(bt_client *client, bt_gateway_method method, bt_err packed, bt_str body, bt_gateway_reply *out, bt_why *why)
{
    bt_time deadline = bt_client_deadline(client, 0);
    bt_err err;

    if (packed != BT_OK)
        return bt_client_fail(client, packed, why, "more than a call may ask for");
    do {
        err = ask_once(client, method, body, deadline, out, why);
    } while (err == BT_ERR_PEER && client->sp == NULL && bt_time_now() < deadline);
    return err;
}

// What was understood of the answer.
static bt_err
end(bt_client *client, bt_err err, bt_why *why)
{
    return err == BT_OK ? BT_OK : bt_client_fail(client, BT_ERR_PEER, why, "the router's answer makes no sense");
}

bt_err
bt_client_tokenize(bt_client *client, const bt_gateway_tokenize *tokenize, bt_gateway_tokenized *out, bt_why *why)
{
    bt_gateway_reply reply;
    bt_str body = {"", 0};
    bt_err err;

    bt_wire_scratch_reset(&client->write);
    err = bt_gateway_pack_tokenize(&body, tokenize, &client->write);
    err = ask(client, BT_GATEWAY_TOKENIZE, err, body, &reply, why);
    return err != BT_OK ? err : end(client, bt_gateway_read_tokenized(out, reply.body, &client->read), why);
}

bt_err
bt_client_detokenize(bt_client *client, const bt_gateway_detokenize *detokenize, bt_str *out, bt_why *why)
{
    bt_gateway_reply reply;
    bt_str body = {"", 0};
    bt_err err;

    bt_wire_scratch_reset(&client->write);
    err = bt_gateway_pack_detokenize(&body, detokenize, &client->write);
    err = ask(client, BT_GATEWAY_DETOKENIZE, err, body, &reply, why);
    return err != BT_OK ? err : end(client, bt_gateway_read_text(out, reply.body, &client->read), why);
}

bt_err
bt_client_models(bt_client *client, const bt_gateway_model **out, uint32_t *count, bt_why *why)
{
    bt_gateway_reply reply;
    bt_err err;

    bt_wire_scratch_reset(&client->write);
    err = ask(client, BT_GATEWAY_MODELS, BT_OK, (bt_str){"", 0}, &reply, why);
    return err != BT_OK ? err : end(client, bt_gateway_read_models(out, count, reply.body, &client->read), why);
}

bt_err
bt_client_health(bt_client *client, bt_gateway_state *out, bt_why *why)
{
    bt_gateway_reply reply;
    bt_err err;

    bt_wire_scratch_reset(&client->write);
    err = ask(client, BT_GATEWAY_HEALTH, BT_OK, (bt_str){"", 0}, &reply, why);
    return err != BT_OK ? err : end(client, bt_gateway_read_health(out, reply.body, &client->read), why);
}

bt_err
bt_client_stats(bt_client *client, bt_gateway_stats *out, bt_why *why)
{
    bt_gateway_reply reply;
    bt_err err;

    bt_wire_scratch_reset(&client->write);
    err = ask(client, BT_GATEWAY_STATS, BT_OK, (bt_str){"", 0}, &reply, why);
    return err != BT_OK ? err : end(client, bt_gateway_read_stats(out, reply.body, &client->read), why);
}
