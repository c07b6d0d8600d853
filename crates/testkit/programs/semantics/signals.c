/* Signals during every call that waits: interrupted, restarted, handlers that use the socket or never return. */
#include "rw_test.h"

#include <sys/sendfile.h>

static char buffer[1 << 16];
static volatile int handled;

static void count_signal(int number)
{
    (void)number;
    handled++;
}

static void install(int number, void (*handler)(int), int flags)
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
    sigemptyset(&action.sa_mask);
    MUST(sigaction(number, &action, NULL));
}

/* ---- every call, interrupted and restarted ---- */

static int set, pipes[2], file;

static long by_recv(void) { return recv(fd, buffer, 100, 0); }
static long by_read(void) { return read(fd, buffer, 100); }
static long by_readv(void) { return readv(fd, &(struct iovec) { buffer, 100 }, 1); }
static long by_recvfrom(void) { return recvfrom(fd, buffer, 100, 0, NULL, NULL); }
static long by_peek(void) { return recv(fd, buffer, 100, MSG_PEEK); }
static long by_recvmsg(void)
{
    struct iovec part = { buffer, 100 };
    return recvmsg(fd, &(struct msghdr) { .msg_iov = &part, .msg_iovlen = 1 }, 0);
}
static long by_recvmmsg(void)
{
    struct iovec part = { buffer, 100 };
    struct mmsghdr message = { .msg_hdr = { .msg_iov = &part, .msg_iovlen = 1 } };
    return recvmmsg(fd, &message, 1, 0, NULL);
}
static long by_splice(void) { return splice(fd, NULL, pipes[1], NULL, 100, 0); }
static long by_poll(void) { return poll(&(struct pollfd) { fd, POLLIN, 0 }, 1, 10000); }
static long by_poll_for_ever(void) { return poll(&(struct pollfd) { fd, POLLIN, 0 }, 1, -1); }
static long by_ppoll(void) { return ppoll(&(struct pollfd) { fd, POLLIN, 0 }, 1, NULL, NULL); }
static long by_select(void)
{
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(fd, &readable);
    return select(fd + 1, &readable, NULL, NULL, NULL);
}
static long by_pselect(void)
{
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(fd, &readable);
    return pselect(fd + 1, &readable, NULL, NULL, &(struct timespec) { 10, 0 }, NULL);
}
static long by_epoll_wait(void) { return epoll_wait(set, &(struct epoll_event) { 0 }, 1, 10000); }
static long by_epoll_pwait(void) { return epoll_pwait(set, &(struct epoll_event) { 0 }, 1, -1, NULL); }
static long by_epoll_pwait2(void) { return epoll_pwait2(set, &(struct epoll_event) { 0 }, 1, NULL, NULL); }

static const struct {
    const char *name;
    long (*call)(void);
} readers[] = { { "recv", by_recv }, { "read", by_read }, { "readv", by_readv }, { "recvfrom", by_recvfrom }, { "peek", by_peek },
    { "recvmsg", by_recvmsg }, { "recvmmsg", by_recvmmsg }, { "splice", by_splice }, { "poll", by_poll },
    { "poll for ever", by_poll_for_ever }, { "ppoll", by_ppoll }, { "select", by_select }, { "pselect", by_pselect },
    { "epoll_wait", by_epoll_wait }, { "epoll_pwait", by_epoll_pwait }, { "epoll_pwait2", by_epoll_pwait2 } };

static void show(const char *name, long result)
{
    rw_note("%s: %ld %s, handled %d", name, result, result < 0 ? rw_errno_name(errno) : "", handled);
}

static void drain(void)
{
    while (recv(fd, buffer, 100, MSG_DONTWAIT) > 0)
        ;
}

/* For each call of B: it sleeps, A sends it a signal, then (in case it went on waiting) a byte. */
static void interrupt_readers(int flags)
{
    set = (int)MUST(epoll_create1(0));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &(struct epoll_event) { .events = EPOLLIN }));
    MUST(pipe(pipes));
    rw_warm_epoll(fd, set);
    install(SIGUSR1, count_signal, flags);
    for (size_t i = 0; i < COUNT(readers); i++) {
        B_SIDE {
            handled = 0;
            rw_tell();
            errno = 0;
            long result = readers[i].call();
            show(readers[i].name, result);
            rw_meet();
            rw_meet();
            drain();
        }
        A_SIDE {
            rw_hear();
            rw_wait_asleep(rw_pid_of(false));
            kill(rw_pid_of(false), SIGUSR1);
            rw_wait_asleep(rw_pid_of(false));
            rw_send_all(fd, "x", 1);
            rw_meet();
            rw_sleep_ms(5);
            rw_meet();
        }
    }
}

CASE(readers_interrupted)
{
    interrupt_readers(0);
}

CASE(readers_restarted)
{
    interrupt_readers(SA_RESTART);
}

/* With a time-out on the socket nothing is restarted. */
CASE(readers_with_a_timeout_restarted)
{
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval) { 8, 0 }, sizeof(struct timeval)));
    rw_warm(fd, RW_BLOCK);
    install(SIGUSR1, count_signal, SA_RESTART);
    B_SIDE {
        rw_tell();
        T(recv(fd, buffer, 100, 0));
        rw_note("handled %d", handled);
    }
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        kill(rw_pid_of(false), SIGUSR1);
    }
}

static long by_send(void) { return send(fd, buffer, sizeof buffer, 0); }
static long by_write(void) { return write(fd, buffer, sizeof buffer); }
static long by_writev(void) { return writev(fd, &(struct iovec) { buffer, sizeof buffer }, 1); }
static long by_sendmsg(void)
{
    struct iovec part = { buffer, sizeof buffer };
    return sendmsg(fd, &(struct msghdr) { .msg_iov = &part, .msg_iovlen = 1 }, 0);
}
static long by_sendmmsg(void)
{
    struct iovec part = { buffer, sizeof buffer };
    struct mmsghdr message = { .msg_hdr = { .msg_iov = &part, .msg_iovlen = 1 } };
    return sendmmsg(fd, &message, 1, 0);
}
static long by_sendfile(void)
{
    off_t from = 0;
    return sendfile(fd, file, &from, sizeof buffer);
}
/* Out of a pipe that is full. */
static long by_splice_out(void) { return splice(pipes[0], NULL, fd, NULL, sizeof buffer, 0); }
static long by_poll_out(void) { return poll(&(struct pollfd) { fd, POLLOUT, 0 }, 1, -1); }

/* B fills the connection to the brim, then each call waits for room that does not come until after the signal. */
static void interrupt_writers(int flags)
{
    static const struct {
        const char *name;
        long (*call)(void);
    } writers[] = { { "send", by_send }, { "write", by_write }, { "writev", by_writev }, { "sendmsg", by_sendmsg },
        { "sendmmsg", by_sendmmsg }, { "sendfile", by_sendfile }, { "splice", by_splice_out },
        { "poll", by_poll_out } };
    char path[] = "/tmp/rw_signals_XXXXXX";
    file = (int)MUST(mkstemp(path));
    MUST(unlink(path));
    MUST(write(file, buffer, sizeof buffer));
    MUST(pipe(pipes));
    MUST(write(pipes[1], buffer, sizeof buffer));
    rw_warm(fd, RW_BLOCK);
    install(SIGUSR1, count_signal, flags);
    for (size_t i = 0; i < COUNT(writers); i++) {
        B_SIDE {
            size_t stuffed = rw_stuff_for_good(fd, 1);
            handled = 0;
            rw_shared[0] = (long)stuffed;
            rw_tell();
            errno = 0;
            long result = writers[i].call();
            /* How much of it went before the signal depends on what the kernel could squeeze in: some or none. */
            if (result >= 0 && result < (long)sizeof buffer && writers[i].call != by_poll_out && writers[i].call != by_sendmmsg)
                rw_note("%s: a part, handled %d", writers[i].name, handled);
            else
                show(writers[i].name, result);
            rw_meet();
            shutdown(fd, SHUT_WR);
        }
        A_SIDE {
            rw_hear();
            rw_wait_asleep(rw_pid_of(false));
            kill(rw_pid_of(false), SIGUSR1);
            rw_wait_asleep(rw_pid_of(false));
            YES(rw_take_stream(fd, 1, (size_t)rw_shared[0]));
            rw_meet();
            while (recv(fd, buffer, sizeof buffer, 0) > 0)
                ;
        }
        rw_meet();
        MUST(close(fd));
        fd = rw_another();
        rw_nodelay(fd);
        rw_warm(fd, RW_BLOCK);
    }
}

CASE(writers_interrupted)
{
    interrupt_writers(0);
}

CASE(writers_restarted)
{
    interrupt_writers(SA_RESTART);
}

/* Takes from the pipe, or brings it, what a splice in another thread waits for, once A says so. */
static void *write_when_told(void *unused)
{
    (void)unused;
    while (!rw_shared[1])
        rw_sleep_ms(1);
    MUST(write(pipes[1], "hello", 5));
    return NULL;
}

static void *empty_when_told(void *unused)
{
    static char taken[sizeof buffer];
    (void)unused;
    while (!rw_shared[1])
        rw_sleep_ms(1);
    for (size_t all = 0; all < sizeof taken; all += (size_t)MUST(read(pipes[0], taken, sizeof taken - all)))
        ;
    return NULL;
}

static long by_splice_out_soon(void) { return splice(pipes[0], NULL, fd, NULL, 100, 0); }

/* B waits for a pipe rather than for the connection: for one that is empty, and for one that is full. */
static void interrupt_waits_for_a_pipe(int flags)
{
    static const struct {
        const char *name;
        long (*call)(void);
        void *(*helper)(void *);
    } waits[] = { { "out of a pipe", by_splice_out_soon, write_when_told }, { "into a pipe", by_splice, empty_when_told } };
    rw_warm(fd, RW_BLOCK);
    install(SIGUSR1, count_signal, flags);
    for (size_t i = 0; i < COUNT(waits); i++) {
        rw_shared[1] = 0;
        rw_meet();
        A_SIDE {
            if (waits[i].call == by_splice)
                rw_say(fd, "bytes");
            rw_hear();
            rw_wait_asleep(rw_pid_of(false));
            kill(rw_pid_of(false), SIGUSR1);
            rw_wait_asleep(rw_pid_of(false));
            rw_shared[1] = 1;
        }
        B_SIDE {
            pthread_t helper;
            sigset_t all, before;
            sigfillset(&all);
            MUST(pipe(pipes));
            if (waits[i].call == by_splice)
                MUST(write(pipes[1], buffer, sizeof buffer));
            MUST(-pthread_sigmask(SIG_SETMASK, &all, &before));
            MUST(-pthread_create(&helper, NULL, waits[i].helper, NULL));
            MUST(-pthread_sigmask(SIG_SETMASK, &before, NULL));
            handled = 0;
            rw_tell();
            errno = 0;
            show(waits[i].name, waits[i].call());
            MUST(-pthread_join(helper, NULL));
        }
        rw_meet();
    }
}

CASE(waits_for_a_pipe_interrupted)
{
    interrupt_waits_for_a_pipe(0);
}

CASE(waits_for_a_pipe_restarted)
{
    interrupt_waits_for_a_pipe(SA_RESTART);
}

CASE(accept_interrupted)
{
    for (int i = 0; i < 2; i++) {
        A_SIDE {
            install(SIGUSR1, count_signal, i ? SA_RESTART : 0);
            rw_tell();
            int made = accept(rw_listener, NULL, NULL);
            rw_note("accept: %s, handled %d", made < 0 ? rw_errno_name(errno) : "made", handled);
            if (made < 0)
                MUST(accept(rw_listener, NULL, NULL));
        }
        B_SIDE {
            rw_hear();
            rw_wait_asleep(rw_pid_of(true));
            kill(rw_pid_of(true), SIGUSR1);
            rw_wait_asleep(rw_pid_of(true));
            struct sockaddr_in peer;
            socklen_t length = sizeof peer;
            MUST(getpeername(fd, (struct sockaddr *)&peer, &length));
            rw_connect(ntohs(peer.sin_port));
        }
        rw_meet();
    }
}

/* ---- partial results ---- */

CASE(waitall_interrupted)
{
    rw_warm(fd, RW_BLOCK);
    for (int i = 0; i < 2; i++) {
        install(SIGUSR1, count_signal, i ? SA_RESTART : 0);
        A_SIDE rw_send_all(fd, "0123456789", 10);
        rw_rest();
        B_SIDE {
            rw_tell();
            rw_bytes("got", buffer, T(recv(fd, buffer, 100, MSG_WAITALL)));
            rw_note("handled %d", handled);
        }
        A_SIDE {
            rw_hear();
            rw_wait_asleep(rw_pid_of(false));
            kill(rw_pid_of(false), SIGUSR1);
        }
        rw_meet();
    }
}

CASE(large_send_interrupted)
{
    enum { LARGE = 64 << 20 };
    rw_warm(fd, RW_BLOCK);
    install(SIGUSR1, count_signal, SA_RESTART);
    B_SIDE {
        char *large = malloc(LARGE);
        rw_fill(large, LARGE, 2, 0);
        rw_tell();
        ssize_t n = send(fd, large, LARGE, 0);
        YES(n > 0 && n < LARGE);
        rw_note("handled %d", handled);
        rw_shared[0] = n;
        rw_meet();
        free(large);
    }
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        kill(rw_pid_of(false), SIGUSR1);
        rw_meet();
        YES(rw_take_stream(fd, 2, (size_t)rw_shared[0]));
        T(recv(fd, buffer, 1, MSG_DONTWAIT));
    }
}

RW_MAIN(ENTRY(readers_interrupted), ENTRY(readers_restarted), ENTRY(readers_with_a_timeout_restarted), ENTRY(writers_interrupted),
    ENTRY(writers_restarted), ENTRY(waits_for_a_pipe_interrupted), ENTRY(waits_for_a_pipe_restarted), ENTRY(accept_interrupted), ENTRY(waitall_interrupted), ENTRY(large_send_interrupted))
