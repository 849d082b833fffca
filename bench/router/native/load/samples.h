/* Times that were measured. */
#ifndef SAMPLES_H
#define SAMPLES_H

#include <stdint.h>

typedef struct Samples Samples;
extern Samples latencies, first_events, gaps;
void add_sample(Samples *samples, uint64_t ns);
void print_percentiles(const char *name, Samples *samples);

#endif
