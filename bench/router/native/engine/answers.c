/* What the engine answers: whole completions, and streams of one write per token. */
#define _GNU_SOURCE
#include "answers.h"

#include <stdio.h>
#include <string.h>

#define ID "0123456789abcdef0123456789abcdef"
#define CHAT_CHUNK "data: {\"id\":\"chatcmpl-" ID "\",\"object\":\"chat.completion.chunk\",\"created\":1764000000," \
                   "\"model\":\"stub\",\"choices\":[{\"index\":0,\"delta\":{%s},\"logprobs\":null,\"finish_reason\":%s}]}\n\n"
#define TEXT_CHUNK "data: {\"id\":\"cmpl-" ID "\",\"object\":\"text_completion\",\"created\":1764000000," \
                   "\"model\":\"stub\",\"choices\":[{\"index\":0,\"text\":\"%s\",\"logprobs\":null,\"finish_reason\":%s," \
                   "\"stop_reason\":null}],\"usage\":null}\n\n"

/* A real prompt has about four bytes a token, and sixteen tokens a block. */
enum { BYTES_PER_TOKEN = 4, BYTES_PER_BLOCK = 64, MIN_BLOCKS = 3, MAX_BLOCKS = 4096, TOKEN_BYTES = 4, NUM_TEXTS = 8 };

typedef struct {
    char bytes[640];
    size_t length;
} Text;

static const char STREAM_HEAD[] = "HTTP/1.1 200 OK\r\nserver: stub\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                                  "transfer-encoding: chunked\r\n\r\n";
static const char STREAM_END[] = "e\r\ndata: [DONE]\n\n\r\n";
static const char LAST_CHUNK[] = "0\r\n\r\n";
/* The tokens of a stream differ in text and length, as those of a model do. */
static const char *const texts[NUM_TEXTS] = {" tok", " toka", " tokab", " tok b", " tok,", " tokabcd", " tok.", " tokabc"};
static Text token_chunks[NUM_TEXTS][2][2], role_chunk; /* [text][chat][last] */
static char block_ids[65536];
static size_t block_ids_end[MAX_BLOCKS + 1];

static void frame(Text *chunk, const char *event) {
    chunk->length = snprintf(chunk->bytes, sizeof chunk->bytes, "%zx\r\n%s\r\n", strlen(event), event);
}

/* Makes all that is the same in every answer. */
void prepare_answers(void) {
    char event[512], delta[64];
    for (int each = 0; each < NUM_TEXTS * 2; each++) {
        int text = each / 2, last = each % 2;
        const char *finish_reason = last ? "\"length\"" : "null";
        snprintf(event, sizeof event, TEXT_CHUNK, texts[text], finish_reason);
        frame(&token_chunks[text][false][last], event);
        snprintf(delta, sizeof delta, "\"content\":\"%s\"", texts[text]);
        snprintf(event, sizeof event, CHAT_CHUNK, delta, finish_reason);
        frame(&token_chunks[text][true][last], event);
    }
    snprintf(event, sizeof event, CHAT_CHUNK, "\"role\":\"assistant\",\"content\":\"\"", "null");
    frame(&role_chunk, event);
    for (size_t number = 1, end = 0; number <= MAX_BLOCKS; number++) {
        end += sprintf(block_ids + end, "%s%zu", number > 1 ? "," : "", number);
        block_ids_end[number] = end;
    }
}

void send_json(Connection *connection, const char *body, size_t num_bytes) {
    static Buffer whole;
    whole.begin = whole.end = 0;
    reserve(&whole, num_bytes + 256);
    int head = sprintf(whole.bytes,
                       "HTTP/1.1 200 OK\r\nserver: stub\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n",
                       num_bytes);
    memcpy(whole.bytes + head, body, num_bytes);
    send_bytes(connection, whole.bytes, head + num_bytes);
}

static char *add_choices(char *at, bool chat, long num_tokens) {
    at = stpcpy(at, chat ? "{\"id\":\"chatcmpl-" ID "\",\"object\":\"chat.completion\",\"created\":1764000000,\"model\":\"stub\","
                           "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\""
                         : "{\"id\":\"cmpl-" ID "\",\"object\":\"text_completion\",\"created\":1764000000,\"model\":\"stub\","
                           "\"choices\":[{\"index\":0,\"text\":\"");
    for (long token = 0; token < num_tokens; token++) at = stpcpy(at, " tok");
    at = stpcpy(at, chat ? "\",\"refusal\":null,\"tool_calls\":[]}" : "\"");
    return stpcpy(at, ",\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null}]");
}

/* The parameters with which D finds P's blocks, as many as a real prompt of this size would have. */
static char *add_kv_transfer_params(char *at, const Connection *connection) {
    size_t num_blocks = connection->prompt_bytes / BYTES_PER_BLOCK;
    if (num_blocks < MIN_BLOCKS) num_blocks = MIN_BLOCKS;
    if (num_blocks > MAX_BLOCKS) num_blocks = MAX_BLOCKS;
    at = stpcpy(at, ",\"kv_transfer_params\":{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_block_ids\":[[");
    at = mempcpy(at, block_ids, block_ids_end[num_blocks]);
    return at + sprintf(at,
                        "]],\"remote_engine_id\":\"engine-%d\",\"remote_request_id\":\"req-%llu\","
                        "\"remote_host\":\"127.0.0.1\",\"remote_port\":%d,\"tp_size\":1}",
                        connection->port, counters.prefills, connection->port);
}

/* A whole answer; P's has the parameters for D. */
void send_completion(Connection *connection, long num_tokens, bool with_kv) {
    static Buffer body;
    size_t prompt_tokens = connection->prompt_bytes / BYTES_PER_TOKEN;
    body.begin = body.end = 0;
    reserve(&body, num_tokens * TOKEN_BYTES + sizeof block_ids + 1024);
    char *at = add_choices(body.bytes, connection->chat, num_tokens);
    at += sprintf(at, ",\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu,\"completion_tokens\":%ld}", prompt_tokens,
                  prompt_tokens + num_tokens, num_tokens);
    if (with_kv) at = add_kv_transfer_params(at, connection);
    *at++ = '}';
    send_json(connection, body.bytes, at - body.bytes);
}

/* Sends the next token of a stream, with its head before the first and its end after the last. */
void send_token(Connection *connection) {
    if (!connection->has_begun) {
        connection->has_begun = true;
        send_bytes(connection, STREAM_HEAD, sizeof STREAM_HEAD - 1);
        if (connection->chat) send_bytes(connection, role_chunk.bytes, role_chunk.length);
    }
    bool last = --connection->tokens_left <= 0;
    const Text *chunk = &token_chunks[connection->tokens_left % NUM_TEXTS][connection->chat][last];
    send_bytes(connection, chunk->bytes, chunk->length);
    counters.tokens++;
    if (!last) return;
    send_bytes(connection, STREAM_END, sizeof STREAM_END - 1);
    send_bytes(connection, LAST_CHUNK, sizeof LAST_CHUNK - 1);
    clear_timer(&connection->timer);
    connection->state = IDLE;
}
