/* The clock, and a binary heap of timers by the time at which each is due. */
#define _GNU_SOURCE
#include "timers.h"

#include <stddef.h>
#include <time.h>

#include "memory.h"

static Timer **heap;
static int length, capacity;

uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void put(Timer *timer, int at) {
    heap[at] = timer;
    timer->place = at;
}

static void up(int at) {
    Timer *moved = heap[at];
    for (; at && heap[(at - 1) / 2]->due_ns > moved->due_ns; at = (at - 1) / 2) put(heap[(at - 1) / 2], at);
    put(moved, at);
}

static void down(int at) {
    Timer *moved = heap[at];
    for (;;) {
        int child = 2 * at + 1;
        if (child >= length) break;
        if (child + 1 < length && heap[child + 1]->due_ns < heap[child]->due_ns) child++;
        if (heap[child]->due_ns >= moved->due_ns) break;
        put(heap[child], at);
        at = child;
    }
    put(moved, at);
}

/* Sets a timer, which may be set already. */
void set_timer(Timer *timer, uint64_t due_ns) {
    timer->due_ns = due_ns;
    if (timer->place == NOT_TIMED) {
        if (length == capacity) heap = must_alloc(heap, (capacity = 2 * capacity + 256) * sizeof *heap);
        put(timer, length++);
    }
    up(timer->place);
    down(timer->place);
}

void clear_timer(Timer *timer) {
    int at = timer->place;
    if (at == NOT_TIMED) return;
    timer->place = NOT_TIMED;
    if (at == --length) return;
    put(heap[length], at);
    up(at);
    down(heap[at]->place);
}

/* The timer that is due first; NULL if none is set. */
Timer *earliest(void) { return length ? heap[0] : NULL; }
