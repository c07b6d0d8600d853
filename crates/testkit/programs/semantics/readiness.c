/* What poll, ppoll, select and pselect say of a connection in every state, and what wakes them. Sets of epoll have files of their own. */
#include "rw_test.h"

#include <sys/resource.h>

static char buffer[1 << 16];

#define TICK_MS 5
#define LATE_MS 1500
#define WITHIN(took, ms) ((took) >= (ms) - TICK_MS && (took) <= (ms) + LATE_MS)

/* Each looker waits up to `ms` (-1: for ever) for the events in `want` and returns those that came, as poll names them. */
typedef int looker(int socket, int want, int ms);

static int by_poll(int socket, int want, int ms)
{
    struct pollfd wait = { socket, (short)want, 0 };
    return poll(&wait, 1, ms) < 0 ? -1 : wait.revents;
}

static int by_ppoll(int socket, int want, int ms)
{
    struct pollfd wait = { socket, (short)want, 0 };
    struct timespec bound = { ms / 1000, ms % 1000 * 1000000L };
    sigset_t none;
    sigemptyset(&none);
    return ppoll(&wait, 1, ms < 0 ? NULL : &bound, &none) < 0 ? -1 : wait.revents;
}

struct sets {
    fd_set in, out, urgent;
};

static void fill_sets(struct sets *sets, int socket, int want)
{
    FD_ZERO(&sets->in);
    FD_ZERO(&sets->out);
    FD_ZERO(&sets->urgent);
    if (want & POLLIN)
        FD_SET(socket, &sets->in);
    if (want & POLLOUT)
        FD_SET(socket, &sets->out);
    FD_SET(socket, &sets->urgent);
}

static int from_sets(struct sets *sets, int socket, int result)
{
    int events = (FD_ISSET(socket, &sets->in) ? POLLIN : 0) | (FD_ISSET(socket, &sets->out) ? POLLOUT : 0)
        | (FD_ISSET(socket, &sets->urgent) ? POLLPRI : 0);
    if (result != __builtin_popcount((unsigned)events))
        rw_note("select said %d for %s", result, rw_poll_names(events));
    return events;
}

static int by_select(int socket, int want, int ms)
{
    struct sets sets;
    struct timeval bound = { ms / 1000, ms % 1000 * 1000 };
    fill_sets(&sets, socket, want);
    int result = select(socket + 1, &sets.in, &sets.out, &sets.urgent, ms < 0 ? NULL : &bound);
    return result < 0 ? -1 : from_sets(&sets, socket, result);
}

static int by_pselect(int socket, int want, int ms)
{
    struct sets sets;
    struct timespec bound = { ms / 1000, ms % 1000 * 1000000L };
    sigset_t none;
    sigemptyset(&none);
    fill_sets(&sets, socket, want);
    int result = pselect(socket + 1, &sets.in, &sets.out, &sets.urgent, ms < 0 ? NULL : &bound, &none);
    return result < 0 ? -1 : from_sets(&sets, socket, result);
}

static looker *look_with;

static void look(const char *when, int want, int ms)
{
    int events = look_with(fd, want, ms);
    rw_note("%s: %s", when, events < 0 ? rw_errno_name(errno) : rw_poll_names(events));
}

/* B announces that it will sleep in a wait; A acts once it does. */
static void asleep(const char *when, int want)
{
    rw_tell();
    look(when, want, 10000);
}

static void when_asleep(void)
{
    rw_hear();
    rw_wait_asleep(rw_pid_of(false));
}

enum { ALL = POLLIN | POLLOUT | POLLRDHUP };

static void states(looker *how, enum rw_wait warming)
{
    look_with = how;
    rw_warm(fd, warming);
    B_SIDE {
        look("idle, now", ALL, 0);
        look("idle, reading, now", POLLIN, 0);
        double start = rw_now_ms();
        look("idle, reading, 30 ms", POLLIN, 30);
        start = rw_now_ms() - start;
        YES(WITHIN(start, 30));
        look("idle, writing", POLLOUT, -1);
        look("asking for nothing", 0, 10);
    }
    rw_rest();
    A_SIDE T(send(fd, "0123456789", 10, 0));
    rw_rest();
    B_SIDE {
        look("ten bytes", ALL, 0);
        look("ten bytes, reading", POLLIN, -1);
        T(recv(fd, buffer, 4, 0));
        look("six bytes", ALL, 0);
        T(recv(fd, buffer, 4, MSG_PEEK));
        look("six bytes peeked at", POLLIN, 0);
        T(recv(fd, buffer, 100, 0));
        look("none", POLLIN, 0);
        asleep("woken by data", POLLIN);
        T(recv(fd, buffer, 100, MSG_DONTWAIT));
        asleep("woken by data, asking for more", POLLIN | POLLPRI | POLLRDHUP);
        T(recv(fd, buffer, 100, MSG_DONTWAIT));
        look("none", POLLIN, 0);
    }
    A_SIDE {
        when_asleep();
        T(send(fd, "a", 1, 0));
        when_asleep();
        T(send(fd, "bb", 2, 0));
    }
    rw_rest();
    B_SIDE {
        rw_shared[0] = (long)rw_stuff(fd, 1);
        look("full", POLLOUT, 0);
        look("full, for a while", ALL, 20);
        asleep("woken by room", POLLOUT);
        look("empty again", ALL, 0);
    }
    A_SIDE {
        when_asleep();
        YES(rw_take_stream(fd, 1, (size_t)rw_shared[0]));
    }
    rw_rest();
    B_SIDE {
        asleep("woken by the end", POLLIN | POLLRDHUP);
        look("at the end", ALL, 0);
        look("at the end, writing", POLLOUT, 0);
        T(recv(fd, buffer, 10, 0));
        look("after the end", POLLIN, 0);
        T(shutdown(fd, SHUT_WR));
        look("both ways shut", ALL, 0);
        look("both ways shut, asking for nothing", 0, 0);
    }
    A_SIDE {
        when_asleep();
        T(shutdown(fd, SHUT_WR));
    }
}

CASE(states_by_poll)
{
    states(by_poll, RW_POLL);
}

CASE(states_by_ppoll)
{
    states(by_ppoll, RW_POLL);
}

CASE(states_by_select)
{
    states(by_select, RW_SELECT);
}

CASE(states_by_pselect)
{
    states(by_pselect, RW_SELECT);
}

/* The connection was warmed up by plain recv: the first poll of its life comes on the new carrier. */
CASE(states_by_poll_after_recv)
{
    states(by_poll, RW_BLOCK);
}

static void reset(looker *how, enum rw_wait warming)
{
    look_with = how;
    rw_warm(fd, warming);
    B_SIDE {
        asleep("woken by a reset", POLLIN);
        look("after a reset", ALL, 0);
        T(recv(fd, buffer, 10, 0));
        look("error taken", ALL, 0);
    }
    A_SIDE {
        struct linger now = { 1, 0 };
        when_asleep();
        MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now));
        T(close(fd));
    }
}

CASE(reset_seen_by_poll)
{
    reset(by_poll, RW_POLL);
}

CASE(reset_seen_by_select)
{
    reset(by_select, RW_SELECT);
}

/* A writer that waits for room learns that the reader is gone. */
CASE(room_that_never_comes)
{
    look_with = by_poll;
    rw_warm(fd, RW_POLL);
    B_SIDE {
        rw_stuff(fd, 1);
        asleep("woken while waiting for room", POLLOUT);
        T(send(fd, "x", 1, MSG_NOSIGNAL));
    }
    A_SIDE {
        when_asleep();
        T(close(fd));
    }
}

CASE(several_descriptors)
{
    int pipes[2], other = rw_another();
    rw_nodelay(other);
    MUST(pipe(pipes));
    rw_warm(fd, RW_POLL);
    rw_warm(other, RW_POLL);
    struct pollfd all[] = { { fd, POLLIN, 0 }, { pipes[0], POLLIN, 0 }, { -1, POLLIN, 7 }, { other, POLLIN | POLLOUT, 0 },
        { fd, POLLOUT, 0 }, { 899, POLLIN, 0 }, { fd, POLLIN | POLLOUT, 0 }, { rw_listener, POLLIN, 0 } };
#define LOOK(when, ms)                                                                                                             \
    rw_note("%s: %d", when, poll(all, COUNT(all), ms));                                                                            \
    for (size_t i = 0; i < COUNT(all); i++)                                                                                        \
    rw_note("  %zu: %s", i, rw_poll_names(all[i].revents))
    B_SIDE {
        LOOK("at rest", 0);
        all[5].fd = -1;
        all[3].events = POLLIN;
        all[4].events = 0;
        all[6].events = POLLIN;
        LOOK("waiting for input only", 10);
        T(write(pipes[1], "x", 1));
        LOOK("the pipe", -1);
        T(read(pipes[0], buffer, 1));
    }
    rw_rest();
    A_SIDE T(send(fd, "x", 1, 0));
    rw_rest();
    B_SIDE {
        LOOK("the first", -1);
        T(recv(fd, buffer, 1, 0));
        rw_tell();
        LOOK("woken by the other", 10000);
        T(recv(other, buffer, 10, 0));
        T(write(pipes[1], "x", 1));
        LOOK("pipe again", -1);
    }
    A_SIDE {
        when_asleep();
        T(send(other, "y", 1, 0));
    }
#undef LOOK
}

/* A pipe wakes a wait that also holds a connection, and the other way round, while it sleeps. */
CASE(woken_by_something_else)
{
    rw_warm(fd, RW_POLL);
    int pipes[2];
    B_SIDE {
        MUST(pipe(pipes));
        pid_t child = rw_fork();
        if (child == 0) {
            close(fd);
            rw_wait_asleep(getppid());
            _exit(write(pipes[1], "x", 1) == 1 ? 0 : 1);
        }
        struct pollfd both[2] = { { fd, POLLIN, 0 }, { pipes[0], POLLIN, 0 } };
        T(poll(both, 2, 10000));
        rw_note("%s", rw_poll_names(both[0].revents));
        rw_note("%s", rw_poll_names(both[1].revents));
        rw_reap(child);
        both[1].fd = -1;
        rw_tell();
        T(poll(both, 2, 10000));
        rw_note("%s", rw_poll_names(both[0].revents));
    }
    A_SIDE {
        when_asleep();
        T(send(fd, "x", 1, 0));
    }
}

CASE(sixteen_connections)
{
    enum { MANY = 16 };
    struct pollfd all[MANY];
    for (int i = 0; i < MANY; i++) {
        all[i] = (struct pollfd) { rw_another(), POLLIN, 0 };
        rw_nodelay(all[i].fd);
        rw_warm(all[i].fd, RW_POLL);
    }
    for (int round = 0; round < 60; round++) {
        int chosen = round * 7 % MANY;
        A_SIDE {
            rw_send_all(all[chosen].fd, &(char) { (char)round }, 1);
            rw_recv_all(all[chosen].fd, buffer, 1);
        }
        B_SIDE {
            int n = poll(all, MANY, 5000);
            if (n != 1 || all[chosen].revents != POLLIN || recv(all[chosen].fd, buffer, 10, 0) != 1 || buffer[0] != round)
                rw_note("round %d: %d ready, chosen %s", round, n, rw_poll_names(all[chosen].revents));
            rw_send_all(all[chosen].fd, buffer, 1);
        }
    }
    rw_meet();
    A_SIDE for (int i = 0; i < MANY; i += 3) rw_send_all(all[i].fd, "x", 1);
    rw_rest();
    B_SIDE {
        T(poll(all, MANY, 1000));
        for (int i = 0; i < MANY; i++)
            if (all[i].revents)
                rw_note("%d: %s", i, rw_poll_names(all[i].revents));
    }
}

CASE(wrong_arguments_and_times)
{
    struct pollfd one = { fd, POLLIN, 0 };
    struct rlimit limit;
    volatile int minus = -1;
    rw_warm(fd, RW_SELECT);
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    T(poll(&one, (nfds_t)limit.rlim_cur + 1, 0));
    T(poll(NULL, 0, 5));
    struct timespec bad = { 0, 2000000000L }, negative = { -1, 0 };
    T(ppoll(&one, 1, &bad, NULL));
    T(ppoll(&one, 1, &negative, NULL));
    T(select(minus, NULL, NULL, NULL, NULL));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(899, &set);
    struct timeval bound = { 0, 0 }, wrong = { -1, 0 };
    T(select(900, &set, NULL, NULL, &bound));
    T(select(0, NULL, NULL, NULL, &wrong));
    bound = (struct timeval) { 0, 20000 };
    T(select(0, NULL, NULL, NULL, &bound));
    rw_note("what select left of the time: %ld", bound.tv_sec * 1000000 + bound.tv_usec);
    FD_ZERO(&set);
    FD_SET(fd, &set);
    bound = (struct timeval) { 5, 0 };
    B_SIDE {
        rw_tell();
        T(select(fd + 1, &set, NULL, NULL, &bound));
        YES(bound.tv_sec < 5 && bound.tv_sec >= 2);
    }
    A_SIDE {
        when_asleep();
        T(send(fd, "x", 1, 0));
    }
}

/* A short message that is not read yet leaves room for more, wherever in its ring it stands. */
CASE(room_beside_a_short_message)
{
    static char message[158];
    int without = 0;
    rw_warm(fd, RW_POLL);
    for (int i = 0; i < 100; i++) {
        A_SIDE {
            struct pollfd room = { fd, POLLOUT, 0 };
            rw_send_all(fd, message, sizeof message);
            without += poll(&room, 1, 0) != 1;
        }
        rw_meet();
        B_SIDE rw_recv_all(fd, message, sizeof message);
        rw_meet();
    }
    A_SIDE YES(without == 0);
}

RW_MAIN(ENTRY(states_by_poll), ENTRY(states_by_ppoll), ENTRY(states_by_select), ENTRY(states_by_pselect),
    ENTRY(states_by_poll_after_recv), ENTRY(reset_seen_by_poll), ENTRY(reset_seen_by_select), ENTRY(room_that_never_comes),
    ENTRY(room_beside_a_short_message),
    ENTRY(several_descriptors), ENTRY(woken_by_something_else), ENTRY_WITH(sixteen_connections, RW_ALONE),
    ENTRY(wrong_arguments_and_times))
