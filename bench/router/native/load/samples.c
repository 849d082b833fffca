/* Times that were measured, and their percentiles. */
#include "samples.h"

#include <stdio.h>
#include <stdlib.h>

struct Samples {
    uint64_t *ns;
    size_t length, capacity;
};

Samples latencies, first_events, gaps;

void add_sample(Samples *samples, uint64_t ns) {
    if (samples->length == samples->capacity) {
        samples->capacity = 2 * samples->capacity + 65536;
        samples->ns = realloc(samples->ns, samples->capacity * sizeof *samples->ns);
        if (!samples->ns) abort();
    }
    samples->ns[samples->length++] = ns;
}

static int compare(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static double percentile_us(const Samples *sorted, double part) {
    return sorted->length ? sorted->ns[(size_t)(part * (sorted->length - 1))] / 1e3 : 0;
}

/* Prints two members of a JSON object, each with a comma behind it. Sorts the samples. */
void print_percentiles(const char *name, Samples *samples) {
    qsort(samples->ns, samples->length, sizeof *samples->ns, compare);
    printf("\"%s_p50_us\":%.1f,\"%s_p99_us\":%.1f,", name, percentile_us(samples, .5), name, percentile_us(samples, .99));
}
