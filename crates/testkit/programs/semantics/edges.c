/* What an epoll set reports of one connection: level, edge, oneshot, and the events of its end. */
#include "rw_test.h"

#include <limits.h>

static char buffer[1 << 16];
static int set;

/* All events that come within `ms`, one line each; a set reports a descriptor at most once per call. */
static void events(const char *when, int ms)
{
    struct epoll_event got[8];
    int n = epoll_wait(set, got, COUNT(got), ms);
    if (n <= 0)
        rw_note("%s: %s", when, n < 0 ? rw_errno_name(errno) : "none");
    for (int i = 0; i < n; i++)
        rw_note("%s: %s, tag %llu", when, rw_poll_names((int)got[i].events), (unsigned long long)got[i].data.u64);
}

static void control(int operation, int socket, uint32_t wanted, uint64_t tag)
{
    struct epoll_event event = { .events = wanted, .data.u64 = tag };
    int result = epoll_ctl(set, operation, socket, &event);
    rw_note("%s: %d %s", operation == EPOLL_CTL_ADD ? "add" : operation == EPOLL_CTL_MOD ? "modify" : "delete", result,
        result < 0 ? rw_errno_name(errno) : "");
}

/* B makes a set with its connection in it before anything else; the connection is warmed up through the set. */
static void begin(uint32_t wanted)
{
    set = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
    rw_nonblocking(fd, true);
    control(EPOLL_CTL_ADD, fd, EPOLLIN | (wanted & EPOLLET), 7);
    rw_warm_epoll(fd, set);
    B_SIDE control(EPOLL_CTL_MOD, fd, wanted, 7);
}

static void a_sends(const char *text)
{
    rw_rest();
    A_SIDE T(send(fd, text, strlen(text), 0));
    rw_rest();
}

/* B says that it will sleep on the set; A sends a text when it does. */
static void a_wakes(const char *when, const char *text)
{
    B_SIDE {
        rw_tell();
        events(when, 10000);
    }
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        T(send(fd, text, strlen(text), 0));
    }
}

CASE(level)
{
    begin(EPOLLIN);
    B_SIDE events("nothing there", 0);
    a_sends("0123456789");
    B_SIDE {
        events("ten bytes", 0);
        events("still ten", 0);
        T(recv(fd, buffer, 4, 0));
        events("six bytes", -1);
        T(recv(fd, buffer, 100, 0));
        events("read", 0);
        events("read, for a while", 15);
        control(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT, 8);
        events("asking for both", -1);
    }
    a_sends("more");
    B_SIDE {
        events("both", 0);
        control(EPOLL_CTL_MOD, fd, EPOLLIN, 9);
        events("input only", 0);
        control(EPOLL_CTL_MOD, fd, 0, 10);
        events("nothing asked", 0);
        control(EPOLL_CTL_MOD, fd, EPOLLIN, 11);
        T(recv(fd, buffer, 100, 0));
        T(recv(fd, buffer, 100, 0));
    }
    a_wakes("woken", "x");
    B_SIDE {
        T(recv(fd, buffer, 100, 0));
        control(EPOLL_CTL_DEL, fd, 0, 0);
    }
    a_sends("unheard");
    B_SIDE {
        events("not in the set", 0);
        control(EPOLL_CTL_ADD, fd, EPOLLIN, 12);
        events("added with data there", 0);
    }
}

CASE(edge)
{
    begin(EPOLLIN | EPOLLET);
    B_SIDE events("nothing there", 0);
    a_sends("01234");
    B_SIDE {
        events("five bytes", 0);
        events("no new edge", 0);
        T(recv(fd, buffer, 2, 0));
        events("no edge by reading a part", 0);
    }
    a_sends("5678");
    B_SIDE {
        events("new edge by new data", 0);
        events("once", 0);
        T(recv(fd, buffer, 100, 0));
        T(recv(fd, buffer, 100, 0));
        events("read", 0);
    }
    a_wakes("woken", "x");
    a_wakes("woken again with the first unread", "y");
    B_SIDE {
        events("no more", 0);
        control(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET, 8);
        events("armed again with data there", 0);
        events("once", 0);
        T(recv(fd, buffer, 100, 0));
        control(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET, 9);
        events("armed again with nothing there", 0);
    }
}

/* With both directions asked for, an edge in one reports both if both are ready. */
CASE(edge_of_both_directions)
{
    begin(EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    B_SIDE {
        events("writable at first", 0);
        events("once", 0);
        T(send(fd, "x", 1, 0));
        events("no edge by sending", 15);
    }
    a_sends("data");
    B_SIDE {
        events("data", 0);
        events("once", 0);
        T(recv(fd, buffer, 100, 0));
        events("no edge by reading", 15);
        rw_shared[0] = (long)rw_stuff(fd, 1);
        events("full", 0);
        rw_meet();
        events("room", 10000);
        T(send(fd, "y", 1, 0));
    }
    A_SIDE {
        rw_meet();
        T(recv(fd, buffer, 1, 0));
        YES(rw_take_stream(fd, 1, (size_t)rw_shared[0]));
    }
    rw_rest();
    B_SIDE {
        /* How many edges the emptying made is chance; that they end is not. */
        while (epoll_wait(set, &(struct epoll_event) { 0 }, 1, 10) > 0)
            ;
    }
    rw_rest();
    A_SIDE T(shutdown(fd, SHUT_WR));
    rw_rest();
    B_SIDE {
        events("the end", 0);
        events("once", 0);
        T(recv(fd, buffer, 10, 0));
        T(shutdown(fd, SHUT_WR));
        events("both ways shut", 15);
    }
}

CASE(edge_for_output_only)
{
    begin(EPOLLOUT | EPOLLET);
    B_SIDE {
        events("writable at first", 0);
        rw_shared[0] = (long)rw_stuff(fd, 1);
        events("full", 0);
        control(EPOLL_CTL_MOD, fd, EPOLLOUT | EPOLLET, 8);
        events("full, armed again", 10);
        rw_tell();
        events("woken by room", 10000);
    }
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        YES(rw_take_stream(fd, 1, (size_t)rw_shared[0]));
    }
    a_sends("nobody asked");
    B_SIDE events("an edge in the other direction", 10);
}

/* What a splice says is noted like what a send says. */
CASE(edge_behind_a_splice)
{
    begin(EPOLLOUT | EPOLLET);
    B_SIDE {
        int pipes[2];
        MUST(pipe2(pipes, O_NONBLOCK | O_CLOEXEC));
        events("writable at first", 0);
        long n;
        do {
            MUST(write(pipes[1], buffer, 4096));
            n = splice(pipes[0], NULL, fd, NULL, 4096, SPLICE_F_NONBLOCK);
            rw_shared[0] += n > 0 ? n : 0;
        } while (n == 4096);
        if (n > 0)
            n = splice(pipes[0], NULL, fd, NULL, 4096, SPLICE_F_NONBLOCK);
        YES(n < 0 && errno == EAGAIN);
        rw_tell();
        events("woken by room", 10000);
    }
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        for (long left = rw_shared[0]; left > 0;)
            left -= MUST(recv(fd, buffer, sizeof buffer, 0));
    }
}

CASE(oneshot)
{
    begin(EPOLLIN | EPOLLONESHOT);
    a_sends("0123");
    B_SIDE {
        events("once", 0);
        events("disarmed", 0);
    }
    a_sends("4567");
    B_SIDE {
        events("still disarmed", 0);
        control(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT, 8);
        events("armed again with data there", 0);
        T(recv(fd, buffer, 100, 0));
        events("disarmed", 0);
        control(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT, 9);
        events("armed with nothing there", 0);
    }
    a_wakes("woken", "x");
    a_sends("y");
    B_SIDE {
        events("disarmed", 10);
        control(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET | EPOLLONESHOT, 10);
        events("as edge", 0);
        events("disarmed", 0);
    }
    rw_rest();
    A_SIDE T(close(fd));
    rw_rest();
    B_SIDE events("disarmed even for the end", 10);
}

CASE(output_level)
{
    begin(EPOLLIN | EPOLLOUT);
    B_SIDE {
        events("idle", 0);
        events("still", 0);
        control(EPOLL_CTL_MOD, fd, EPOLLOUT, 8);
        rw_shared[0] = (long)rw_stuff(fd, 1);
        events("full", 0);
        events("full for a while", 15);
        rw_tell();
        events("woken by room", 10000);
    }
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        YES(rw_take_stream(fd, 1, (size_t)rw_shared[0]));
    }
    rw_rest();
    B_SIDE events("empty", 0);
}

CASE(end_of_the_peer)
{
    begin(EPOLLIN | EPOLLRDHUP);
    a_sends("last");
    A_SIDE T(shutdown(fd, SHUT_WR));
    rw_rest();
    B_SIDE {
        events("data and the end", 0);
        T(recv(fd, buffer, 100, 0));
        events("the end", 0);
        T(recv(fd, buffer, 100, 0));
        events("still the end", 0);
        control(EPOLL_CTL_MOD, fd, EPOLLIN, 8);
        events("not asking for the end", 0);
        control(EPOLL_CTL_MOD, fd, EPOLLRDHUP, 9);
        events("asking for it alone", 0);
        T(shutdown(fd, SHUT_WR));
        events("both ways shut", 0);
        control(EPOLL_CTL_MOD, fd, 0, 10);
        events("nothing asked", 0);
    }
}

CASE(end_while_asleep)
{
    begin(EPOLLIN | EPOLLRDHUP | EPOLLET);
    B_SIDE {
        rw_tell();
        events("woken by the end", 10000);
        T(recv(fd, buffer, 10, 0));
        events("once", 10);
    }
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        T(close(fd));
    }
}

CASE(reset_while_asleep)
{
    begin(EPOLLIN);
    B_SIDE {
        rw_tell();
        events("woken by a reset", 10000);
        T(recv(fd, buffer, 10, 0));
        events("error taken", 0);
    }
    A_SIDE {
        struct linger now = { 1, 0 };
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now));
        T(close(fd));
    }
}

CASE(low_water_mark_in_a_set)
{
    int mark = 100;
    begin(EPOLLIN);
    B_SIDE T(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
    rw_rest();
    A_SIDE rw_send_all(fd, buffer, 99);
    rw_rest();
    B_SIDE events("99 of 100", 10);
    rw_rest();
    A_SIDE rw_send_all(fd, buffer, 1);
    rw_rest();
    B_SIDE events("100", 1000);
}

CASE(wrong_operations)
{
    begin(EPOLLIN);
    struct epoll_event event = { .events = EPOLLIN };
    struct epoll_event *volatile null = NULL, *volatile hole = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    control(EPOLL_CTL_ADD, fd, EPOLLIN, 1);
    control(EPOLL_CTL_DEL, fd, 0, 0);
    control(EPOLL_CTL_DEL, fd, 0, 0);
    control(EPOLL_CTL_MOD, fd, EPOLLIN, 1);
    control(EPOLL_CTL_ADD, set, EPOLLIN, 1);
    control(EPOLL_CTL_ADD, -1, EPOLLIN, 1);
    control(EPOLL_CTL_ADD, 899, EPOLLIN, 1);
    T(epoll_ctl(fd, EPOLL_CTL_ADD, set, &event));
    T(epoll_ctl(set, 99, fd, &event));
    T(epoll_ctl(set, EPOLL_CTL_ADD, fd, null));
    T(epoll_ctl(set, EPOLL_CTL_ADD, fd, hole));
    T(epoll_ctl(-1, EPOLL_CTL_ADD, fd, &event));
    control(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 1);
    control(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLEXCLUSIVE, 1);
    control(EPOLL_CTL_MOD, fd, EPOLLIN, 1);
    T(epoll_wait(set, &event, 0, 0));
    T(epoll_wait(fd, &event, 1, 0));
    T(epoll_wait(899, &event, 1, 0));
    a_sends("there");
    B_SIDE {
        T(epoll_wait(set, hole, 1, 1000));
        events("unharmed", 0);
    }
}

CASE(times_to_wait)
{
    begin(EPOLLIN);
    struct epoll_event event;
    double start;
#define TIMED(call)                                                                                                                \
    start = rw_now_ms();                                                                                                           \
    T(call);                                                                                                                       \
    start = rw_now_ms() - start;                                                                                                   \
    YES(start > 25 && start < 1500)
    sigset_t none;
    sigemptyset(&none);
    struct timespec bound = { 0, 30000000 };
    TIMED(epoll_wait(set, &event, 1, 30));
    TIMED(epoll_pwait(set, &event, 1, 30, &none));
    TIMED(epoll_pwait2(set, &event, 1, &bound, NULL));
#undef TIMED
    bound = (struct timespec) { 0, 0 };
    T(epoll_pwait2(set, &event, 1, &bound, &none));
    a_sends("x");
    B_SIDE {
        T(epoll_pwait2(set, &event, 1, NULL, NULL));
        rw_note("%s", rw_poll_names((int)event.events));
    }
}

/* A time-out that no clock will see the end of. */
CASE(longest_time_to_wait)
{
    begin(EPOLLIN);
    struct epoll_event event;
    struct timespec longest = { LONG_MAX, 999999999 };
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        T(send(fd, "x", 1, 0));
    }
    B_SIDE {
        rw_tell();
        T(epoll_pwait2(set, &event, 1, &longest, NULL));
    }
}

RW_MAIN(ENTRY(level), ENTRY(edge), ENTRY(edge_of_both_directions), ENTRY(edge_for_output_only), ENTRY(edge_behind_a_splice), ENTRY(oneshot), ENTRY(output_level),
    ENTRY(end_of_the_peer), ENTRY(end_while_asleep), ENTRY(reset_while_asleep), ENTRY(low_water_mark_in_a_set),
    ENTRY(wrong_operations), ENTRY(times_to_wait), ENTRY(longest_time_to_wait))
