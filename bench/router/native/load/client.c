/* One client: it connects, sends its request, and reads the answer. Connections are kept. */
#define _GNU_SOURCE
#include "client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "load.h"
#include "request.h"
#include "samples.h"

enum { MAX_EVENTS = 512, OTHER_LINE = -1 };

typedef enum { FREE, SENDING, HEAD, BODY, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, BROKEN } State;

/* A request and what has come of its answer. */
typedef struct {
    State state;
    uint64_t due_ns, first_ns, last_ns;
    char counter[COUNTER_BYTES + 1];
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

static const char DATA[] = "data: ";
static int poll_fd;
static Client **free_clients;
int num_free;

/* Makes all clients, which have no connection and nothing to do. */
void make_clients(void) {
    Client *clients = calloc(options.num_connections, sizeof *clients);
    free_clients = calloc(options.num_connections, sizeof *free_clients);
    if (!clients || !free_clients) abort();
    poll_fd = epoll_create1(0);
    for (int which = 0; which < options.num_connections; which++) {
        clients[which].fd = -1;
        free_clients[num_free++] = &clients[which];
    }
}

static void watch(Client *client, bool wants_to_write, int operation) {
    struct epoll_event event = {.events = EPOLLIN | (wants_to_write ? EPOLLOUT : 0), .data.ptr = client};
    client->wants_to_write = wants_to_write;
    epoll_ctl(poll_fd, operation, client->fd, &event);
}

static void disconnect(Client *client) {
    close(client->fd);
    client->fd = -1;
}

static bool connect_to_router(Client *client) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(options.port)};
    int on = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    client->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(client->fd, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS) {
        disconnect(client);
        return false;
    }
    watch(client, true, EPOLL_CTL_ADD);
    return true;
}

static bool is_right(const Client *client) {
    /* A stream of a chat has one more event, which has the role, and the end mark. */
    return options.stream ? client->now.is_done && client->now.num_events == options.max_tokens + 1 : client->now.has_choices;
}

static void count_answer(const Client *client, uint64_t now) {
    totals.answered++;
    add_sample(&latencies, now - client->now.due_ns);
    add_sample(&first_events, (options.stream ? client->now.first_ns : now) - client->now.due_ns);
    totals.chunks += client->now.num_chunks;
    totals.events += client->now.num_events + client->now.is_done;
}

static void count_failure(const Client *client, bool broken) {
    totals.failed++;
    if (broken) totals.broken++;
    else if (client->now.status == 200) totals.cut_short++;
    else totals.bad_status++;
}

static void end_request(Client *client, bool broken) {
    bool answered = !broken && client->now.status == 200 && is_right(client);
    if (in_window && answered) count_answer(client, now_ns());
    else if (in_window) count_failure(client, broken);
    if ((broken || client->now.closes) && client->fd >= 0) {
        disconnect(client);
        totals.reconnects++;
    }
    client->now.state = FREE;
    free_clients[num_free++] = client;
}

static void send_more(Client *client) {
    long sent = send_request(client->fd, client->now.counter, client->now.num_sent);
    if (sent < 0 && errno != EAGAIN && errno != ENOTCONN) {
        end_request(client, true);
        return;
    }
    if (sent > 0) client->now.num_sent += sent;
    bool whole = client->now.num_sent == request_bytes();
    if (whole) client->now.state = HEAD;
    if (client->wants_to_write == whole) watch(client, !whole, EPOLL_CTL_MOD);
}

/* Has a client that is free send the next request. Its time counts from due_ns on. */
void begin_request(uint64_t due_ns) {
    Client *client = free_clients[--num_free];
    client->now = (Request){.state = SENDING, .due_ns = due_ns, .left = -1};
    client->length = 0;
    snprintf(client->now.counter, sizeof client->now.counter, "%08lu", totals.started++ % 100000000);
    if (client->fd >= 0) {
        send_more(client);
    } else if (!connect_to_router(client)) { /* else it is sent when the connection is there */
        totals.refused++;
        end_request(client, true);
    }
}

static void count_events(Client *client, long num_events, uint64_t now) {
    if (!client->now.first_ns) client->now.first_ns = now;
    else if (in_window) add_sample(&gaps, now - client->now.last_ns);
    for (long more = 1; more < num_events && in_window; more++) add_sample(&gaps, 0);
    client->now.last_ns = now;
    client->now.num_events += num_events;
    if (in_window) totals.tokens += num_events;
}

/* Counts the lines of a body that begin with "data: "; they may come in pieces. */
static void take_events(Client *client, const char *at, size_t length, uint64_t now) {
    const char *end = at + length;
    long found = 0;
    while (at < end) {
        if (client->now.matched == OTHER_LINE) {
            at = memchr(at, '\n', end - at);
            if (!at) break;
            at++;
            client->now.matched = 0;
        } else if (client->now.matched == sizeof DATA - 1) {
            if (*at == '[') client->now.is_done = true;
            else found++;
            client->now.matched = OTHER_LINE;
        } else if (*at == DATA[client->now.matched]) {
            client->now.matched++;
            at++;
        } else {
            at += *at == '\n';
            client->now.matched = at[-1] == '\n' ? 0 : OTHER_LINE;
        }
    }
    if (found) count_events(client, found, now);
}

static void take_body(Client *client, const char *bytes, size_t length, uint64_t now) {
    if (options.stream) take_events(client, bytes, length, now);
    else if (!client->now.has_choices) client->now.has_choices = memmem(bytes, length, "\"choices\"", 9) != NULL;
}

/* Reads the head, which is whole and ends at end. */
static void take_head(Client *client, char *head, char *end) {
    end[-2] = 0;
    client->now.status = atoi(head + sizeof "HTTP/1.1" - 1);
    const char *length = strcasestr(head, "\r\ncontent-length:");
    const char *coding = strcasestr(head, "\r\ntransfer-encoding: chunked");
    client->now.closes = strcasestr(head, "\r\nconnection: close") != NULL;
    client->now.left = length ? atol(length + sizeof "\r\ncontent-length:" - 1) : -1;
    client->now.state = coding ? CHUNK_SIZE : BODY;
}

static size_t take_part(Client *client, const char *at, size_t length, uint64_t now) {
    size_t part = client->now.left < 0 || (size_t)client->now.left > length ? length : (size_t)client->now.left;
    take_body(client, at, part, now);
    if (client->now.left >= 0) client->now.left -= part;
    return part;
}

/* Takes one piece of what has been read; returns how long it is, and 0 if more has to be read first. */
static size_t take_piece(Client *client, char *at, size_t length, uint64_t now) {
    char *end;
    size_t part;
    switch (client->now.state) {
    case HEAD:
        end = memmem(at, length, "\r\n\r\n", 4);
        if (!end) return 0;
        take_head(client, at, end + 4);
        return end + 4 - at;
    case BODY:
        return take_part(client, at, length, now);
    case CHUNK_SIZE:
        end = memchr(at, '\n', length);
        if (!end) return 0;
        client->now.left = strtol(at, NULL, 16);
        client->now.num_chunks += client->now.left > 0;
        client->now.state = client->now.left ? CHUNK : TRAILER;
        return end + 1 - at;
    case CHUNK:
        part = take_part(client, at, length, now);
        if (!client->now.left) client->now.state = CHUNK_END;
        return part;
    case CHUNK_END:
    case TRAILER:
        if (length < 2) return 0;
        client->now.state = client->now.state == TRAILER ? BODY : CHUNK_SIZE;
        client->now.left = 0;
        return 2;
    default:
        client->now.state = BROKEN;
        return 0;
    }
}

/* Takes all that has been read; returns whether the answer has ended. */
static bool take_all(Client *client, uint64_t now) {
    size_t at = 0, taken;
    while (at < client->length) {
        taken = take_piece(client, client->bytes + at, client->length - at, now);
        if (!taken) break;
        at += taken;
        if (client->now.state == BODY && client->now.left == 0) return true;
    }
    memmove(client->bytes, client->bytes + at, client->length - at);
    client->length -= at;
    return false;
}

static void read_closed(Client *client, bool orderly) {
    if (client->now.state == FREE) {
        disconnect(client);
        totals.reconnects++;
    } else {
        client->now.closes = true;
        end_request(client, !(orderly && client->now.state == BODY && client->now.left < 0));
    }
}

static void read_more(Client *client) {
    while (client->fd >= 0) {
        ssize_t got = recv(client->fd, client->bytes + client->length, sizeof client->bytes - client->length - 1, 0);
        if (got < 0 && errno == EAGAIN) return;
        if (got <= 0) {
            read_closed(client, got == 0);
            return;
        }
        client->length += got;
        client->bytes[client->length] = 0;
        if (take_all(client, now_ns())) {
            end_request(client, false);
            return;
        }
        if (client->now.state == BROKEN || client->length == sizeof client->bytes - 1) {
            end_request(client, true);
            return;
        }
    }
}

void handle_events(uint64_t timeout_ns) {
    struct epoll_event events[MAX_EVENTS];
    struct timespec timeout = {.tv_nsec = timeout_ns};
    int num_events = epoll_pwait2(poll_fd, events, MAX_EVENTS, &timeout, NULL);
    for (int index = 0; index < num_events; index++) {
        Client *client = events[index].data.ptr;
        if (client->fd >= 0 && events[index].events & EPOLLOUT) {
            if (client->now.state == SENDING) send_more(client);
            else watch(client, false, EPOLL_CTL_MOD);
        }
        if (client->fd >= 0 && events[index].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_more(client);
    }
}
