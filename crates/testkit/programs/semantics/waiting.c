/* Whether a call waits, for how long and for how much: O_NONBLOCK in all its spellings, time-outs, SO_RCVLOWAT. */
#include "rw_test.h"

#include <limits.h>
#include <sys/syscall.h>

static char buffer[1 << 18];

/* Time-outs are checked within bounds: never early (less one tick), and late only by what a busy machine may add. */
#define TICK_MS 5
#define LATE_MS 1500
#define WITHIN(took, ms) ((took) >= (ms) - TICK_MS && (took) <= (ms) + LATE_MS)

static void set_timeout(int option, int ms)
{
    struct timeval bound = { ms / 1000, (ms % 1000) * 1000 };
    T(setsockopt(fd, SOL_SOCKET, option, &bound, sizeof bound));
}

/* What a reader and a writer see while the socket does not wait, and when it does again. */
static void observe_nonblocking(void)
{
    B_SIDE {
        T(recv(fd, buffer, 10, 0));
        T(read(fd, buffer, 10));
        struct iovec part = { buffer, 10 };
        T(readv(fd, &part, 1));
        struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
        T(recvmsg(fd, &message, 0));
        T(recvfrom(fd, buffer, 10, MSG_PEEK, NULL, NULL));
    }
    rw_rest();
    A_SIDE T(send(fd, "data", 4, 0));
    rw_rest();
    B_SIDE {
        rw_bytes("got", buffer, T(recv(fd, buffer, 10, 0)));
        T(recv(fd, buffer, 10, 0));
    }
}

/* A call of this side that waits in a thread of its own, and what it returned. */
static volatile pid_t thread_id;
static int set;

static void *run_in_thread(void *call)
{
    thread_id = (pid_t)syscall(SYS_gettid);
    return (void *)(*(long (**)(void))call)();
}

static pthread_t begin_to_wait(long (*const *call)(void))
{
    pthread_t thread;
    thread_id = 0;
    MUST(-pthread_create(&thread, NULL, run_in_thread, (void *)call));
    while (!thread_id)
        rw_sleep_ms(1);
    rw_wait_asleep(thread_id);
    return thread;
}

static long result_of(pthread_t thread)
{
    void *result;
    MUST(-pthread_join(thread, &result));
    return (long)result;
}

static long by_poll(void) { return poll(&(struct pollfd) { fd, POLLIN, 0 }, 1, 3000); }
static long by_select(void)
{
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(fd, &readable);
    return select(fd + 1, &readable, NULL, NULL, &(struct timeval) { 3, 0 });
}
static long by_epoll_wait(void) { return epoll_wait(set, &(struct epoll_event) { 0 }, 1, 3000); }
static long by_waitall(void) { return recv(fd, buffer, 1000, MSG_WAITALL); }
static long by_large_send(void)
{
    static char large[8 << 20];
    return send(fd, large, sizeof large, 0);
}

/* After the flag is gone the reader waits again. */
static void observe_blocking(void)
{
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        T(send(fd, "later", 5, 0));
    }
    B_SIDE {
        rw_tell();
        rw_bytes("waited for", buffer, T(recv(fd, buffer, 10, 0)));
    }
}

CASE(nonblocking_by_fcntl)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        YES(!(fcntl(fd, F_GETFL) & O_NONBLOCK));
        rw_nonblocking(fd, true);
        YES(fcntl(fd, F_GETFL) & O_NONBLOCK);
    }
    observe_nonblocking();
    B_SIDE rw_nonblocking(fd, false);
    observe_blocking();
}

CASE(nonblocking_by_ioctl)
{
    int on = 1, off = 0;
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        T(ioctl(fd, FIONBIO, &on));
        YES(fcntl(fd, F_GETFL) & O_NONBLOCK);
    }
    observe_nonblocking();
    B_SIDE {
        T(ioctl(fd, FIONBIO, &off));
        YES(!(fcntl(fd, F_GETFL) & O_NONBLOCK));
    }
    observe_blocking();
}

CASE(nonblocking_by_ioctl_while_warm)
{
    int on = 1;
    B_SIDE T(ioctl(fd, FIONBIO, &on));
    rw_warm(fd, RW_POLL);
    observe_nonblocking();
    B_SIDE rw_nonblocking(fd, false);
    observe_blocking();
}

/* The flag is for calls to come: one that waits already goes on. */
CASE(nonblocking_while_a_thread_waits)
{
    static long (*const receive)(void) = by_waitall, (*const send_much)(void) = by_large_send;
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        pthread_t thread = begin_to_wait(&receive);
        rw_nonblocking(fd, true);
        rw_meet();
        rw_note("received %ld", result_of(thread));
        rw_nonblocking(fd, false);
        thread = begin_to_wait(&send_much);
        rw_nonblocking(fd, true);
        rw_meet();
        rw_note("sent %ld", result_of(thread));
    }
    A_SIDE {
        rw_meet();
        rw_send_all(fd, buffer, 100);
        rw_sleep_ms(20);
        rw_send_all(fd, buffer, 900);
        rw_meet();
        size_t all = 8 << 20;
        for (ssize_t n; all > 0 && (n = recv(fd, buffer, MIN_OF(sizeof buffer, all), 0)) > 0; all -= (size_t)n)
            ;
    }
}

/* The flag belongs to the open file, not to the number. */
CASE(nonblocking_through_a_duplicate)
{
    rw_warm(fd, RW_BLOCK);
    int copy = -1;
    B_SIDE {
        copy = (int)MUST(dup(fd));
        rw_nonblocking(copy, true);
        YES(fcntl(fd, F_GETFL) & O_NONBLOCK);
    }
    observe_nonblocking();
    B_SIDE {
        MUST(close(copy));
        rw_nonblocking(fd, false);
    }
    observe_blocking();
}

/* One side makes its socket non-blocking at birth; accept hands no flag down. */
CASE(nonblocking_from_birth)
{
    uint16_t port;
    A_SIDE {
        int listener = rw_listen(&port);
        rw_shared[0] = port;
        rw_meet();
        fd = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
        YES(fcntl(fd, F_GETFL) & O_NONBLOCK);
        YES(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        rw_meet();
        rw_nonblocking(listener, true);
        T(accept(listener, NULL, NULL));
        T(accept4(listener, NULL, NULL, 0x1000));
    }
    B_SIDE {
        rw_meet();
        struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)rw_shared[0]), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        fd = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        T(connect(fd, (struct sockaddr *)&to, sizeof to));
        struct pollfd wait = { fd, POLLOUT, 0 };
        T(poll(&wait, 1, 5000));
        rw_meet();
    }
    rw_nodelay(fd);
    rw_warm(fd, RW_POLL);
    observe_nonblocking();
    B_SIDE rw_nonblocking(fd, false);
    observe_blocking();
}

CASE(receive_timeout)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        double start;
        struct iovec part = { buffer, 10 };
        struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
        set_timeout(SO_RCVTIMEO, 40);
#define TIMED(call)                                                                                                                \
    start = rw_now_ms();                                                                                                           \
    T(call);                                                                                                                       \
    start = rw_now_ms() - start;                                                                                                   \
    YES(WITHIN(start, 40))
        TIMED(recv(fd, buffer, 10, 0));
        TIMED(read(fd, buffer, 10));
        TIMED(readv(fd, &part, 1));
        TIMED(recvmsg(fd, &message, 0));
        TIMED(recv(fd, buffer, 10, MSG_PEEK));
#undef TIMED
        start = rw_now_ms();
        T(recv(fd, buffer, 10, MSG_DONTWAIT));
        start = rw_now_ms() - start;
        YES(start < 35);
    }
    rw_rest();
    A_SIDE T(send(fd, "in time", 7, 0));
    B_SIDE {
        set_timeout(SO_RCVTIMEO, 3000);
        rw_bytes("got", buffer, T(recv(fd, buffer, 10, 0)));
    }
    rw_rest();
    A_SIDE T(send(fd, "some", 4, 0));
    B_SIDE {
        set_timeout(SO_RCVTIMEO, 60);
        double start = rw_now_ms();
        rw_bytes("part of it", buffer, T(recv(fd, buffer, 10, MSG_WAITALL)));
        start = rw_now_ms() - start;
        YES(WITHIN(start, 60));
        T(recv(fd, buffer, 10, MSG_WAITALL));
    }
    rw_rest();
    B_SIDE set_timeout(SO_RCVTIMEO, 0);
    observe_blocking();
}

/* A peek that waits for more than came before its sender changed its way, and after. */
CASE(peek_timeout_across_carriers)
{
    int on = 1;
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        T(send(fd, "some", 4, 0));
        T(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on));
    }
    rw_rest();
    for (int more = 0; more < 2; more++) {
        B_SIDE {
            set_timeout(SO_RCVTIMEO, 60);
            double start = rw_now_ms();
            rw_bytes("part of it", buffer, T(recv(fd, buffer, 20, MSG_PEEK | MSG_WAITALL)));
            start = rw_now_ms() - start;
            YES(WITHIN(start, 60));
        }
        rw_rest();
        A_SIDE T(send(fd, "more", 4, 0));
        rw_rest();
    }
    B_SIDE rw_bytes("all", buffer, T(recv(fd, buffer, 20, 0)));
}

CASE(send_timeout)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        size_t total = 0;
        ssize_t n;
        double start;
        set_timeout(SO_SNDTIMEO, 50);
        rw_fill(buffer, sizeof buffer, 1, 0);
        do {
            start = rw_now_ms();
            n = send(fd, buffer, sizeof buffer, 0);
            start = rw_now_ms() - start;
            total += n > 0 ? (size_t)n : 0;
        } while (n > 0 && total < (64u << 20));
        rw_note("the last send: %ld %s", (long)n, rw_errno_name(errno));
        YES(WITHIN(start, 50));
        rw_shared[0] = (long)total;
        rw_meet();
        rw_meet();
        set_timeout(SO_SNDTIMEO, 5000);
        T(send(fd, "end", 3, 0));
    }
    B_SIDE {
        rw_meet();
        long left = rw_shared[0];
        while (left > 0) {
            ssize_t n = recv(fd, buffer, MIN_OF(sizeof buffer, (size_t)left), 0);
            if (n <= 0)
                break;
            left -= n;
        }
        rw_note("%ld bytes missing", left);
        rw_meet();
        rw_bytes("tail", buffer, T(recv(fd, buffer, 10, 0)));
    }
}

/* A time-out of less than nothing has passed at once; one of more than any clock can count never does. */
CASE(negative_timeouts)
{
    struct timeval negative = { -1, 0 }, endless = { LONG_MAX / 1000, 0 };
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &negative, sizeof negative));
        double start = rw_now_ms();
        T(recv(fd, buffer, 10, 0));
        T(read(fd, buffer, 10));
        T(recv(fd, buffer, 10, MSG_WAITALL));
        YES(rw_now_ms() - start < LATE_MS);
        T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &endless, sizeof endless));
    }
    observe_blocking();
    rw_rest();
    A_SIDE {
        T(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &negative, sizeof negative));
        ssize_t n;
        size_t total = 0;
        double start = rw_now_ms();
        do {
            n = send(fd, buffer, sizeof buffer, 0);
            total += n > 0 ? (size_t)n : 0;
        } while (n > 0 && total < (64u << 20));
        rw_note("the last send: %ld %s", (long)n, rw_errno_name(errno));
        YES(rw_now_ms() - start < LATE_MS);
    }
}

/* A send that its time-out ended has found no room: a set that reports edges says when there is some. */
static void observe_room_after(struct timeval timeout)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        struct epoll_event event = { .events = EPOLLOUT | EPOLLET };
        int set = (int)MUST(epoll_create1(0));
        T(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
        T(epoll_wait(set, &event, 1, 1000));
        T(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout));
        ssize_t n;
        size_t total = 0;
        do {
            n = send(fd, buffer, sizeof buffer, 0);
            total += n > 0 ? (size_t)n : 0;
        } while (n > 0 && total < (64u << 20));
        rw_note("the last send: %ld %s", (long)n, rw_errno_name(errno));
        rw_shared[0] = (long)total;
        rw_meet();
        T(epoll_wait(set, &event, 1, 5000));
    }
    B_SIDE {
        rw_meet();
        for (long left = rw_shared[0]; left > 0;) {
            ssize_t n = recv(fd, buffer, MIN_OF(sizeof buffer, (size_t)left), 0);
            if (n <= 0)
                break;
            left -= n;
        }
    }
    rw_rest();
}

CASE(room_after_a_send_timeout)
{
    observe_room_after((struct timeval) { 0, 3000 });
    observe_room_after((struct timeval) { 0, 50000 });
}

CASE(room_after_a_negative_send_timeout)
{
    observe_room_after((struct timeval) { -1, 0 });
}

CASE(negative_timeout_by_the_listener)
{
    struct timeval negative = { -1, 0 };
    uint16_t port;
    int listener = rw_listen(&port);
    struct pollfd wait = { listener, POLLIN, 0 };
    MUST(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &negative, sizeof negative));
    int client = rw_connect(port);
    MUST(poll(&wait, 1, -1));
    fd = (int)MUST(accept(listener, NULL, NULL));
    rw_nodelay(client);
    rw_nodelay(fd);
    rw_warm_pair(client, fd);
    T(recv(fd, buffer, 10, 0));
}

CASE(low_water_mark)
{
    int mark = 100;
    socklen_t length = sizeof mark;
    struct pollfd wait = { fd, POLLIN, 0 };
    rw_warm(fd, RW_POLL);
    B_SIDE {
        wait.fd = fd;
        T(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
        T(getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, &length));
        rw_note("mark %d", mark);
    }
    rw_rest();
    A_SIDE rw_send_all(fd, buffer, 60);
    rw_rest();
    B_SIDE {
        rw_note("60 of 100 there");
        T(poll(&wait, 1, 20));
        T(recv(fd, buffer, 25, 0));
        T(recv(fd, buffer, 200, MSG_DONTWAIT));
    }
    rw_rest();
    A_SIDE rw_send_all(fd, buffer, 99);
    rw_rest();
    B_SIDE {
        rw_note("99 there");
        T(poll(&wait, 1, 20));
    }
    rw_rest();
    A_SIDE rw_send_all(fd, buffer, 1);
    rw_rest();
    B_SIDE {
        T(poll(&wait, 1, 2000));
        rw_note("%s", rw_poll_names(wait.revents));
        T(recv(fd, buffer, 200, 0));
        rw_note("a reader sleeps until the mark is reached");
        rw_tell();
        T(recv(fd, buffer, 200, 0));
    }
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        rw_send_all(fd, buffer, 40);
        rw_wait_asleep(rw_pid_of(false));
        rw_send_all(fd, buffer, 70);
    }
    rw_rest();
    A_SIDE {
        rw_send_all(fd, buffer, 10);
        T(shutdown(fd, SHUT_WR));
    }
    rw_rest();
    B_SIDE {
        rw_note("the end counts more than the mark");
        T(poll(&wait, 1, 2000));
        rw_note("%s", rw_poll_names(wait.revents));
        T(recv(fd, buffer, 200, 0));
        T(recv(fd, buffer, 200, 0));
    }
}

/* What is there may be enough from now on. */
CASE(low_water_mark_lowered_under_a_sleeper)
{
    static const struct {
        const char *name;
        long (*call)(void);
        uint32_t events;
    } waits[] = {
        { "poll", by_poll, 0 },
        { "select", by_select, 0 },
        { "epoll_wait", by_epoll_wait, EPOLLIN },
        { "epoll_wait at an edge", by_epoll_wait, EPOLLIN | EPOLLET },
    };
    set = (int)MUST(epoll_create1(0));
    rw_warm(fd, RW_POLL);
    for (size_t i = 0; i < COUNT(waits); i++) {
        int mark = 100;
        B_SIDE {
            MUST(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
            if (waits[i].events)
                MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &(struct epoll_event) { .events = waits[i].events }));
        }
        rw_rest();
        A_SIDE rw_send_all(fd, buffer, 50);
        rw_rest();
        B_SIDE {
            pthread_t thread = begin_to_wait(&waits[i].call);
            double begun = rw_now_ms();
            mark = 1;
            T(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
            rw_note("%s: %ld", waits[i].name, result_of(thread));
            YES(rw_now_ms() - begun < LATE_MS);
            T(recv(fd, buffer, 100, 0));
            if (waits[i].events)
                MUST(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
        }
    }
}

/* A mark above what a small ring or a default receive buffer holds. */
CASE(large_low_water_mark)
{
    enum { MARK = 200000, ALL = 230000 };
    int mark = MARK;
    rw_warm(fd, RW_BLOCK);
    B_SIDE T(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
    rw_meet();
    A_SIDE rw_send_stream(fd, 2, ALL);
    B_SIDE {
        struct pollfd wait = { fd, POLLIN, 0 };
        T(poll(&wait, 1, 5000));
        int waiting = 0;
        ioctl(fd, FIONREAD, &waiting);
        YES(waiting >= MARK);
        ssize_t first = recv(fd, buffer, sizeof buffer, 0);
        YES(first >= MARK);
        mark = 1;
        T(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
        size_t rest = first > 0 ? rw_recv_all(fd, buffer + first, ALL - (size_t)first) : 0;
        YES(rw_matches(buffer, (size_t)first + rest, 2, 0) && first + (long)rest == ALL);
    }
}

/* Both ends send before either reads. TCP has room for this much between them; blocking senders must not wait for ever. */
CASE(both_send_first)
{
    rw_warm(fd, RW_BLOCK);
    rw_send_stream(fd, rw_is_a ? 3 : 4, 1 << 20);
    rw_meet();
    rw_recv_stream(fd, rw_is_a ? 4 : 3, 1 << 20);
}

CASE(both_send_first_in_one_call)
{
    enum { LARGE = 1 << 20 };
    rw_warm(fd, RW_BLOCK);
    char *large = malloc(LARGE);
    rw_fill(large, LARGE, rw_is_a ? 3 : 4, 0);
    T(send(fd, large, LARGE, 0));
    rw_meet();
    rw_recv_stream(fd, rw_is_a ? 4 : 3, LARGE);
    free(large);
}

CASE(both_send_first_without_blocking)
{
    rw_nonblocking(fd, true);
    rw_warm(fd, RW_POLL);
    rw_send_stream(fd, rw_is_a ? 5 : 6, 1 << 20);
    rw_meet();
    rw_recv_stream(fd, rw_is_a ? 6 : 5, 1 << 20);
}

/* Who finds no room and tries again and again, without waiting for it, gets through though nobody reads. */
CASE(sends_that_try_again_without_waiting)
{
    enum { EACH = 64, ALL = 512 * EACH };
    rw_warm(fd, RW_BLOCK);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 10 + round % 7; i++) {
            A_SIDE rw_send_all(fd, buffer, EACH);
            B_SIDE rw_recv_all(fd, buffer, EACH);
            rw_meet();
        }
        A_SIDE {
            size_t went = 0;
            double late = rw_now_ms() + 2000;
            while (went < ALL && rw_now_ms() < late) {
                ssize_t n = send(fd, buffer, EACH, MSG_DONTWAIT);
                went += n > 0 ? (size_t)n : 0;
            }
            if (went < ALL)
                rw_note("round %d: two seconds of trying again did not help", round);
            rw_shared[0] = (long)went;
        }
        rw_meet();
        B_SIDE rw_recv_all(fd, buffer, (size_t)rw_shared[0]);
        rw_meet();
    }
}

/* A reader that pauses in the middle: the sender may change its mind about the carrier, the bytes may not change. */
CASE(slow_reader)
{
    enum { LARGE = 6 << 20 };
    rw_warm(fd, RW_BLOCK);
    A_SIDE rw_send_stream(fd, 7, LARGE);
    B_SIDE {
        bool right = true;
        size_t at = 0;
        for (int i = 0; at < LARGE; i++) {
            ssize_t n = recv(fd, buffer, 100000, 0);
            if (n <= 0)
                break;
            right = right && rw_matches(buffer, (size_t)n, 7, at);
            at += (size_t)n;
            if (i < 6)
                rw_sleep_ms(25);
        }
        YES(right && at == LARGE);
    }
    rw_rest();
    B_SIDE T(send(fd, "thanks", 6, 0));
    A_SIDE rw_bytes("got", buffer, T(recv(fd, buffer, 10, 0)));
}

CASE(slow_writer)
{
    rw_warm(fd, RW_BLOCK);
    rw_fill(buffer, 4000, 8, 0);
    A_SIDE for (int i = 0; i < 40; i++)
    {
        rw_send_all(fd, buffer + 100 * i, 100);
        rw_sleep_ms(i % 3);
    }
    B_SIDE rw_recv_stream(fd, 8, 4000);
}

RW_MAIN(ENTRY(nonblocking_by_fcntl), ENTRY(nonblocking_by_ioctl), ENTRY(nonblocking_by_ioctl_while_warm),
    ENTRY(nonblocking_while_a_thread_waits), ENTRY(nonblocking_through_a_duplicate), ENTRY_WITH(nonblocking_from_birth, RW_ALONE), ENTRY(receive_timeout),
    ENTRY(peek_timeout_across_carriers), ENTRY(send_timeout), ENTRY(negative_timeouts), ENTRY(room_after_a_send_timeout),
    ENTRY(room_after_a_negative_send_timeout), ENTRY_WITH(negative_timeout_by_the_listener, RW_ALONE),
    ENTRY(low_water_mark), ENTRY(low_water_mark_lowered_under_a_sleeper), ENTRY(large_low_water_mark), ENTRY(both_send_first),
    ENTRY(both_send_first_in_one_call), ENTRY(both_send_first_without_blocking),
    ENTRY(sends_that_try_again_without_waiting), ENTRY(slow_reader), ENTRY(slow_writer))
