/* Memory that is there, or the program ends; and buffers that grow. */
#ifndef MEMORY_H
#define MEMORY_H

#include <stddef.h>

typedef struct {
    char *bytes;
    size_t begin, end, capacity;
} Buffer;

void *must_alloc(void *old, size_t num_bytes);
void reserve(Buffer *buffer, size_t num_bytes);

#endif
