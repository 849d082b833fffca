/* What is to be done, what has been counted, and the clock. */
#ifndef LOAD_H
#define LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int port;
    int num_connections;    /* closed loop: as many requests at a time; open loop: at most */
    double rate;            /* open loop: requests a second on average; 0 is a closed loop */
    double warm_s, seconds; /* before the window, and of the window */
    long max_tokens;
    bool stream;
    long prompt_bytes, interval_us, prefill_us;
} Options;

typedef struct {
    unsigned long started, answered, failed, bad_status, cut_short, refused, broken, reconnects, tokens, events, chunks;
} Totals;

extern Options options;
extern Totals totals;
/* Only what happens in the window counts. */
extern bool in_window;

uint64_t now_ns(void);

#endif
