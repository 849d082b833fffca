/* What is asked of the engine. Bodies are not parsed: keys are looked up, so prompts must not contain them. A prompt
 * begins with what the load generator asks of the engine, because a prompt is the one thing that every router passes on:
 * "interval_us=10000 prefill_us=0". */
#define _GNU_SOURCE
#include "requests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "answers.h"

/* Of a long body only the two ends are searched: the middle is the prompt. */
enum { SEARCHED_BYTES = 24 << 10, DEFAULT_TOKENS = 16 };

static const char MODELS[] = "{\"object\":\"list\",\"data\":[{\"id\":\"stub\",\"object\":\"model\",\"created\":1764000000,"
                             "\"owned_by\":\"stub\",\"root\":\"stub\",\"parent\":null,\"max_model_len\":131072}],"
                             "\"model_path\":\"stub\",\"version\":\"0\",\"status\":\"ok\"}";

static const char *value_between(const char *text, const char *end, const char *key) {
    size_t length = strlen(key);
    while ((text = memmem(text, end - text, key, length))) {
        text += length;
        while (text < end && *text == ' ') text++;
        if (text == end || *text != ':') continue;
        do text++;
        while (text < end && *text == ' ');
        return text < end ? text : NULL;
    }
    return NULL;
}

/* The first byte of a key's value; NULL if the body has no such key. */
static const char *value_of(const char *body, size_t num_bytes, const char *key) {
    const char *end = body + num_bytes;
    if (num_bytes <= 2 * SEARCHED_BYTES) return value_between(body, end, key);
    const char *found = value_between(body, body + SEARCHED_BYTES, key);
    return found ? found : value_between(end - SEARCHED_BYTES, end, key);
}

static bool is_true(const char *body, size_t num_bytes, const char *key) {
    const char *value = value_of(body, num_bytes, key);
    return value && *value == 't';
}

static long tokens_asked(const char *body, size_t num_bytes) {
    static const char *const keys[] = {"\"max_tokens\"", "\"max_completion_tokens\""};
    for (int which = 0; which < 2; which++) {
        const char *value = value_of(body, num_bytes, keys[which]);
        if (value && *value != 'n') return atol(value) < 1 ? 1 : atol(value);
    }
    return DEFAULT_TOKENS;
}

/* How long P takes; sets how long D takes for a token. Both are 0 if the prompt does not say. */
static uint64_t pace(Connection *connection, const char *body, size_t num_bytes) {
    unsigned long long interval_us = 0, prefill_us = 0;
    char words[96] = "";
    const char *found = memmem(body, num_bytes < SEARCHED_BYTES ? num_bytes : SEARCHED_BYTES, "interval_us=", 12);
    if (found) {
        size_t rest = body + num_bytes - found;
        memcpy(words, found, rest < sizeof words ? rest : sizeof words - 1);
        sscanf(words, "interval_us=%llu prefill_us=%llu", &interval_us, &prefill_us);
    }
    connection->interval_ns = interval_us * 1000;
    return prefill_us * 1000;
}

static void count_decode(const char *body, size_t num_bytes, bool bootstrap) {
    bool has_blocks = is_true(body, num_bytes, "\"do_remote_prefill\"") && value_of(body, num_bytes, "\"remote_block_ids\"");
    if (bootstrap || has_blocks) counters.decodes_with_kv++;
    else counters.decodes_without_kv++;
}

static void complete(Connection *connection, const char *body, size_t num_bytes) {
    counters.requests++;
    connection->prompt_bytes = num_bytes;
    uint64_t prefill_ns = pace(connection, body, num_bytes);
    if (is_true(body, num_bytes, "\"do_remote_decode\"")) {
        counters.prefills++;
        connection->state = PREFILLING;
        set_timer(&connection->timer, now_ns() + prefill_ns);
        return;
    }
    bool bootstrap = value_of(body, num_bytes, "\"bootstrap_room\"") != NULL;
    long num_tokens = tokens_asked(body, num_bytes);
    counters.bootstraps += bootstrap;
    if (bootstrap && connection->role == 'P') {
        num_tokens = 1;
        connection->interval_ns = prefill_ns;
    }
    if (connection->role == 'D') count_decode(body, num_bytes, bootstrap);
    if (!is_true(body, num_bytes, "\"stream\"")) {
        send_completion(connection, num_tokens, false);
        return;
    }
    connection->state = STREAMING;
    connection->tokens_left = num_tokens;
    connection->has_begun = false;
    set_timer(&connection->timer, now_ns() + connection->interval_ns);
}

static void send_counters(Connection *connection) {
    char body[512];
    int length = snprintf(body, sizeof body,
                          "{\"requests\":%llu,\"prefills\":%llu,\"decodes_with_kv\":%llu,\"decodes_without_kv\":%llu,"
                          "\"bootstraps\":%llu,\"tokens\":%llu,\"connections\":%llu,\"aborted\":%llu}",
                          counters.requests, counters.prefills, counters.decodes_with_kv, counters.decodes_without_kv,
                          counters.bootstraps, counters.tokens, counters.connections, counters.aborted);
    send_json(connection, body, length);
}

static void route(Connection *connection, const char *head, const char *body, size_t num_bytes) {
    static const char CHAT[] = "POST /v1/chat/completions ", TEXT[] = "POST /v1/completions ";
    connection->chat = !strncmp(head, CHAT, sizeof CHAT - 1);
    if (connection->chat || !strncmp(head, TEXT, sizeof TEXT - 1)) complete(connection, body, num_bytes);
    else if (!strncmp(head, "GET /stub/counters ", 19)) send_counters(connection);
    else send_json(connection, MODELS, sizeof MODELS - 1); /* whatever a router wants to know of its workers */
}

static size_t content_length(const char *head, const char *end) {
    static const char NAME[] = "\ncontent-length:";
    for (const char *at = head; (at = memchr(at, '\n', end - at)); at++)
        if (!strncasecmp(at, NAME, sizeof NAME - 1)) return strtoul(at + sizeof NAME - 1, NULL, 10);
    return 0;
}

/* Begins with the next request of a connection that has answered all before it, if the request is complete. */
void take_requests(Connection *connection) {
    Buffer *in = &connection->in;
    while (!connection->closed && connection->state == IDLE && in->begin < in->end) {
        const char *head = in->bytes + in->begin;
        const char *body = memmem(head, in->end - in->begin, "\r\n\r\n", 4);
        if (!body) return;
        body += 4;
        size_t num_bytes = content_length(head, body);
        size_t whole = (body - head) + num_bytes;
        if (in->end - in->begin < whole) return;
        in->begin += whole;
        route(connection, head, body, num_bytes);
    }
}
