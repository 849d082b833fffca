/* The clients, each of which has one request at a time. */
#ifndef CLIENT_H
#define CLIENT_H

#include <stdint.h>

/* How many clients have nothing to do. */
extern int num_free;

void make_clients(void);
void begin_request(uint64_t due_ns);
void handle_events(uint64_t timeout_ns);

#endif
