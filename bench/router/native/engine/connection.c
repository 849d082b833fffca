/* Sockets: taken, read, written, and closed. A closed connection is freed when the round ends, as events of the same
 * round may still name it. */
#define _GNU_SOURCE
#include "connection.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_EVENTS = 512, BACKLOG = 4096, READ_BYTES = 65536 };

Counters counters;
static int poll_fd;
static struct epoll_event events[MAX_EVENTS];
static Connection **closed;
static int num_closed, closed_capacity;

static void watch(Connection *connection, int operation) {
    struct epoll_event event = {.events = EPOLLIN | (connection->blocked ? EPOLLOUT : 0), .data.ptr = connection};
    epoll_ctl(poll_fd, operation, connection->fd, &event);
}

static Connection *add_connection(int fd, char role, int port) {
    Connection *connection = must_alloc(NULL, sizeof *connection);
    *connection = (Connection){.fd = fd, .role = role, .port = port, .timer.place = NOT_TIMED};
    watch(connection, EPOLL_CTL_ADD);
    return connection;
}

void open_poll(void) { poll_fd = epoll_create1(0); }

/* Listens on a loopback port. Ends the program if it cannot. */
void listen_on(char role, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, BACKLOG)) {
        perror("listen");
        exit(1);
    }
    add_connection(fd, role, port)->listens = true;
}

static void take_connections(const Connection *listener) {
    int fd, on = 1;
    while ((fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        add_connection(fd, listener->role, listener->port);
        counters.connections++;
    }
}

/* Waits for sockets, for as long as it is told if timeout_set; returns how many events there are. */
int wait_for_events(int timeout_set, uint64_t timeout_ns) {
    struct timespec timeout = {.tv_sec = timeout_ns / 1000000000ull, .tv_nsec = timeout_ns % 1000000000ull};
    return epoll_pwait2(poll_fd, events, MAX_EVENTS, timeout_set ? &timeout : NULL, NULL);
}

static void write_on(Connection *connection) {
    Buffer *out = &connection->out;
    ssize_t sent = send(connection->fd, out->bytes + out->begin, out->end - out->begin, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
        close_connection(connection);
        return;
    }
    if (sent > 0) out->begin += sent;
    if (out->begin < out->end) return;
    connection->blocked = false;
    watch(connection, EPOLL_CTL_MOD);
    if (connection->state == STREAMING && !connection->interval_ns) set_timer(&connection->timer, now_ns());
}

/* Returns whether there are more bytes now. */
static bool read_on(Connection *connection) {
    Buffer *in = &connection->in;
    reserve(in, READ_BYTES);
    ssize_t got = recv(connection->fd, in->bytes + in->end, in->capacity - in->end, 0);
    if (got > 0) in->end += got;
    else if (got == 0 || errno != EAGAIN) close_connection(connection);
    return got > 0;
}

/* Takes one of the events that were waited for; returns the connection that has read bytes of it, else NULL. */
Connection *take_event(int index) {
    Connection *connection = events[index].data.ptr;
    uint32_t what = events[index].events;
    if (connection->closed) return NULL;
    if (connection->listens) {
        take_connections(connection);
        return NULL;
    }
    if (what & EPOLLOUT) write_on(connection);
    bool may_read = !connection->closed && what & (EPOLLIN | EPOLLHUP | EPOLLERR);
    return may_read && read_on(connection) ? connection : NULL;
}

/* Sends at once what the socket takes; the rest follows, in order. */
void send_bytes(Connection *connection, const char *bytes, size_t num_bytes) {
    Buffer *out = &connection->out;
    if (connection->closed) return;
    if (!connection->blocked) {
        ssize_t sent = send(connection->fd, bytes, num_bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) {
            close_connection(connection);
            return;
        }
        size_t taken = sent < 0 ? 0 : sent;
        if (taken == num_bytes) return;
        bytes += taken;
        num_bytes -= taken;
        connection->blocked = true;
        watch(connection, EPOLL_CTL_MOD);
    }
    reserve(out, num_bytes);
    memcpy(out->bytes + out->end, bytes, num_bytes);
    out->end += num_bytes;
}

void close_connection(Connection *connection) {
    if (connection->closed) return;
    if (connection->state != IDLE) counters.aborted++;
    connection->closed = true;
    clear_timer(&connection->timer);
    close(connection->fd);
    if (num_closed == closed_capacity)
        closed = must_alloc(closed, (closed_capacity = 2 * closed_capacity + 64) * sizeof *closed);
    closed[num_closed++] = connection;
}

void free_closed(void) {
    while (num_closed) {
        Connection *connection = closed[--num_closed];
        free(connection->in.bytes);
        free(connection->out.bytes);
        free(connection);
    }
}
