/* HTTP load on one router, from one thread, over loopback.
 *
 *     load PORT CONNECTIONS RATE WARM_S SECONDS MAX_TOKENS STREAM PROMPT_BYTES INTERVAL_US PREFILL_US
 *
 * A RATE of 0 is a closed loop: each connection has a request at all times. Else requests come by a Poisson process, and
 * their time counts from when they were due. The last two are for the stub engines.
 *
 * It prints "begin" and "end" at both ends of the window in which it counts, and a JSON object when all has ended. */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "client.h"
#include "load.h"
#include "request.h"
#include "samples.h"

enum { NUM_ARGUMENTS = 10 };
static const uint64_t SECOND_NS = 1000000000, LONGEST_WAIT_NS = 50000000, DRAIN_NS = 10 * SECOND_NS;

static uint64_t next_due_ns;

static void read_options(char **argv) {
    options = (Options){.port = atoi(argv[0]),
                        .num_connections = atoi(argv[1]),
                        .rate = atof(argv[2]),
                        .warm_s = atof(argv[3]),
                        .seconds = atof(argv[4]),
                        .max_tokens = atol(argv[5]),
                        .stream = atoi(argv[6]),
                        .prompt_bytes = atol(argv[7]),
                        .interval_us = atol(argv[8]),
                        .prefill_us = atol(argv[9])};
}

/* Begins all requests that are due. A client whose connection fails at once is free again, and is not tried twice. */
static void begin_due(uint64_t now) {
    for (int tries = num_free; tries && num_free && (!options.rate || next_due_ns <= now); tries--) {
        begin_request(options.rate ? next_due_ns : now);
        if (options.rate) next_due_ns += -log(1 - drand48()) * SECOND_NS / options.rate;
    }
}

static uint64_t until_next_ns(uint64_t now) {
    if (!options.rate || !num_free || next_due_ns > now + LONGEST_WAIT_NS) return LONGEST_WAIT_NS;
    return next_due_ns > now ? next_due_ns - now : 0;
}

static void say(const char *word) {
    puts(word);
    fflush(stdout);
}

static void load_until(uint64_t end_ns) {
    for (uint64_t now; (now = now_ns()) < end_ns;) {
        begin_due(now);
        handle_events(until_next_ns(now));
    }
}

/* Waits until all requests have ended, so that the next load finds a router without any. */
static void drain(void) {
    uint64_t end_ns = now_ns() + DRAIN_NS;
    while (num_free < options.num_connections && now_ns() < end_ns) handle_events(LONGEST_WAIT_NS);
}

static void print_result(double seconds) {
    printf("{\"seconds\":%.4f,\"started\":%lu,\"answered\":%lu,\"failed\":%lu,\"bad_status\":%lu,"
           "\"cut_short\":%lu,\"refused\":%lu,\"broken\":%lu,\"reconnects\":%lu,\"tokens\":%lu,\"events\":%lu,\"chunks\":%lu,",
           seconds, totals.started, totals.answered, totals.failed, totals.bad_status,
           totals.cut_short, totals.refused, totals.broken, totals.reconnects, totals.tokens, totals.events, totals.chunks);
    print_percentiles("latency", &latencies);
    print_percentiles("ttft", &first_events);
    print_percentiles("itl", &gaps);
    printf("\"unfinished\":%d}\n", options.num_connections - num_free);
}

int main(int argc, char **argv) {
    if (argc != NUM_ARGUMENTS + 1) return 2;
    signal(SIGPIPE, SIG_IGN);
    srand48(1);
    read_options(argv + 1);
    prepare_request();
    make_clients();
    next_due_ns = now_ns();
    load_until(now_ns() + options.warm_s * SECOND_NS);
    say("begin");
    in_window = true;
    uint64_t begin_ns = now_ns();
    load_until(begin_ns + options.seconds * SECOND_NS);
    double seconds = (now_ns() - begin_ns) / 1e9;
    in_window = false;
    say("end");
    drain();
    print_result(seconds);
    return 0;
}
