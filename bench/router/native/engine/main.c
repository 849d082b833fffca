/* Stub engines: they answer at once, or at the pace that the prompt asks for. One thread, loopback only.
 *
 *     engine P:18101 P:18102 D:18201 D:18202
 *
 * POST /v1/completions and /v1/chat/completions
 *     with kv_transfer_params.do_remote_decode: P's answer, whose kv_transfer_params D needs
 *     with bootstrap_room, on a P (SGLang): an answer of one token
 *     else: max_tokens tokens, as one answer or, with stream, in one write for each token
 * GET /stub/counters: what was asked of all of them. Any other GET: a list of models. */
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "answers.h"
#include "requests.h"

static void go_on(Connection *connection) {
    uint64_t due_ns = connection->timer.due_ns;
    if (connection->state == PREFILLING) {
        clear_timer(&connection->timer);
        connection->state = IDLE;
        send_completion(connection, 1, true);
    } else {
        send_token(connection);
        if (connection->state == STREAMING && !connection->closed) {
            if (connection->interval_ns) set_timer(&connection->timer, due_ns + connection->interval_ns);
            else if (connection->blocked) clear_timer(&connection->timer); /* until the peer takes bytes again */
            else set_timer(&connection->timer, now_ns());                  /* one token a round for each */
        }
    }
    if (connection->state == IDLE) take_requests(connection);
}

static int wait_for_work(void) {
    const Timer *first = earliest();
    if (!first) return wait_for_events(0, 0);
    uint64_t now = now_ns();
    return wait_for_events(1, first->due_ns > now ? first->due_ns - now : 0);
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    prepare_answers();
    open_poll();
    for (int which = 1; which < argc; which++) listen_on(argv[which][0], atoi(argv[which] + 2));
    puts("ready");
    fflush(stdout);
    for (;;) {
        int num_events = wait_for_work();
        for (int index = 0; index < num_events; index++) {
            Connection *connection = take_event(index);
            if (connection) take_requests(connection);
        }
        uint64_t now = now_ns();
        for (Timer *first; (first = earliest()) && first->due_ns <= now;) go_on(connection_of(first));
        free_closed();
    }
}
