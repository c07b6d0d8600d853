/* Signal handlers that use the connection they interrupted or never return; masks, stops, and signals without end. */
#include "rw_test.h"

#include <setjmp.h>
#include <sys/time.h>

static char buffer[1 << 16];
static volatile int handled;
static int set;

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

static long by_recv(void) { return recv(fd, buffer, 100, 0); }
static long by_waitall(void) { return recv(fd, buffer, 100, MSG_WAITALL); }
static long by_poll(void) { return poll(&(struct pollfd) { fd, POLLIN, 0 }, 1, -1); }
static long by_select(void)
{
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(fd, &readable);
    return select(fd + 1, &readable, NULL, NULL, NULL);
}
static long by_epoll_wait(void) { return epoll_wait(set, &(struct epoll_event) { 0 }, 1, -1); }

/* ---- handlers that use the socket ---- */

static void send_from_handler(int number)
{
    (void)number;
    handled++;
    if (send(fd, "from handler", 12, 0) != 12)
        handled += 100;
}

static void receive_in_handler(int number)
{
    (void)number;
    handled += recv(fd, buffer + 1000, 4, MSG_DONTWAIT) == 4 ? 1 : 100;
}

CASE(handler_sends)
{
    rw_warm(fd, RW_BLOCK);
    install(SIGUSR1, send_from_handler, SA_RESTART);
    for (int i = 0; i < 5; i++) {
        B_SIDE {
            rw_tell();
            rw_bytes("got", buffer, T(recv(fd, buffer, 100, 0)));
            rw_note("handled %d", handled);
        }
        A_SIDE {
            rw_hear();
            rw_wait_asleep(rw_pid_of(false));
            kill(rw_pid_of(false), SIGUSR1);
            rw_expect(fd, 12);
            rw_send_all(fd, "answer", 6);
        }
    }
}

static void limit_sends(long seconds, long microseconds)
{
    MUST(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval) { seconds, microseconds }, sizeof(struct timeval)));
}

static void send_briefly_from_handler(int number)
{
    limit_sends(0, 50000);
    send_from_handler(number);
}

/* A handler that writes to the connection whose blocked send it interrupted. That one has time enough for the signal to
   arrive on a busy machine. */
CASE(handler_sends_while_sending)
{
    enum { LARGE = 16 << 20 };
    rw_warm(fd, RW_BLOCK);
    install(SIGUSR1, send_briefly_from_handler, 0);
    B_SIDE {
        char *large = malloc(LARGE);
        memset(large, '.', LARGE);
        limit_sends(10, 0);
        rw_tell();
        ssize_t n = send(fd, large, LARGE, 0);
        YES(n > 0 && n < LARGE);
        rw_note("handled %s", handled ? "yes" : "no");
        T(shutdown(fd, SHUT_WR));
        rw_shared[0] = n;
        rw_meet();
        free(large);
    }
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        kill(rw_pid_of(false), SIGUSR1);
        rw_meet();
        long dots = 0, others = 0;
        ssize_t n;
        while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0)
            for (ssize_t i = 0; i < n; i++)
                if (buffer[i] == '.')
                    dots++;
                else
                    others++;
        YES(dots == rw_shared[0]);
        /* The handler found no room and waited 50 ms in vain, or squeezed its twelve bytes in. */
        YES(others <= 12);
    }
}

CASE(handler_receives)
{
    rw_warm(fd, RW_BLOCK);
    install(SIGUSR1, receive_in_handler, 0);
    B_SIDE {
        sigset_t usr1, before;
        sigemptyset(&usr1);
        sigaddset(&usr1, SIGUSR1);
        sigprocmask(SIG_BLOCK, &usr1, &before);
        rw_meet();
        rw_meet();
        /* The signal is pending and the data is there: the handler runs inside ppoll, before it looks. */
        struct pollfd wait = { fd, POLLIN, 0 };
        T(ppoll(&wait, 1, &(struct timespec) { 0, 30000000 }, &before));
        rw_note("handled %d", handled);
        sigprocmask(SIG_SETMASK, &before, NULL);
        rw_bytes("rest", buffer, T(recv(fd, buffer, 100, MSG_DONTWAIT)));
    }
    A_SIDE {
        rw_meet();
        T(send(fd, "12345678", 8, 0));
        rw_sleep_ms(15);
        kill(rw_pid_of(false), SIGUSR1);
        rw_sleep_ms(5);
        rw_meet();
    }
}

/* ---- handlers that do not return ---- */

static sigjmp_buf back;

static void jump_out(int number)
{
    (void)number;
    handled++;
    siglongjmp(back, 1);
}

static void jump_out_of(long (*wait)(void), const char *name)
{
    B_SIDE {
        if (sigsetjmp(back, 1) == 0) {
            rw_tell();
            wait();
            rw_note("never here");
        }
        rw_note("out of %s, %d", name, handled);
        rw_tell();
        rw_expect(fd, 5);
        rw_say(fd, "fine");
    }
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        kill(rw_pid_of(false), SIGUSR1);
        rw_hear();
        rw_say(fd, "after");
        rw_expect(fd, 4);
    }
    rw_meet();
}

CASE(handler_jumps_out)
{
    set = (int)MUST(epoll_create1(0));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &(struct epoll_event) { .events = EPOLLIN }));
    rw_warm_epoll(fd, set);
    install(SIGUSR1, jump_out, SA_RESTART);
    for (int i = 0; i < 4; i++) {
        jump_out_of(by_recv, "recv");
        jump_out_of(by_waitall, "recv of much");
        jump_out_of(by_poll, "poll");
        jump_out_of(by_select, "select");
        jump_out_of(by_epoll_wait, "epoll_wait");
    }
}

/* A wait for something that does not come for a while ends once, however many waits before it were left by a jump. */
CASE(wait_after_many_jumps)
{
    rw_warm(fd, RW_BLOCK);
    install(SIGUSR1, jump_out, SA_RESTART);
    for (int i = 0; i < 20; i++) {
        jump_out_of(by_recv, "recv");
        jump_out_of(by_poll, "poll");
    }
    rw_wait_quietly(fd);
}

/* ---- handlers while there is no room ---- */

static volatile bool polling;
static volatile long squeezed_in;

static void squeeze_in(int number)
{
    (void)number;
    int error = errno;
    if (send(fd, "h", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1)
        squeezed_in++;
    errno = error;
}

static void jump_out_of_the_poll(int number)
{
    (void)number;
    if (polling) {
        polling = false;
        siglongjmp(back, 1);
    }
}

/* A timer interrupts B, which polls for room again and again, because A reads slowly. */
static void poll_for_room(void (*handler)(int))
{
    enum { FOR_MS = 400 };
    rw_warm(fd, RW_POLL);
    A_SIDE {
        long received = 0;
        ssize_t n;
        while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0) {
            received += n;
            usleep(200);
        }
        rw_meet();
        YES(received == rw_shared[0]);
    }
    B_SIDE {
        volatile long sent = 0; /* across siglongjmp */
        struct itimerval often = { { 0, 150 }, { 0, 150 } }, never = { { 0, 0 }, { 0, 0 } };
        rw_nonblocking(fd, true);
        install(SIGALRM, handler, SA_RESTART);
        MUST(setitimer(ITIMER_REAL, &often, NULL));
        for (double end = rw_now_ms() + FOR_MS; rw_now_ms() < end;) {
            ssize_t n = send(fd, buffer, sizeof buffer, MSG_NOSIGNAL);
            if (n > 0) {
                sent += n;
            } else if (sigsetjmp(back, 1) == 0) {
                polling = true;
                poll(&(struct pollfd) { fd, POLLOUT, 0 }, 1, 100);
                polling = false;
            }
        }
        MUST(setitimer(ITIMER_REAL, &never, NULL));
        T(shutdown(fd, SHUT_WR));
        rw_shared[0] = sent + squeezed_in;
        rw_meet();
    }
}

CASE(handler_sends_while_polling_for_room)
{
    poll_for_room(squeeze_in);
}

CASE(handler_jumps_out_of_polling_for_room)
{
    poll_for_room(jump_out_of_the_poll);
}

/* ---- dispositions and masks ---- */

CASE(ignored_and_blocked_signals)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        sigset_t usr1;
        signal(SIGUSR2, SIG_IGN);
        install(SIGUSR1, count_signal, 0);
        sigemptyset(&usr1);
        sigaddset(&usr1, SIGUSR1);
        sigprocmask(SIG_BLOCK, &usr1, NULL);
        rw_tell();
        rw_bytes("got", buffer, T(recv(fd, buffer, 100, 0)));
        rw_note("handled %d", handled);
        sigprocmask(SIG_UNBLOCK, &usr1, NULL);
        rw_note("handled %d", handled);
    }
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        kill(rw_pid_of(false), SIGUSR1);
        kill(rw_pid_of(false), SIGUSR2);
        kill(rw_pid_of(false), SIGWINCH);
        rw_sleep_ms(10);
        T(send(fd, "data", 4, 0));
    }
}

/* A wait that takes its own mask along is interrupted by what only that mask lets through. */
CASE(mask_of_the_wait)
{
    set = (int)MUST(epoll_create1(0));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &(struct epoll_event) { .events = EPOLLIN }));
    rw_warm_epoll(fd, set);
    sigset_t usr1, before;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    install(SIGUSR1, count_signal, SA_RESTART);
    MUST(sigprocmask(SIG_BLOCK, &usr1, &before));
    B_SIDE {
        struct pollfd wait = { fd, POLLIN, 0 };
        fd_set readable;
        FD_ZERO(&readable);
        FD_SET(fd, &readable);
        rw_tell();
        T(ppoll(&wait, 1, NULL, &before));
        rw_tell();
        T(pselect(fd + 1, &readable, NULL, NULL, NULL, &before));
        rw_tell();
        T(epoll_pwait(set, &(struct epoll_event) { 0 }, 1, -1, &before));
        rw_note("handled %d", handled);
        kill(getpid(), SIGUSR1);
        T(poll(&wait, 1, 15));
        T(ppoll(&wait, 1, &(struct timespec) { 5, 0 }, &before));
        rw_note("handled %d", handled);
        sigset_t now;
        sigprocmask(SIG_SETMASK, NULL, &now);
        YES(sigismember(&now, SIGUSR1) == 1);
    }
    A_SIDE for (int i = 0; i < 3; i++)
    {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        kill(rw_pid_of(false), SIGUSR1);
    }
}

/* With no time to wait, too: what is pending already comes in, unless there is something to tell. */
CASE(mask_of_a_look)
{
    rw_warm(fd, RW_BLOCK);
    sigset_t usr1, before;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    install(SIGUSR1, count_signal, SA_RESTART);
    MUST(sigprocmask(SIG_BLOCK, &usr1, &before));
    const struct timespec none = { 0, 0 };
    struct pollfd wait = { fd, POLLIN, 0 };
    fd_set readable;
    for (int i = 0; i < 2; i++) {
        raise(SIGUSR1);
        T(ppoll(&wait, 1, &none, i ? &before : &usr1));
        rw_note("handled %d", handled);
        FD_ZERO(&readable);
        FD_SET(fd, &readable);
        raise(SIGUSR1);
        T(pselect(fd + 1, &readable, NULL, NULL, &none, i ? &before : &usr1));
        rw_note("handled %d, still asked %d", handled, FD_ISSET(fd, &readable) != 0);
    }
    T(ppoll(&wait, 1, &none, &before));
    wait.events = POLLOUT;
    raise(SIGUSR1);
    T(ppoll(&wait, 1, &none, &before));
    rw_note("handled %d", handled);
}

/* Being stopped and continued is no interruption for most calls; it is for epoll_wait. */
CASE(stopped_and_continued)
{
    static long (*const calls[])(void) = { by_recv, by_poll, by_select, by_epoll_wait };
    static const char *const names[] = { "recv", "poll", "select", "epoll_wait" };
    set = (int)MUST(epoll_create1(0));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &(struct epoll_event) { .events = EPOLLIN }));
    rw_warm_epoll(fd, set);
    for (size_t i = 0; i < COUNT(calls); i++) {
        B_SIDE {
            rw_tell();
            errno = 0;
            long result = calls[i]();
            rw_note("%s: %ld %s, handled %d", names[i], result, result < 0 ? rw_errno_name(errno) : "", handled);
            rw_meet();
            rw_meet();
            while (recv(fd, buffer, 100, MSG_DONTWAIT) > 0)
                ;
        }
        A_SIDE {
            rw_hear();
            rw_wait_asleep(rw_pid_of(false));
            kill(rw_pid_of(false), SIGSTOP);
            rw_sleep_ms(10);
            kill(rw_pid_of(false), SIGCONT);
            rw_wait_asleep(rw_pid_of(false));
            rw_send_all(fd, "x", 1);
            rw_meet();
            rw_sleep_ms(5);
            rw_meet();
        }
    }
}

/* What the program installed is what it reads back. */
CASE(handlers_read_back)
{
    struct sigaction action;
    rw_warm(fd, RW_BLOCK);
    install(SIGUSR1, count_signal, SA_RESTART | SA_NODEFER);
    MUST(sigaction(SIGUSR1, NULL, &action));
    YES(action.sa_handler == count_signal && (action.sa_flags & (SA_RESTART | SA_NODEFER)) == (SA_RESTART | SA_NODEFER));
    YES(signal(SIGUSR1, SIG_DFL) == count_signal);
    YES(signal(SIGUSR1, count_signal) == SIG_DFL);
    MUST(sigaction(SIGUSR1, NULL, &action));
    YES(action.sa_flags & SA_RESTART);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* deprecated, and still in use */
    MUST(siginterrupt(SIGUSR1, 1));
#pragma GCC diagnostic pop
    MUST(sigaction(SIGUSR1, NULL, &action));
    YES(!(action.sa_flags & SA_RESTART));
    B_SIDE {
        rw_tell();
        T(recv(fd, buffer, 10, 0));
    }
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        kill(rw_pid_of(false), SIGUSR1);
    }
    rw_rest();
    YES(signal(SIGPIPE, SIG_IGN) == SIG_DFL);
    YES(signal(SIGSEGV, SIG_DFL) == SIG_DFL);
    YES(signal(SIGBUS, SIG_DFL) == SIG_DFL);
}

/* ---- signals to the whole group ---- */

/* A, in a group of its own, needs the kernel's stream for reading while bytes that came in two ways are unread. */
static void need_the_stream_beside_unread_bytes(void)
{
    int on = 1;
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        rw_send_stream(fd, 5, 5000);
        MUST(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on));
        rw_send_stream(fd, 6, 1000);
    }
    rw_rest();
    A_SIDE {
        MUST(setpgid(0, 0));
        MUST(setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on));
    }
}

static void read_the_unread_bytes(void)
{
    A_SIDE {
        rw_recv_stream(fd, 5, 5000);
        rw_recv_stream(fd, 6, 1000);
    }
    rw_exchange(fd);
}

/* Whatever stands in for the program somewhere, only the program handles what is sent to its group. */
CASE(handled_once_in_the_group)
{
    A_SIDE install(SIGUSR1, send_from_handler, SA_RESTART);
    need_the_stream_beside_unread_bytes();
    A_SIDE {
        MUST(kill(0, SIGUSR1));
        rw_sleep_ms(30);
        rw_note("handled %d", handled);
    }
    rw_rest();
    B_SIDE {
        rw_expect(fd, 12);
        T(recv(fd, buffer, 100, MSG_DONTWAIT));
    }
    read_the_unread_bytes();
}

/* A signal that the program has come to ignore harms nobody in its group. */
CASE(ignored_by_the_group)
{
    need_the_stream_beside_unread_bytes();
    A_SIDE {
        signal(SIGTERM, SIG_IGN);
        MUST(kill(0, SIGTERM));
        rw_sleep_ms(30);
    }
    rw_rest();
    read_the_unread_bytes();
}

/* ---- a storm ---- */

/* A timer interrupts both ends every millisecond or so while they stream to each other; the bytes must not notice. */
static void storm(int flags)
{
    rw_warm(fd, RW_BLOCK);
    install(SIGALRM, count_signal, flags);
    struct itimerval often = { { 0, 700 }, { 0, 700 } }, never = { { 0, 0 }, { 0, 0 } };
    MUST(setitimer(ITIMER_REAL, &often, NULL));
    for (int i = 0; i < 6; i++) {
        A_SIDE rw_send_stream(fd, 3, 1 << 20);
        B_SIDE rw_recv_stream(fd, 3, 1 << 20);
        B_SIDE rw_send_stream(fd, 4, 1 << 20);
        A_SIDE rw_recv_stream(fd, 4, 1 << 20);
        for (int round = 0; round < 40; round++) {
            A_SIDE rw_send_all(fd, "ping", 4);
            rw_recv_all(fd, buffer, 4);
            B_SIDE rw_send_all(fd, "pong", 4);
            if (round % 8 == 0)
                rw_sleep_ms(1);
        }
    }
    MUST(setitimer(ITIMER_REAL, &never, NULL));
    YES(handled > 3);
}

CASE(storm_of_signals)
{
    storm(0);
}

CASE(storm_of_restarting_signals)
{
    storm(SA_RESTART);
}

RW_MAIN(ENTRY(handler_sends), ENTRY(handler_sends_while_sending), ENTRY(handler_receives), ENTRY(handler_jumps_out),
    ENTRY(wait_after_many_jumps), ENTRY(handler_sends_while_polling_for_room),
    ENTRY(handler_jumps_out_of_polling_for_room), ENTRY(ignored_and_blocked_signals), ENTRY(mask_of_the_wait), ENTRY(mask_of_a_look), ENTRY(stopped_and_continued), ENTRY(handlers_read_back),
    ENTRY(handled_once_in_the_group), ENTRY(ignored_by_the_group),
    ENTRY(storm_of_signals), ENTRY(storm_of_restarting_signals))
