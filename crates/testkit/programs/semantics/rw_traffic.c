/* See rw_test.h. This file: sockets, position-dependent byte streams, the exchange that warms a connection up. */
#include "rw_test.h"

#include <sys/resource.h>

#define WARM_ROUNDS 64
/* On a busy machine the two ends need some tens of milliseconds to find each other. */
#define WARM_PAUSE_US 900 /* RW_WARM_PAUSE_US says otherwise */
#define WARM_BYTES 32
#define STREAM_PIECE 16384
/* A connection without room for so long has none. Longer than a blocked sender waits before it looks for another way. */
#define FULL_AFTER_MS 40

/* ---- sockets ---- */

void rw_nonblocking(int descriptor, bool on)
{
    int flags = (int)MUST(fcntl(descriptor, F_GETFL));
    MUST(fcntl(descriptor, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK));
}

void rw_nodelay(int socket)
{
    int on = 1;
    MUST(setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
}

int rw_listen(uint16_t *port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    int listener = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(bind(listener, (struct sockaddr *)&address, sizeof address));
    MUST(listen(listener, 128));
    MUST(getsockname(listener, (struct sockaddr *)&address, &length));
    *port = ntohs(address.sin_port);
    return listener;
}

int rw_connect(uint16_t port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int made = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(made, (struct sockaddr *)&address, sizeof address));
    return made;
}

/* ---- streams ---- */

static uint8_t stream_byte(unsigned stream, size_t at)
{
    uint64_t x = (at >> 3) + ((uint64_t)stream << 40);
    /* splitmix64: one word serves eight positions */
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return (uint8_t)(x >> (8 * (at & 7)));
}

void rw_fill(void *bytes, size_t length, unsigned stream, size_t at)
{
    for (size_t i = 0; i < length; i++)
        ((uint8_t *)bytes)[i] = stream_byte(stream, at + i);
}

bool rw_matches(const void *bytes, size_t length, unsigned stream, size_t at)
{
    for (size_t i = 0; i < length; i++)
        if (((const uint8_t *)bytes)[i] != stream_byte(stream, at + i))
            return false;
    return true;
}

static void wait_for(int socket, short events)
{
    struct pollfd wait = { socket, events, 0 };
    while (poll(&wait, 1, 10000) < 0 && errno == EINTR)
        ;
}

size_t rw_send_all(int socket, const void *bytes, size_t length)
{
    size_t done = 0;
    while (done < length) {
        ssize_t n = send(socket, (const char *)bytes + done, length - done, MSG_NOSIGNAL);
        if (n > 0)
            done += (size_t)n;
        else if (n < 0 && errno == EAGAIN)
            wait_for(socket, POLLOUT);
        else if (!(n < 0 && errno == EINTR))
            break;
    }
    return done;
}

size_t rw_recv_all(int socket, void *bytes, size_t length)
{
    size_t done = 0;
    while (done < length) {
        ssize_t n = recv(socket, (char *)bytes + done, length - done, 0);
        if (n > 0)
            done += (size_t)n;
        else if (n < 0 && errno == EAGAIN)
            wait_for(socket, POLLIN);
        else if (!(n < 0 && errno == EINTR))
            break;
    }
    return done;
}

void rw_send_stream(int socket, unsigned stream, size_t length)
{
    static __thread char piece[STREAM_PIECE];
    size_t at = 0;
    while (at < length) {
        size_t n = MIN_OF(sizeof piece, length - at);
        rw_fill(piece, n, stream, at);
        size_t went = rw_send_all(socket, piece, n);
        at += went;
        if (went < n)
            break;
    }
    if (at < length)
        rw_note("stream %u: sent only %zu of %zu bytes, then %s", stream, at, length, rw_errno_name(errno));
    else
        rw_note("stream %u: sent all %zu bytes", stream, length);
}

/* How far the bytes of the stream came, and whether they were right until there. */
static size_t take(int socket, unsigned stream, size_t length, bool *right)
{
    static __thread char piece[STREAM_PIECE];
    size_t at = 0;
    *right = true;
    while (at < length && *right) {
        size_t n = MIN_OF(sizeof piece, length - at);
        errno = 0;
        size_t came = rw_recv_all(socket, piece, n);
        *right = rw_matches(piece, came, stream, at);
        at += came;
        if (came < n)
            break;
    }
    return at;
}

bool rw_take_stream(int socket, unsigned stream, size_t length)
{
    bool right;
    return take(socket, stream, length, &right) == length && right;
}

void rw_recv_stream(int socket, unsigned stream, size_t length)
{
    bool right;
    size_t at = take(socket, stream, length, &right);
    if (!right)
        rw_note("stream %u: WRONG BYTES within the %u before %zu", stream, STREAM_PIECE, at);
    else if (at < length)
        rw_note("stream %u: received only %zu of %zu bytes, then %s", stream, at, length, errno ? rw_errno_name(errno) : "the end");
    else
        rw_note("stream %u: received all %zu bytes", stream, length);
}

void rw_say(int socket, const char *text)
{
    rw_note("say %s: %ld", text, (long)send(socket, text, strlen(text), MSG_NOSIGNAL));
}

void rw_expect(int socket, size_t length)
{
    char *bytes = malloc(length);
    errno = 0;
    size_t got = rw_recv_all(socket, bytes, length);
    int error = errno;
    rw_bytes("heard", bytes, (long)got);
    if (got < length)
        rw_note("then %s", error ? rw_errno_name(error) : "the end");
    free(bytes);
}

static long processor_ms(const struct rusage *used)
{
    return (used->ru_utime.tv_sec + used->ru_stime.tv_sec) * 1000 + (used->ru_utime.tv_usec + used->ru_stime.tv_usec) / 1000;
}

void rw_wait_quietly(int socket)
{
    enum { LATE_MS = 200, FEW_SLEEPS = 20, LITTLE_MS = LATE_MS / 20 };
    struct rusage before, after;
    rw_meet();
    if (rw_is_a) {
        rw_sleep_ms(LATE_MS);
        rw_say(socket, "late");
    } else {
        MUST(getrusage(RUSAGE_THREAD, &before));
        rw_expect(socket, 4);
        MUST(getrusage(RUSAGE_THREAD, &after));
        YES(after.ru_nvcsw - before.ru_nvcsw < FEW_SLEEPS);
        YES(processor_ms(&after) - processor_ms(&before) < LITTLE_MS);
    }
    rw_meet();
}

void rw_exchange(int socket)
{
    rw_meet();
    if (rw_is_a) {
        rw_say(socket, "from A");
        rw_expect(socket, 6);
    } else {
        rw_expect(socket, 6);
        rw_say(socket, "from B");
    }
    rw_meet();
}

/* Sends pieces of one size without waiting until one is refused and stays refused. */
static size_t stuff_pieces(int socket, unsigned stream, size_t at, size_t size)
{
    static __thread char piece[STREAM_PIECE];
    for (bool stays_full = false;;) {
        rw_fill(piece, size, stream, at);
        ssize_t n = send(socket, piece, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) {
            at += (size_t)n;
        } else if (n < 0 && errno == EAGAIN && !stays_full) {
            /* Room may come a moment later, when the bytes have moved on or the carrier gave way: full is what stays full. */
            struct pollfd wait = { socket, POLLOUT, 0 };
            stays_full = poll(&wait, 1, FULL_AFTER_MS) == 0;
        } else {
            if (errno != EAGAIN)
                rw_note("stuffing ended by %s", rw_errno_name(errno));
            return at;
        }
    }
}

size_t rw_stuff(int socket, unsigned stream)
{
    /* Where no large piece fits a byte may: full is where none does. */
    return stuff_pieces(socket, stream, stuff_pieces(socket, stream, 0, STREAM_PIECE), 1);
}

size_t rw_stuff_for_good(int socket, unsigned stream)
{
    static __thread char piece[STREAM_PIECE];
    struct timeval some = { 0, FULL_AFTER_MS * 1000 }, none = { 0, 0 };
    size_t at = rw_stuff(socket, stream);
    MUST(setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &some, sizeof some));
    for (;;) {
        rw_fill(piece, sizeof piece, stream, at);
        ssize_t n = send(socket, piece, sizeof piece, MSG_NOSIGNAL);
        if (n < 0)
            break;
        at += (size_t)n;
    }
    MUST(setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none));
    return at;
}

/* ---- warming up ---- */

static bool is_cold(void)
{
    const char *moment = getenv("RW_MOMENT");
    return moment && strcmp(moment, "cold") == 0;
}

static void wait_readable(int socket, enum rw_wait how)
{
    if (how == RW_POLL) {
        struct pollfd wait = { socket, POLLIN, 0 };
        if (poll(&wait, 1, 10000) != 1)
            rw_die(__FILE__, __LINE__, "poll while warming up");
    } else if (how == RW_SELECT) {
        fd_set readable;
        struct timeval bound = { 10, 0 };
        FD_ZERO(&readable);
        FD_SET(socket, &readable);
        if (select(socket + 1, &readable, NULL, NULL, &bound) != 1)
            rw_die(__FILE__, __LINE__, "select while warming up");
    }
}

static void warm_send(int socket, size_t round)
{
    char message[WARM_BYTES];
    rw_fill(message, sizeof message, 1000, round * sizeof message);
    if (rw_send_all(socket, message, sizeof message) != sizeof message)
        rw_die(__FILE__, __LINE__, "send while warming up");
}

/* `set`: the epoll set to wait on, or -1 to wait as `how` says. */
static void warm_recv(int socket, enum rw_wait how, int set, size_t round)
{
    char message[WARM_BYTES];
    size_t got = 0;
    while (got < sizeof message) {
        struct epoll_event event;
        if (set < 0)
            wait_readable(socket, how);
        else if (epoll_wait(set, &event, 1, 10000) != 1)
            rw_die(__FILE__, __LINE__, "epoll_wait while warming up");
        ssize_t n = recv(socket, message + got, sizeof message - got, 0);
        if (n > 0)
            got += (size_t)n;
        else if (n == 0 || (errno != EAGAIN && errno != EINTR))
            rw_die(__FILE__, __LINE__, "recv while warming up");
    }
    if (!rw_matches(message, sizeof message, 1000, round * sizeof message))
        rw_die(__FILE__, __LINE__, "wrong bytes while warming up");
}

static void pause_between_rounds(void)
{
    const char *chosen = getenv("RW_WARM_PAUSE_US");
    struct timespec pause = { 0, (chosen ? atol(chosen) : WARM_PAUSE_US) * 1000 };
    nanosleep(&pause, NULL);
}

static void warm(int socket, enum rw_wait how, int set)
{
    if (is_cold())
        return;
    for (size_t round = 0; round < WARM_ROUNDS; round++) {
        if (!rw_is_a)
            warm_send(socket, round);
        warm_recv(socket, how, set, round);
        if (rw_is_a)
            warm_send(socket, round);
        pause_between_rounds();
    }
    rw_meet();
}

void rw_warm(int socket, enum rw_wait how)
{
    warm(socket, how, -1);
}

void rw_warm_epoll(int socket, int set)
{
    warm(socket, RW_BLOCK, set);
}

void rw_warm_one_way(int socket)
{
    for (size_t round = 0; !is_cold() && round < WARM_ROUNDS; round++) {
        if (rw_is_a)
            warm_recv(socket, RW_BLOCK, -1, round);
        else
            warm_send(socket, round);
        pause_between_rounds();
    }
    rw_meet();
}

void rw_warm_pair(int first_socket, int second_socket)
{
    for (size_t round = 0; !is_cold() && round < WARM_ROUNDS; round++) {
        warm_send(first_socket, round);
        warm_recv(second_socket, RW_BLOCK, -1, round);
        warm_send(second_socket, round);
        warm_recv(first_socket, RW_BLOCK, -1, round);
        pause_between_rounds();
    }
}
