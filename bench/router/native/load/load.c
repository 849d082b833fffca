/* What is to be done, what has been counted, and the clock. */
#define _GNU_SOURCE
#include "load.h"

#include <time.h>

Options options;
Totals totals;
bool in_window;

uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}
