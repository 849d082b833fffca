/* One connection of a stub engine: what it has read and is to send, and the answer in progress. */
#ifndef CONNECTION_H
#define CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "memory.h"
#include "timers.h"

typedef enum { IDLE, PREFILLING, STREAMING } State;

typedef struct {
    int fd, port;
    char role;     /* 'P' or 'D' */
    bool listens;  /* it takes connections, and is none */
    bool closed;   /* freed at the end of the round */
    bool blocked;  /* the peer takes no more bytes for now */
    State state;
    Buffer in, out;
    /* The answer in progress. */
    bool chat, has_begun;
    long tokens_left;
    uint64_t interval_ns;
    size_t prompt_bytes;
    Timer timer; /* when it has something to send */
} Connection;

typedef struct {
    unsigned long long requests, prefills, decodes_with_kv, decodes_without_kv, bootstraps, tokens, connections, aborted;
} Counters;

extern Counters counters;

void open_poll(void);
int wait_for_events(int timeout_set, uint64_t timeout_ns);
Connection *take_event(int index);
void listen_on(char role, int port);
void send_bytes(Connection *connection, const char *bytes, size_t num_bytes);
void close_connection(Connection *connection);
void free_closed(void);

/* The connection of a timer. */
static inline Connection *connection_of(Timer *timer) {
    return (Connection *)((char *)timer - offsetof(Connection, timer));
}

#endif
