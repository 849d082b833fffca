/* The request that all clients send. */
#ifndef REQUEST_H
#define REQUEST_H

#include <stddef.h>

enum { COUNTER_BYTES = 8 };
void prepare_request(void);
size_t request_bytes(void);
long send_request(int fd, const char *counter, size_t num_sent);

#endif
