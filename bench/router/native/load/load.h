/* HTTP load on one router: what its files share. */
#ifndef LOAD_H
#define LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int port;
    int num_connections;    /* closed loop: as many requests at a time; open loop: at most */
    double rate;            /* open loop: requests a second on average; 0 is a closed loop */
    double warm_s, seconds; /* before the window, and of the window */
    long max_tokens;
    bool stream;
    long prompt_bytes, interval_us, prefill_us;
} Options;

typedef enum { FREE, SENDING, HEAD, BODY, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, BROKEN } State;

/* A request and what has come of its answer. */
typedef struct {
    State state;
    uint64_t due_ns, first_ns, last_ns;
    char counter[9];
    size_t num_sent;
    long left; /* bytes of the body or of its chunk; -1 is a body that ends with the connection */
    int status;
    bool closes, has_choices, is_done;
    int matched; /* place in "data: " of a line that may begin so, or OTHER_LINE */
    long num_events, num_chunks;
} Request;

typedef struct {
    int fd;
    bool wants_to_write;
    Request now;
    size_t length; /* of what was read and not yet taken */
    char bytes[16384];
} Client;

typedef struct {
    unsigned long started, answered, failed, bad_status, cut_short, refused, broken, reconnects, tokens, events, chunks;
    int last_bad_status;
} Totals;

extern Options options;
extern Totals totals;
/* Only what happens in the window counts. */
extern bool in_window;

uint64_t now_ns(void);

/* request.c */
enum { COUNTER_BYTES = 8 };
void prepare_request(void);
size_t request_bytes(void);
long send_request(const Client *client);

/* client.c */
void open_poll(void);
void begin_request(Client *client, uint64_t due_ns);
void handle_events(uint64_t timeout_ns);

/* main.c: a client has nothing to do any more */
void client_is_free(Client *client);

/* samples.c */
typedef struct Samples Samples;
extern Samples latencies, first_events, gaps;
void add_sample(Samples *samples, uint64_t ns);
void print_percentiles(const char *name, Samples *samples);

#endif
