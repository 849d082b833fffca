/* The clock, and a heap of timers. */
#ifndef TIMERS_H
#define TIMERS_H

#include <stdint.h>

enum { NOT_TIMED = -1 };

typedef struct {
    uint64_t due_ns;
    int place; /* in the heap, or NOT_TIMED */
} Timer;

uint64_t now_ns(void);
void set_timer(Timer *timer, uint64_t due_ns);
void clear_timer(Timer *timer);
Timer *earliest(void);

#endif
