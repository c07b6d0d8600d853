/* Epoll sets with several members, several users, several owners: nested, shared by threads, inherited by fork, members that go away. */
#include "rw_test.h"

#include <sys/syscall.h>

static char buffer[1 << 16];
static int set;

static int compare_tags(const void *a, const void *b)
{
    uint64_t x = ((const struct epoll_event *)a)->data.u64, y = ((const struct epoll_event *)b)->data.u64;
    return x < y ? -1 : x > y;
}

/* One call; its events in the order of their tags, because the order in which a set reports is not promised. */
static int events_of(int chosen, const char *when, int most, int ms)
{
    struct epoll_event got[32];
    int n = epoll_wait(chosen, got, most, ms);
    rw_note("%s: %d%s%s", when, n, n < 0 ? " " : "", n < 0 ? rw_errno_name(errno) : "");
    if (n > 0)
        qsort(got, (size_t)n, sizeof got[0], compare_tags);
    for (int i = 0; i < n; i++)
        rw_note("  tag %llu: %s", (unsigned long long)got[i].data.u64, rw_poll_names((int)got[i].events));
    return n;
}

static void events(const char *when, int ms)
{
    events_of(set, when, 32, ms);
}

static void add(int to, int socket, uint32_t wanted, uint64_t tag)
{
    struct epoll_event event = { .events = wanted, .data.u64 = tag };
    MUST(epoll_ctl(to, EPOLL_CTL_ADD, socket, &event));
}

static void new_set(uint32_t wanted)
{
    set = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
    add(set, fd, wanted, 1);
}

static void a_sends(int socket, const char *text)
{
    rw_rest();
    A_SIDE T(send(socket, text, strlen(text), 0));
    rw_rest();
}

static void when_asleep(void)
{
    rw_hear();
    rw_wait_asleep(rw_pid_of(false));
}

/* The member joined the set before it was even connected, long before any carrier. */
CASE(made_before_the_connection)
{
    uint16_t port;
    set = (int)MUST(epoll_create1(0));
    A_SIDE {
        int listener = rw_listen(&port);
        rw_shared[0] = port;
        add(set, listener, EPOLLIN, 1);
        rw_meet();
        events("somebody connects", 10000);
        fd = (int)MUST(accept(listener, NULL, NULL));
        rw_nonblocking(fd, true);
        add(set, fd, EPOLLIN, 2);
    }
    B_SIDE {
        struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        fd = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
        add(set, fd, EPOLLIN | EPOLLET, 3);
        events("not connected", 0);
        rw_meet();
        to.sin_port = htons((uint16_t)rw_shared[0]);
        T(connect(fd, (struct sockaddr *)&to, sizeof to));
    }
    rw_meet();
    rw_nodelay(fd);
    rw_warm_epoll(fd, set);
    a_sends(fd, "hello");
    B_SIDE {
        events("data", 1000);
        rw_expect(fd, 5);
        events("read", 0);
        rw_say(fd, "and back");
    }
    rw_rest();
    A_SIDE {
        events("answer", 1000);
        rw_expect(fd, 8);
    }
}

/* The first set of the connection's life is made when it has long been moved. */
CASE(made_after_much_traffic)
{
    rw_warm(fd, RW_BLOCK);
    a_sends(fd, "waiting");
    B_SIDE {
        new_set(EPOLLIN | EPOLLET);
        events("data that was there before the set", 0);
        rw_expect(fd, 7);
        rw_tell();
        events("woken", 10000);
        rw_expect(fd, 4);
    }
    A_SIDE {
        when_asleep();
        T(send(fd, "wake", 4, 0));
    }
}

CASE(several_members)
{
    enum { MANY = 6 };
    int all[MANY], pipes[2];
    MUST(pipe(pipes));
    set = (int)MUST(epoll_create1(0));
    add(set, pipes[0], EPOLLIN, 100);
    for (int i = 0; i < MANY; i++) {
        all[i] = rw_another();
        rw_nodelay(all[i]);
        rw_nonblocking(all[i], true);
        add(set, all[i], EPOLLIN, (uint64_t)i);
        rw_warm_epoll(all[i], set);
    }
    B_SIDE events("all idle", 0);
    rw_rest();
    A_SIDE for (int i = 0; i < MANY; i += 2) T(send(all[i], "x", 1, 0));
    rw_rest();
    B_SIDE {
        events("half of them", -1);
        T(write(pipes[1], "x", 1));
        events("and the pipe", 0);
        T(recv(all[2], buffer, 1, 0));
        T(recv(all[4], buffer, 1, 0));
        T(read(pipes[0], buffer, 1));
        events("one", 0);
        rw_note("one event at a time reaches all");
    }
    rw_rest();
    A_SIDE for (int i = 0; i < MANY; i++) MUST(send(all[i], "x", 1, 0));
    rw_rest();
    B_SIDE {
        unsigned seen = 0;
        for (int i = 0; i < 4 * MANY; i++) {
            struct epoll_event event;
            if (epoll_wait(set, &event, 1, 0) == 1)
                seen |= 1u << event.data.u64;
        }
        rw_note("seen %#x", seen);
        for (int i = 0; i < MANY; i++)
            rw_recv_all(all[i], buffer, i == 0 ? 2 : 1);
        events("none", 0);
        rw_tell();
        events("woken by one", 10000);
    }
    A_SIDE {
        when_asleep();
        T(send(all[3], "x", 1, 0));
    }
}

CASE(nested)
{
    new_set(EPOLLIN);
    rw_warm_epoll(fd, set);
    int outer = (int)MUST(epoll_create1(0)), outermost = (int)MUST(epoll_create1(0));
    add(outer, set, EPOLLIN, 50);
    add(outermost, outer, EPOLLIN | EPOLLET, 60);
    B_SIDE events_of(outermost, "idle", 8, 0);
    a_sends(fd, "data");
    B_SIDE {
        events_of(outermost, "outermost", 8, 1000);
        events_of(outer, "outer", 8, 1000);
        events("inner", 1000);
        struct pollfd wait = { outer, POLLIN, 0 };
        T(poll(&wait, 1, 1000));
        rw_note("%s", rw_poll_names(wait.revents));
        fd_set readable;
        FD_ZERO(&readable);
        FD_SET(set, &readable);
        T(select(set + 1, &readable, NULL, NULL, &(struct timeval) { 1, 0 }));
        rw_expect(fd, 4);
        events_of(outer, "read", 8, 0);
        wait.fd = set;
        T(poll(&wait, 1, 0));
        rw_tell();
        events_of(outer, "woken through two sets", 8, 10000);
        rw_expect(fd, 1);
        rw_tell();
        wait.fd = outer;
        T(poll(&wait, 1, 10000));
    }
    A_SIDE {
        when_asleep();
        T(send(fd, "x", 1, 0));
        when_asleep();
        T(send(fd, "y", 1, 0));
    }
}

/* A set among the descriptors of a poll, beside a connection and a pipe. */
CASE(set_in_a_poll)
{
    int other = rw_another();
    rw_nodelay(other);
    new_set(EPOLLIN);
    rw_warm_epoll(fd, set);
    rw_warm(other, RW_POLL);
    B_SIDE {
        struct pollfd both[2] = { { set, POLLIN, 0 }, { other, POLLIN, 0 } };
        rw_tell();
        T(poll(both, 2, 10000));
        rw_note("%s", rw_poll_names(both[0].revents));
        rw_note("%s", rw_poll_names(both[1].revents));
        rw_expect(fd, 1);
        rw_tell();
        T(poll(both, 2, 10000));
        rw_note("%s", rw_poll_names(both[0].revents));
        rw_note("%s", rw_poll_names(both[1].revents));
    }
    A_SIDE {
        when_asleep();
        T(send(fd, "x", 1, 0));
        when_asleep();
        T(send(other, "x", 1, 0));
    }
    /* The connection stands first, and the poll may not wait. */
    a_sends(fd, "y");
    B_SIDE {
        rw_expect(other, 1);
        struct pollfd both[2] = { { other, POLLIN, 0 }, { set, POLLIN, 0 } };
        T(poll(both, 2, 0));
        rw_note("%s", rw_poll_names(both[0].revents));
        rw_note("%s", rw_poll_names(both[1].revents));
        rw_expect(fd, 1);
        T(poll(both, 2, 0));
    }
}

CASE(member_closed)
{
    int other = rw_another();
    rw_nodelay(other);
    new_set(EPOLLIN);
    add(set, other, EPOLLIN, 2);
    rw_warm_epoll(fd, set);
    rw_warm_epoll(other, set);
    a_sends(fd, "x");
    B_SIDE {
        events("before", 0);
        T(close(fd));
        events("closed with data unread", 0);
    }
    rw_rest();
    A_SIDE T(recv(fd, buffer, 1, 0));
    A_SIDE T(send(other, "y", 1, 0));
    rw_rest();
    B_SIDE {
        events("the other", 0);
        T(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
        /* The number comes back for something that is not in the set. */
        int again = (int)MUST(dup(other));
        YES(again == fd);
        T(epoll_ctl(set, EPOLL_CTL_DEL, again, NULL));
        events("the other still", 0);
    }
}

/* A member lives as long as its open file: closing one number of two leaves it in the set, under its old tag. */
CASE(member_closed_but_duplicated)
{
    new_set(EPOLLIN);
    rw_warm_epoll(fd, set);
    int copy = (int)MUST(dup(fd));
    B_SIDE MUST(close(fd));
    a_sends(fd, "data");
    B_SIDE {
        events("by the open file", 0);
        add(set, copy, EPOLLIN, 2);
        events("twice", 0);
        rw_expect(copy, 4);
        events("read", 0);
        T(close(copy));
    }
    rw_rest();
    A_SIDE T(recv(fd, buffer, 1, 0));
    B_SIDE events("gone", 0);
}

CASE(both_numbers_in_the_set)
{
    int copy = (int)MUST(dup(fd));
    new_set(EPOLLIN | EPOLLET);
    add(set, copy, EPOLLIN | EPOLLET, 2);
    rw_warm_epoll(fd, set);
    B_SIDE while (epoll_wait(set, &(struct epoll_event) { 0 }, 1, 5) > 0)
        ;
    a_sends(fd, "data");
    B_SIDE {
        events("both", 0);
        events("once", 0);
        rw_expect(copy, 4);
    }
}

/* One socket in two sets: each has its own edge. */
CASE(in_two_sets)
{
    new_set(EPOLLIN | EPOLLET);
    int other_set = (int)MUST(epoll_create1(0));
    add(other_set, fd, EPOLLIN, 2);
    events_of(other_set, "before", 8, 0); /* nobody has waited on this one yet */
    rw_meet();
    rw_warm_epoll(fd, set);
    B_SIDE events_of(other_set, "idle", 8, 0);
    a_sends(fd, "data");
    B_SIDE {
        events("edge", 0);
        events("edge once", 0);
        events_of(other_set, "level", 8, 0);
        events_of(other_set, "level again", 8, 0);
        rw_expect(fd, 4);
        events_of(other_set, "read", 8, 0);
        MUST(close(other_set));
    }
    a_sends(fd, "more");
    B_SIDE events("after the other set is gone", 0);
}

/* ---- threads ---- */

struct taker {
    pthread_t thread;
    volatile pid_t id;
    int chosen_set;
    long bytes, wakes;
};

static volatile bool over;

/* Takes what a oneshot member has, arms it again, until its connection ends. */
static void *take_by_oneshot(void *argument)
{
    struct taker *self = argument;
    char piece[512];
    while (!over) {
        struct epoll_event event;
        int n = epoll_wait(self->chosen_set, &event, 1, 50);
        if (n <= 0)
            continue;
        self->wakes++;
        ssize_t got = recv(fd, piece, sizeof piece, MSG_DONTWAIT);
        if (got > 0)
            self->bytes += got;
        if (got == 0) {
            over = true;
            break;
        }
        event = (struct epoll_event) { .events = EPOLLIN | EPOLLONESHOT };
        epoll_ctl(self->chosen_set, EPOLL_CTL_MOD, fd, &event);
    }
    return NULL;
}

CASE(oneshot_shared_by_threads)
{
    struct taker takers[4] = { 0 };
    new_set(EPOLLIN);
    rw_warm_epoll(fd, set);
    B_SIDE {
        struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT };
        MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
        for (int i = 0; i < 4; i++) {
            takers[i].chosen_set = set;
            MUST(-pthread_create(&takers[i].thread, NULL, take_by_oneshot, &takers[i]));
        }
        long sum = 0;
        for (int i = 0; i < 4; i++) {
            pthread_join(takers[i].thread, NULL);
            sum += takers[i].bytes;
        }
        rw_note("%ld bytes", sum);
    }
    A_SIDE {
        for (int i = 0; i < 400; i++) {
            rw_send_all(fd, "0123456789", 10);
            if (i % 40 == 0)
                rw_sleep_ms(2);
        }
        T(shutdown(fd, SHUT_WR));
    }
}

static void *wait_once(void *argument)
{
    struct taker *self = argument;
    struct epoll_event event;
    self->id = (pid_t)syscall(SYS_gettid);
    self->wakes = epoll_wait(self->chosen_set, &event, 1, 300) == 1;
    return NULL;
}

static void start_sleepers(struct taker *takers, int count)
{
    for (int i = 0; i < count; i++) {
        MUST(-pthread_create(&takers[i].thread, NULL, wait_once, &takers[i]));
        while (!takers[i].id)
            rw_sleep_ms(1);
        rw_wait_asleep(takers[i].id);
    }
}

static long woken(struct taker *takers, int count)
{
    long sum = 0;
    for (int i = 0; i < count; i++) {
        pthread_join(takers[i].thread, NULL);
        sum += takers[i].wakes;
    }
    return sum;
}

/* Three threads asleep on one edge-triggered member: one edge wakes one of them. */
CASE(edge_shared_by_threads)
{
    struct taker takers[3] = { 0 };
    new_set(EPOLLIN | EPOLLET);
    rw_warm_epoll(fd, set);
    B_SIDE {
        for (int i = 0; i < 3; i++)
            takers[i].chosen_set = set;
        start_sleepers(takers, 3);
        rw_tell();
        rw_note("woken: %ld", woken(takers, 3));
        rw_expect(fd, 1);
    }
    A_SIDE {
        rw_hear();
        T(send(fd, "x", 1, 0));
    }
}

/* Two sets hold the connection exclusively: at least one sleeper wakes, and the data is there for it. */
CASE(exclusive)
{
    struct taker takers[2] = { 0 };
    set = (int)MUST(epoll_create1(0));
    int second = (int)MUST(epoll_create1(0));
    rw_warm(fd, RW_BLOCK);
    add(set, fd, EPOLLIN | EPOLLEXCLUSIVE, 1);
    add(second, fd, EPOLLIN | EPOLLEXCLUSIVE, 2);
    for (int round = 0; round < 2; round++) {
        B_SIDE {
            takers[0] = (struct taker) { .chosen_set = set };
            takers[1] = (struct taker) { .chosen_set = second };
            start_sleepers(takers, 2);
            rw_tell();
            YES(woken(takers, 2) >= 1);
            rw_expect(fd, 1);
        }
        A_SIDE {
            rw_hear();
            T(send(fd, "x", 1, 0));
        }
        rw_meet();
    }
    B_SIDE {
        events("idle", 0);
        events_of(second, "idle", 8, 0);
    }
}

/* While one thread sleeps on the set, another changes it: what becomes ready by that wakes the sleeper. */
CASE(changed_under_a_sleeper)
{
    struct taker taker = { 0 };
    rw_warm(fd, RW_POLL);
    a_sends(fd, "x");
    B_SIDE {
        taker.chosen_set = set = (int)MUST(epoll_create1(0));
        start_sleepers(&taker, 1);
        add(set, fd, EPOLLIN, 1);
        rw_note("woken by add: %ld", woken(&taker, 1));
        struct epoll_event event = { .events = 0 };
        MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
        taker = (struct taker) { .chosen_set = set };
        start_sleepers(&taker, 1);
        event.events = EPOLLIN;
        T(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
        rw_note("woken by modify: %ld", woken(&taker, 1));
        rw_expect(fd, 1);
        taker = (struct taker) { .chosen_set = set };
        start_sleepers(&taker, 1);
        T(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
        rw_tell();
        rw_note("woken after delete: %ld", woken(&taker, 1));
    }
    A_SIDE {
        rw_hear();
        T(send(fd, "y", 1, 0));
    }
}

/* Looks at the set again and again until it has something. */
static void *look_for_data(void *argument)
{
    struct taker *self = argument;
    struct epoll_event event = { .data.u64 = 0 };
    do {
        self->id = 1;
        self->wakes = epoll_wait(self->chosen_set, &event, 1, 0);
    } while (self->wakes == 0);
    self->bytes = (long)event.data.u64;
    return NULL;
}

/* A thread looks at the set while another adds a oneshot member that is ready: it gets the program's own word. */
static void *wait_on_the_first_set(void *unused)
{
    (void)unused;
    rw_shared[0] = syscall(SYS_gettid);
    events("the waiter", 10000);
    return NULL;
}

/* A wait that is under way goes on with its set, whichever has the number next. */
CASE(closed_under_a_sleeper)
{
    new_set(EPOLLIN);
    rw_warm_epoll(fd, set);
    B_SIDE {
        pthread_t waiter;
        int ends[2], first = set;
        rw_shared[0] = 0;
        MUST(-pthread_create(&waiter, NULL, wait_on_the_first_set, NULL));
        while (!rw_shared[0])
            rw_sleep_ms(1);
        rw_wait_asleep((pid_t)rw_shared[0]);
        MUST(close(set));
        int next = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
        YES(next == first);
        MUST(pipe(ends));
        add(next, ends[0], EPOLLIN | EPOLLET, 2);
        MUST(write(ends[1], "x", 1));
        rw_tell();
        pthread_join(waiter, NULL);
        events_of(next, "the next set", 32, 1000);
        rw_expect(fd, 1);
        add(next, fd, EPOLLIN, 3);
        rw_meet();
        events_of(next, "once more", 32, 1000);
        rw_expect(fd, 1);
    }
    A_SIDE {
        rw_hear();
        T(send(fd, "x", 1, 0));
        rw_meet();
        T(send(fd, "y", 1, 0));
    }
}

CASE(oneshot_added_under_a_look)
{
    rw_warm(fd, RW_POLL);
    a_sends(fd, "x");
    B_SIDE {
        long right = 0;
        for (int i = 1; i <= 250; i++) {
            struct taker taker = { .chosen_set = (int)MUST(epoll_create1(0)) };
            MUST(-pthread_create(&taker.thread, NULL, look_for_data, &taker));
            while (!taker.id)
                ;
            struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT, .data.u64 = 1000 + (uint64_t)i };
            MUST(epoll_ctl(taker.chosen_set, EPOLL_CTL_ADD, fd, &event));
            pthread_join(taker.thread, NULL);
            right += taker.wakes == 1 && taker.bytes == 1000 + i;
            close(taker.chosen_set);
        }
        rw_note("right: %ld", right);
        rw_expect(fd, 1);
    }
}

/* ---- fork ---- */

CASE(inherited_by_fork)
{
    new_set(EPOLLIN);
    rw_warm_epoll(fd, set);
    B_SIDE {
        pid_t child = rw_fork();
        if (child == 0) {
            rw_tell();
            events("child woken", 10000);
            rw_expect(fd, 5);
            exit(0);
        }
        rw_reap(child);
        events("parent, all read", 0);
        rw_tell();
        events("parent woken", 10000);
        rw_expect(fd, 4);
    }
    A_SIDE {
        rw_hear();
        rw_sleep_ms(20);
        T(send(fd, "child", 5, 0));
        when_asleep();
        T(send(fd, "also", 4, 0));
    }
}

/* A child adds its own connection to the set it shares with the parent: the parent is told of it too. */
CASE(changed_by_a_child)
{
    rw_warm(fd, RW_POLL);
    B_SIDE {
        set = (int)MUST(epoll_create1(0));
        pid_t child = rw_fork();
        if (child == 0) {
            add(set, fd, EPOLLIN, 9);
            exit(0);
        }
        rw_reap(child);
    }
    a_sends(fd, "x");
    B_SIDE {
        events("parent", 1000);
        rw_expect(fd, 1);
    }
}

RW_MAIN(ENTRY_WITH(made_before_the_connection, RW_ALONE), ENTRY(made_after_much_traffic), ENTRY_WITH(several_members, RW_ALONE),
    ENTRY(nested), ENTRY(set_in_a_poll), ENTRY(member_closed), ENTRY(member_closed_but_duplicated), ENTRY(both_numbers_in_the_set),
    ENTRY(in_two_sets), ENTRY(oneshot_shared_by_threads), ENTRY(edge_shared_by_threads), ENTRY(exclusive),
    ENTRY(changed_under_a_sleeper), ENTRY(closed_under_a_sleeper), ENTRY(oneshot_added_under_a_look), ENTRY(inherited_by_fork),
    ENTRY(changed_by_a_child))
