/* One connection of a stub engine. The rules of each file are at its top. */
#ifndef CONNECTION_H
#define CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NOT_TIMED = -1 };

typedef enum { IDLE, PREFILLING, STREAMING } State;

typedef struct {
    char *bytes;
    size_t begin, end, capacity;
} Buffer;

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
    uint64_t interval_ns, due_ns;
    size_t prompt_bytes;
    int timer; /* place in the heap of timers, or NOT_TIMED */
} Connection;

typedef struct {
    unsigned long long requests, prefills, decodes_with_kv, decodes_without_kv, bootstraps, tokens, connections, aborted;
} Counters;

extern Counters counters;

uint64_t now_ns(void);
void *must_alloc(void *old, size_t num_bytes);
void reserve(Buffer *buffer, size_t num_bytes);

/* connection.c */
void open_poll(void);
int wait_for_events(int timeout_set, uint64_t timeout_ns);
void take_event(int index);
void listen_on(char role, int port);
void send_bytes(Connection *connection, const char *bytes, size_t num_bytes);
void close_connection(Connection *connection);
void free_closed(void);

/* timers.c */
void set_timer(Connection *connection, uint64_t due_ns);
void clear_timer(Connection *connection);
Connection *earliest(void);

/* requests.c */
void take_requests(Connection *connection);

/* answers.c */
void prepare_answers(void);
void send_json(Connection *connection, const char *body, size_t num_bytes);
void send_completion(Connection *connection, long num_tokens, bool with_kv);
void send_token(Connection *connection);

#endif
