/* The request: the same bytes for all, but for a counter at the beginning of the prompt, so that no two prompts are
 * equal. It is sent from three places, so that a long prompt is never copied. */
#define _GNU_SOURCE
#include "request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "load.h"

enum { NUM_PARTS = 3 };

static char *before, *after;
static size_t before_bytes, after_bytes;

/* What the stub engines read of the prompt, and words up to its size. */
static char *prompt_text(void) {
    char *text = malloc(options.prompt_bytes + 128);
    if (!text) abort();
    int length = sprintf(text, " interval_us=%ld prefill_us=%ld ", options.interval_us, options.prefill_us);
    for (long at = length; at < options.prompt_bytes - COUNTER_BYTES; at++)
        text[length++] = at % 6 == 5 ? ' ' : 'a' + (at * 7 / 3) % 26;
    text[length] = 0;
    return text;
}

void prepare_request(void) {
    static const char BODY[] = "{\"model\":\"stub\",\"messages\":[{\"role\":\"user\",\"content\":\"";
    char *prompt = prompt_text();
    int tail = asprintf(&after, "%s\"}],\"max_tokens\":%ld,\"temperature\":0.7,\"stream\":%s}", prompt, options.max_tokens,
                        options.stream ? "true" : "false");
    int head = asprintf(&before,
                        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nuser-agent: load\r\naccept: */*\r\n"
                        "content-type: application/json\r\nauthorization: Bearer none\r\ncontent-length: %zu\r\n\r\n%s",
                        options.port, sizeof BODY - 1 + COUNTER_BYTES + tail, BODY);
    if (tail < 0 || head < 0) abort();
    before_bytes = head;
    after_bytes = tail;
    free(prompt);
}

size_t request_bytes(void) { return before_bytes + COUNTER_BYTES + after_bytes; }

/* Sends what is left of a request with this counter, of which num_sent bytes are sent; returns how many bytes the socket
 * took, or -1 with errno. */
long send_request(int fd, const char *counter, size_t num_sent) {
    struct iovec all[NUM_PARTS] = {
        {before, before_bytes}, {(void *)counter, COUNTER_BYTES}, {after, after_bytes}};
    size_t skip = num_sent;
    int first = 0;
    for (; first < NUM_PARTS && skip >= all[first].iov_len; first++) skip -= all[first].iov_len;
    all[first].iov_base = (char *)all[first].iov_base + skip;
    all[first].iov_len -= skip;
    struct msghdr message = {.msg_iov = all + first, .msg_iovlen = NUM_PARTS - first};
    return sendmsg(fd, &message, MSG_NOSIGNAL);
}
