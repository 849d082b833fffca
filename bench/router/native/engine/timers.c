/* A binary heap of connections by the time at which each has something to send. */
#include "connection.h"

static Connection **heap;
static int length, capacity;

static void place(Connection *connection, int at) {
    heap[at] = connection;
    connection->timer = at;
}

static void up(int at) {
    Connection *moved = heap[at];
    for (; at && heap[(at - 1) / 2]->due_ns > moved->due_ns; at = (at - 1) / 2) place(heap[(at - 1) / 2], at);
    place(moved, at);
}

static void down(int at) {
    Connection *moved = heap[at];
    for (;;) {
        int child = 2 * at + 1;
        if (child >= length) break;
        if (child + 1 < length && heap[child + 1]->due_ns < heap[child]->due_ns) child++;
        if (heap[child]->due_ns >= moved->due_ns) break;
        place(heap[child], at);
        at = child;
    }
    place(moved, at);
}

/* Sets the timer of a connection, which may have one. */
void set_timer(Connection *connection, uint64_t due_ns) {
    connection->due_ns = due_ns;
    if (connection->timer == NOT_TIMED) {
        if (length == capacity) heap = must_alloc(heap, (capacity = 2 * capacity + 256) * sizeof *heap);
        place(connection, length++);
    }
    up(connection->timer);
    down(connection->timer);
}

void clear_timer(Connection *connection) {
    int at = connection->timer;
    if (at == NOT_TIMED) return;
    connection->timer = NOT_TIMED;
    if (at == --length) return;
    place(heap[length], at);
    up(at);
    down(heap[at]->timer);
}

/* The connection whose timer is due first; NULL if none is set. */
Connection *earliest(void) { return length ? heap[0] : NULL; }
