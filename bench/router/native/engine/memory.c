/* Memory that is there, or the program ends; and buffers that grow. */
#include "memory.h"

#include <stdlib.h>

void *must_alloc(void *old, size_t num_bytes) {
    void *memory = realloc(old, num_bytes);
    if (!memory) abort();
    return memory;
}

/* Makes room for so many bytes behind the end of a buffer. */
void reserve(Buffer *buffer, size_t num_bytes) {
    if (buffer->begin == buffer->end) buffer->begin = buffer->end = 0;
    if (buffer->capacity - buffer->end >= num_bytes) return;
    buffer->capacity = 2 * (buffer->end + num_bytes);
    buffer->bytes = must_alloc(buffer->bytes, buffer->capacity);
}
