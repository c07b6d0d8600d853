/* One socket, many threads: sharing both directions, closing under a waiter, cancelling one. */
#include "rw_test.h"

#include <sys/sendfile.h>
#include <sys/syscall.h>

static char buffer[1 << 16];

/* ---- sharing ---- */

enum { RECORD = 48 };

struct worker {
    pthread_t thread;
    int socket;
    int index;
    long records;       /* a writer's task */
    long histogram[16]; /* a reader's harvest: bytes by value */
    bool failed;
};

static void *write_records(void *argument)
{
    struct worker *self = argument;
    char record[RECORD];
    memset(record, self->index, sizeof record);
    for (long i = 0; i < self->records && !self->failed; i++)
        self->failed = rw_send_all(self->socket, record, sizeof record) != sizeof record;
    return NULL;
}

static void *read_to_the_end(void *argument)
{
    struct worker *self = argument;
    char piece[1000];
    for (;;) {
        ssize_t n = recv(self->socket, piece, sizeof piece, 0);
        if (n < 0 && errno == EAGAIN) {
            struct pollfd wait = { self->socket, POLLIN, 0 };
            poll(&wait, 1, 1000);
            continue;
        }
        if (n <= 0) {
            self->failed = n < 0;
            return NULL;
        }
        for (ssize_t i = 0; i < n; i++)
            self->histogram[piece[i] & 15]++;
    }
}

static void start(struct worker *workers, int count, void *(*body)(void *), long records)
{
    memset(workers, 0, sizeof *workers * (size_t)count);
    for (int i = 0; i < count; i++) {
        workers[i].socket = fd;
        workers[i].index = i + 1;
        workers[i].records = records;
        MUST(-pthread_create(&workers[i].thread, NULL, body, &workers[i]));
    }
}

static void finish_writers(struct worker *workers, int count)
{
    for (int i = 0; i < count; i++) {
        pthread_join(workers[i].thread, NULL);
        if (workers[i].failed)
            rw_note("writer %d failed", i + 1);
    }
    T(shutdown(fd, SHUT_WR));
}

/* What all readers got together: so many bytes of each writer. Who got which is chance. */
static void finish_readers(struct worker *workers, int count)
{
    long sum[16] = { 0 };
    for (int i = 0; i < count; i++) {
        pthread_join(workers[i].thread, NULL);
        if (workers[i].failed)
            rw_note("reader %d failed", i + 1);
        for (int value = 0; value < 16; value++)
            sum[value] += workers[i].histogram[value];
    }
    for (int value = 0; value < 16; value++)
        if (sum[value])
            rw_note("bytes of writer %d: %ld", value, sum[value]);
}

static void share(int writers, int readers, long records)
{
    struct worker writing[8], reading[8];
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        start(writing, writers, write_records, records);
        finish_writers(writing, writers);
    }
    B_SIDE {
        start(reading, readers, read_to_the_end, 0);
        finish_readers(reading, readers);
    }
}

CASE(many_writers)
{
    share(4, 1, 4000);
}

CASE(many_readers)
{
    share(1, 4, 16000);
}

CASE(many_writers_and_readers)
{
    share(4, 4, 4000);
}

CASE(both_directions_with_many_threads)
{
    struct worker writing[3], reading[3];
    rw_warm(fd, RW_BLOCK);
    start(reading, 3, read_to_the_end, 0);
    start(writing, 3, write_records, 3000);
    finish_writers(writing, 3);
    finish_readers(reading, 3);
}

CASE(many_threads_without_blocking)
{
    struct worker writing[3], reading[3];
    rw_nonblocking(fd, true);
    rw_warm(fd, RW_POLL);
    start(reading, 3, read_to_the_end, 0);
    start(writing, 3, write_records, 2000);
    finish_writers(writing, 3);
    finish_readers(reading, 3);
}

static void *stream_in(void *unused)
{
    (void)unused;
    rw_recv_stream(fd, rw_is_a ? 2 : 1, 8 << 20);
    return NULL;
}

CASE(one_thread_for_each_direction)
{
    pthread_t reader;
    rw_warm(fd, RW_BLOCK);
    MUST(-pthread_create(&reader, NULL, stream_in, NULL));
    /* The transcript's order must not depend on which of the two ends first: the writer says nothing. */
    char piece[8192];
    bool sent = true;
    for (size_t at = 0; at < 8 << 20; at += sizeof piece) {
        rw_fill(piece, sizeof piece, rw_is_a ? 1 : 2, at);
        sent = sent && rw_send_all(fd, piece, sizeof piece) == sizeof piece;
    }
    pthread_join(reader, NULL);
    YES(sent);
}

/* ---- acting on a socket while another thread waits on it ---- */

static volatile pid_t waiter_id;

struct waiter {
    pthread_t thread;
    void (*wait)(void);
};

static void *wait_in_thread(void *argument)
{
    waiter_id = (pid_t)syscall(SYS_gettid);
    ((struct waiter *)argument)->wait();
    return NULL;
}

static void start_waiter(struct waiter *waiter, void (*wait)(void))
{
    waiter->wait = wait;
    waiter_id = 0;
    MUST(-pthread_create(&waiter->thread, NULL, wait_in_thread, waiter));
    while (!waiter_id)
        rw_sleep_ms(1);
    rw_wait_asleep(waiter_id);
}

static void wait_in_recv(void)
{
    rw_bytes("waiter got", buffer, T(recv(fd, buffer, 100, 0)));
}

static void wait_in_poll(void)
{
    struct pollfd wait = { fd, POLLIN, 0 };
    T(poll(&wait, 1, 5000));
    rw_note("waiter: %s", rw_poll_names(wait.revents));
}

/* The kernel looks at another file only when the time is over. */
static void wait_in_poll_of_a_number(void)
{
    struct pollfd wait = { fd, POLLIN, 0 };
    T(poll(&wait, 1, 500));
    rw_note("waiter: %s", rw_poll_names(wait.revents));
}

static void wait_in_short_poll(void)
{
    struct pollfd wait = { fd, POLLIN, 0 };
    T(poll(&wait, 1, 150));
}

static void wait_in_send(void)
{
    static char large[64 << 20];
    signal(SIGPIPE, SIG_IGN);
    ssize_t n = send(fd, large, sizeof large, 0);
    YES(n > 0 && n < (ssize_t)sizeof large);
    T(send(fd, "x", 1, 0));
}

static int set;

static void wait_in_epoll(void)
{
    struct epoll_event event;
    T(epoll_wait(set, &event, 1, 200));
}

/* The kernel lets a waiter finish on the connection it began with, whatever becomes of the number. */
CASE(closed_while_a_thread_receives)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        struct waiter waiter;
        start_waiter(&waiter, wait_in_recv);
        T(close(fd));
        rw_tell();
        pthread_join(waiter.thread, NULL);
        T(recv(fd, buffer, 10, 0));
    }
    A_SIDE {
        rw_hear();
        T(send(fd, "for the waiter", 14, 0));
        rw_sleep_ms(30);
        T(recv(fd, buffer, 10, 0));
    }
}

CASE(number_given_away_while_a_thread_receives)
{
    int other = rw_another();
    rw_nodelay(other);
    rw_warm(fd, RW_BLOCK);
    rw_warm(other, RW_BLOCK);
    B_SIDE {
        struct waiter waiter;
        start_waiter(&waiter, wait_in_recv);
        T(dup2(other, fd) == fd);
        rw_meet();
        rw_meet();
        pthread_join(waiter.thread, NULL);
        rw_bytes("by the number", buffer, T(recv(fd, buffer, 100, 0)));
        T(recv(other, buffer, 100, MSG_DONTWAIT));
    }
    A_SIDE {
        rw_meet();
        T(send(other, "for the new one", 15, 0));
        rw_sleep_ms(20);
        T(send(fd, "for the waiter", 14, 0));
        rw_meet();
    }
}

/* Without a warming-up: the waiter is in the kernel. What comes of it then is no business of the next connection. */
static void next_connection_after_a_close(void (*end)(void))
{
    struct waiter waiter;
    B_SIDE {
        start_waiter(&waiter, wait_in_recv);
        T(close(fd));
    }
    rw_meet();
    int next = rw_another();
    rw_nodelay(next);
    rw_warm(next, RW_BLOCK);
    A_SIDE end();
    B_SIDE pthread_join(waiter.thread, NULL);
    rw_meet();
    rw_exchange(next);
    B_SIDE {
        struct pollfd state = { next, POLLRDHUP, 0 };
        T(poll(&state, 1, 0));
    }
    rw_meet();
    rw_warm(next, RW_BLOCK);
    rw_exchange(next);
}

static void send_to_the_waiter(void)
{
    T(send(fd, "for the waiter", 14, 0));
}

static void end_the_connection(void)
{
    T(close(fd));
}

CASE(next_connection_while_a_thread_receives_on_a_closed_one)
{
    next_connection_after_a_close(send_to_the_waiter);
}

CASE(next_connection_while_a_closed_one_ends)
{
    next_connection_after_a_close(end_the_connection);
}

static void wait_in_recvmmsg(void)
{
    enum { MESSAGES = 3, BYTES = 4 };
    struct iovec parts[MESSAGES];
    struct mmsghdr messages[MESSAGES] = { 0 };
    for (int i = 0; i < MESSAGES; i++) {
        parts[i] = (struct iovec){ buffer + i * BYTES, BYTES };
        messages[i].msg_hdr = (struct msghdr){ .msg_iov = &parts[i], .msg_iovlen = 1 };
    }
    T(recvmmsg(fd, messages, MESSAGES, 0, NULL));
    rw_bytes("waiter got", buffer, MESSAGES * BYTES);
}

/* All messages of a call are of the connection that it began with. */
CASE(next_connection_while_a_thread_receives_messages_on_a_closed_one)
{
    struct waiter waiter;
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        start_waiter(&waiter, wait_in_recvmmsg);
        T(close(fd));
    }
    rw_meet();
    int next = rw_another();
    rw_nodelay(next);
    rw_warm(next, RW_BLOCK);
    A_SIDE {
        T(send(next, "for the next one", 16, 0));
        T(send(fd, "one two six ", 12, 0));
    }
    B_SIDE {
        pthread_join(waiter.thread, NULL);
        rw_bytes("next", buffer, T(recv(next, buffer, 16, MSG_WAITALL)));
    }
    A_SIDE T(recv(fd, buffer, 10, 0));
    rw_exchange(next);
}

static void wait_in_sendfile(void)
{
    enum { BYTES = 8 << 20 };
    int file = (int)MUST(memfd_create("file", 0));
    MUST(ftruncate(file, BYTES));
    T(sendfile(fd, file, NULL, BYTES));
    MUST(close(file));
}

CASE(next_connection_while_a_thread_sends_a_file_on_a_closed_one)
{
    struct waiter waiter;
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        start_waiter(&waiter, wait_in_sendfile);
        rw_sleep_ms(100);
        T(close(fd));
    }
    rw_meet();
    int next = rw_another();
    rw_nodelay(next);
    rw_warm(next, RW_BLOCK);
    A_SIDE {
        long got = 0;
        ssize_t n;
        while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0)
            got += n;
        rw_note("got %ld, then %zd", got, n);
    }
    B_SIDE {
        pthread_join(waiter.thread, NULL);
        T(send(next, "for the next one", 16, 0));
    }
    A_SIDE rw_bytes("next", buffer, T(recv(next, buffer, 100, 0)));
    rw_exchange(next);
}

static void closed_during(void (*wait)(void))
{
    B_SIDE {
        struct waiter waiter;
        start_waiter(&waiter, wait);
        T(close(fd));
        rw_tell();
        pthread_join(waiter.thread, NULL);
    }
    A_SIDE {
        rw_hear();
        T(send(fd, "wake", 4, 0));
    }
}

CASE(closed_while_a_thread_polls)
{
    rw_warm(fd, RW_POLL);
    closed_during(wait_in_poll);
}

CASE(closed_while_a_thread_polls_in_vain)
{
    rw_warm(fd, RW_POLL);
    B_SIDE {
        struct waiter waiter;
        start_waiter(&waiter, wait_in_short_poll);
        T(close(fd));
        pthread_join(waiter.thread, NULL);
    }
    rw_rest();
    A_SIDE T(recv(fd, buffer, 10, 0));
}

static void wait_in_select(void)
{
    struct timeval limit = { 5, 0 };
    fd_set in, out, other;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&other);
    FD_SET(fd, &in);
    FD_SET(fd, &other);
    T(select(fd + 1, &in, &out, &other, &limit));
    rw_note("waiter: %d %d %d", FD_ISSET(fd, &in), FD_ISSET(fd, &out), FD_ISSET(fd, &other));
}

CASE(closed_while_a_thread_selects)
{
    rw_warm(fd, RW_SELECT);
    closed_during(wait_in_select);
}

/* The number leads to a pipe when the socket has news: the wait is the pipe's from then on. */
CASE(number_given_away_while_a_thread_polls)
{
    rw_warm(fd, RW_POLL);
    B_SIDE {
        struct waiter waiter;
        int ends[2];
        MUST(pipe(ends));
        start_waiter(&waiter, wait_in_poll_of_a_number);
        MUST(dup2(ends[0], fd));
        rw_tell();
        rw_sleep_ms(30);
        rw_note("the pipe's turn");
        MUST(write(ends[1], "x", 1));
        pthread_join(waiter.thread, NULL);
    }
    A_SIDE {
        rw_hear();
        T(send(fd, "wake", 4, 0));
    }
}

CASE(closed_while_a_thread_waits_on_a_set)
{
    struct epoll_event event = { .events = EPOLLIN };
    set = (int)MUST(epoll_create1(0));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    rw_warm_epoll(fd, set);
    B_SIDE {
        struct waiter waiter;
        start_waiter(&waiter, wait_in_epoll);
        T(close(fd));
        rw_tell();
        pthread_join(waiter.thread, NULL);
    }
    A_SIDE {
        rw_hear();
        T(recv(fd, buffer, 10, 0));
    }
}

static int sending_on;

static void *send_to_the_end(void *unused)
{
    (void)unused;
    long accepted = 0;
    for (;;) {
        ssize_t n = send(sending_on, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n == 1)
            accepted++;
        else if (errno != EAGAIN)
            break;
        rw_shared[1] = 1;
    }
    rw_shared[0] = accepted;
    return NULL;
}

/* Waits in recv again and again, for a millisecond each time. */
static void *receive_to_the_end(void *unused)
{
    (void)unused;
    char byte;
    while (recv(sending_on, &byte, 1, 0) < 0 && errno == EAGAIN) {
    }
    return NULL;
}

/* What a send has accepted arrives, and then the end, however the number goes meanwhile. */
static void ended_while_a_thread_sends(void (*end)(int))
{
    bool all_arrived = true;
    for (int round = 0; round < 8; round++) {
        int other = rw_another();
        rw_nodelay(other);
        rw_warm(other, RW_BLOCK);
        A_SIDE {
            pthread_t sender, receiver;
            struct timeval moment = { .tv_usec = 1000 };
            MUST(setsockopt(other, SOL_SOCKET, SO_RCVTIMEO, &moment, sizeof moment));
            sending_on = other;
            rw_shared[1] = 0;
            MUST(-pthread_create(&receiver, NULL, receive_to_the_end, NULL));
            MUST(-pthread_create(&sender, NULL, send_to_the_end, NULL));
            while (!rw_shared[1])
                usleep(100);
            end(other);
            pthread_join(sender, NULL);
            pthread_join(receiver, NULL);
            rw_meet();
        }
        B_SIDE {
            long got = 0;
            ssize_t n;
            while ((n = recv(other, buffer, sizeof buffer, 0)) > 0)
                got += n;
            rw_meet();
            all_arrived = all_arrived && n == 0 && got == rw_shared[0];
        }
        close(other);
    }
    B_SIDE YES(all_arrived);
}

static void close_it(int socket)
{
    MUST(close(socket));
}

static void give_to_a_file(int number)
{
    int file = (int)MUST(open("/dev/null", O_RDWR));
    MUST(dup2(file, number));
    MUST(close(file));
}

CASE(closed_while_a_thread_sends)
{
    ended_while_a_thread_sends(close_it);
}

CASE(number_given_away_while_a_thread_sends)
{
    ended_while_a_thread_sends(give_to_a_file);
}

static volatile bool given_away_enough;

static void *give_away_again_and_again(void *number)
{
    while (!given_away_enough) {
        int next = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
        MUST(dup2(next, *(int *)number));
        MUST(close(next));
    }
    return NULL;
}

/* dup2 is one step: a child has the number, with one socket or the other behind it. */
CASE(forked_while_a_thread_gives_a_number_away)
{
    enum { FORKS = 500 };
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        int number = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
        pthread_t giver;
        MUST(-pthread_create(&giver, NULL, give_away_again_and_again, &number));
        bool all_have_it = true;
        for (int i = 0; i < FORKS; i++) {
            int status;
            pid_t child = (pid_t)MUST(fork());
            if (child == 0)
                _exit(fcntl(number, F_GETFD) < 0);
            MUST(waitpid(child, &status, 0));
            all_have_it = all_have_it && status == 0;
        }
        given_away_enough = true;
        pthread_join(giver, NULL);
        YES(all_have_it);
        MUST(close(number));
    }
    rw_exchange(fd);
}

CASE(shut_down_while_a_thread_receives)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        struct waiter waiter;
        start_waiter(&waiter, wait_in_recv);
        int result = shutdown(fd, SHUT_RD);
        pthread_join(waiter.thread, NULL);
        YES(result == 0);
        T(send(fd, "still", 5, 0));
    }
    A_SIDE rw_bytes("got", buffer, T(recv(fd, buffer, 10, 0)));
}

CASE(shut_down_both_ways_while_a_thread_polls)
{
    rw_warm(fd, RW_POLL);
    B_SIDE {
        struct waiter waiter;
        start_waiter(&waiter, wait_in_poll);
        int result = shutdown(fd, SHUT_RDWR);
        pthread_join(waiter.thread, NULL);
        YES(result == 0);
    }
    rw_rest();
    A_SIDE T(recv(fd, buffer, 10, 0));
}

CASE(shut_down_while_a_thread_sends)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        struct waiter waiter;
        start_waiter(&waiter, wait_in_send);
        int result = shutdown(fd, SHUT_WR);
        pthread_join(waiter.thread, NULL);
        YES(result == 0);
        rw_meet();
    }
    B_SIDE {
        rw_meet();
        ssize_t n;
        do
            n = recv(fd, buffer, sizeof buffer, 0);
        while (n > 0);
        rw_note("then %ld %s", (long)n, n < 0 ? rw_errno_name(errno) : "");
    }
}

/* One thread sends on the socket on which another waits: the wait must not be disturbed, nor hold the sender up. */
CASE(sending_while_another_thread_receives)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        struct waiter waiter;
        start_waiter(&waiter, wait_in_recv);
        for (int i = 0; i < 50; i++)
            rw_send_all(fd, "0123456789", 10);
        rw_meet();
        rw_tell();
        pthread_join(waiter.thread, NULL);
    }
    A_SIDE {
        rw_bytes("got", buffer, (long)rw_recv_all(fd, buffer, 500));
        rw_meet();
        rw_hear();
        T(send(fd, "at last", 7, 0));
    }
}

/* ---- cancellation ---- */

static volatile int cleaned;

static void clean(void *unused)
{
    (void)unused;
    cleaned++;
}

static void cancel_waiter(void (*wait)(void))
{
    struct waiter waiter;
    void *result;
    cleaned = 0;
    start_waiter(&waiter, wait);
    MUST(-pthread_cancel(waiter.thread));
    pthread_join(waiter.thread, &result);
    YES(result == PTHREAD_CANCELED);
    rw_note("cleaned %d", cleaned);
}

#define CANCELLED_IN(name, call)                                                                                                   \
    static void name(void)                                                                                                         \
    {                                                                                                                              \
        pthread_cleanup_push(clean, NULL);                                                                                         \
        call;                                                                                                                      \
        rw_note("never here");                                                                                                     \
        pthread_cleanup_pop(0);                                                                                                    \
    }
CANCELLED_IN(cancelled_in_recv, recv(fd, buffer, 10, 0))
CANCELLED_IN(cancelled_in_read, read(fd, buffer, 10))
CANCELLED_IN(cancelled_in_poll, poll(&(struct pollfd) { fd, POLLIN, 0 }, 1, -1))
CANCELLED_IN(cancelled_in_epoll, epoll_wait(set, &(struct epoll_event) { 0 }, 1, -1))
CANCELLED_IN(cancelled_in_accept, accept(rw_listener, NULL, NULL))

/* After every cancelled wait the socket must be as good as new: no lock left behind, no byte lost. */
CASE(cancelled_while_receiving)
{
    void (*const waits[])(void) = { cancelled_in_recv, cancelled_in_read, cancelled_in_poll, cancelled_in_epoll };
    struct epoll_event event = { .events = EPOLLIN };
    set = (int)MUST(epoll_create1(0));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    rw_warm_epoll(fd, set);
    for (size_t i = 0; i < COUNT(waits); i++) {
        B_SIDE cancel_waiter(waits[i]);
        rw_meet();
        A_SIDE T(send(fd, "after", 5, 0));
        B_SIDE {
            rw_bytes("got", buffer, T(recv(fd, buffer, 10, 0)));
            T(send(fd, "well", 4, 0));
        }
        A_SIDE rw_bytes("got", buffer, T(recv(fd, buffer, 10, 0)));
    }
}

/* A wait for something that does not come for a while ends once, however many waits of other threads were cancelled. */
CASE(wait_after_many_cancellations)
{
    rw_warm(fd, RW_BLOCK);
    for (int i = 0; i < 20; i++) {
        B_SIDE cancel_waiter(cancelled_in_recv);
        B_SIDE cancel_waiter(cancelled_in_poll);
    }
    rw_wait_quietly(fd);
}

CASE(cancelled_while_accepting)
{
    A_SIDE cancel_waiter(cancelled_in_accept);
    rw_meet();
    int other = rw_another();
    rw_warm(other, RW_BLOCK);
    A_SIDE T(send(other, "after", 5, 0));
    B_SIDE rw_bytes("got", buffer, T(recv(other, buffer, 10, 0)));
}

static volatile size_t sent_before_cancel;

static void send_without_end(void)
{
    static __thread char piece[30000];
    for (;;) {
        rw_fill(piece, sizeof piece, 5, sent_before_cancel);
        sent_before_cancel += rw_send_all(fd, piece, sizeof piece);
    }
}

/* What the peer has after the sender was cancelled in the middle is a beginning of the stream, whole up to where it ends. */
CASE(cancelled_while_sending)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        cancel_waiter(send_without_end);
        T(shutdown(fd, SHUT_WR));
        rw_shared[0] = (long)sent_before_cancel;
        rw_meet();
        rw_bytes("got", buffer, T(recv(fd, buffer, 10, 0)));
    }
    B_SIDE {
        rw_meet();
        size_t at = 0;
        bool right = true;
        ssize_t n;
        while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0) {
            right = right && rw_matches(buffer, (size_t)n, 5, at);
            at += (size_t)n;
        }
        rw_note("then %ld", (long)n);
        YES(right && at >= (size_t)rw_shared[0]);
        T(send(fd, "fine", 4, 0));
    }
}

CASE(cancellation_switched_off)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
        pthread_cancel(pthread_self());
        rw_tell();
        rw_bytes("got", buffer, T(recv(fd, buffer, 10, 0)));
        struct pollfd wait = { fd, POLLIN, 0 };
        T(poll(&wait, 1, 10));
        T(send(fd, "fine", 4, 0));
    }
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        T(send(fd, "data", 4, 0));
        rw_bytes("got", buffer, T(recv(fd, buffer, 10, 0)));
    }
}

/* ---- small stacks ---- */

static ssize_t read_by_stdio;

static void *read_by_a_stream(void *unused)
{
    (void)unused;
    FILE *stream = fdopen(fd, "r");
    setvbuf(stream, NULL, _IONBF, 0);
    read_by_stdio = (ssize_t)fread(buffer, 1, 8, stream);
    return NULL;
}

/* The peer is busy elsewhere while a thread that has little stack begins to read in a way that no other carrier can have. */
CASE(stdio_in_a_thread_with_a_small_stack)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE T(send(fd, "request!", 8, 0));
    rw_rest();
    B_SIDE {
        rw_in_small_thread(64 * 1024, read_by_a_stream);
        rw_bytes("got", buffer, read_by_stdio);
        rw_tell();
        T(write(fd, "answer", 6));
    }
    A_SIDE {
        rw_hear();
        rw_expect(fd, 6);
    }
}

RW_MAIN(ENTRY(many_writers), ENTRY(many_readers), ENTRY(many_writers_and_readers), ENTRY(both_directions_with_many_threads),
    ENTRY(many_threads_without_blocking), ENTRY(one_thread_for_each_direction), ENTRY(closed_while_a_thread_receives),
    ENTRY(number_given_away_while_a_thread_receives), ENTRY(next_connection_while_a_thread_receives_on_a_closed_one),
    ENTRY(next_connection_while_a_closed_one_ends), ENTRY(next_connection_while_a_thread_receives_messages_on_a_closed_one),
    ENTRY(next_connection_while_a_thread_sends_a_file_on_a_closed_one), ENTRY(closed_while_a_thread_polls), ENTRY(closed_while_a_thread_polls_in_vain),
    ENTRY(closed_while_a_thread_selects), ENTRY(number_given_away_while_a_thread_polls),
    ENTRY(closed_while_a_thread_waits_on_a_set), ENTRY(closed_while_a_thread_sends),
    ENTRY(number_given_away_while_a_thread_sends), ENTRY(forked_while_a_thread_gives_a_number_away),
    ENTRY(shut_down_while_a_thread_receives),
    ENTRY(shut_down_both_ways_while_a_thread_polls), ENTRY(shut_down_while_a_thread_sends),
    ENTRY(sending_while_another_thread_receives), ENTRY(cancelled_while_receiving), ENTRY(wait_after_many_cancellations),
    ENTRY(cancelled_while_accepting),
    ENTRY(cancelled_while_sending), ENTRY(cancellation_switched_off), ENTRY(stdio_in_a_thread_with_a_small_stack))
