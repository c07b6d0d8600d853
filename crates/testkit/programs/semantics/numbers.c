/* Descriptor numbers: duplicates, reuse after close, numbers above 1024, replacement of one file by another. */
#include "rw_test.h"

#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static char buffer[4096];

/* Everything goes on through a duplicate made in the way `how` says, while the first number is closed. */
static void through_duplicate(int how)
{
    rw_warm(fd, RW_BLOCK);
    int copy = -1;
    switch (how) {
    case 0: copy = (int)MUST(dup(fd)); break;
    case 1: copy = (int)MUST(dup2(fd, 200)); break;
    case 2: copy = (int)MUST(dup3(fd, 201, O_CLOEXEC)); break;
    case 3: copy = (int)MUST(fcntl(fd, F_DUPFD, 202)); break;
    case 4: copy = (int)MUST(fcntl(fd, F_DUPFD_CLOEXEC, 203)); break;
    case 5: copy = (int)MUST(syscall(SYS_dup, fd)); break;
    }
    rw_note("close-on-exec: %d", fcntl(copy, F_GETFD));
    B_SIDE {
        rw_say(fd, "by the first");
        rw_say(copy, "by the second");
        rw_say(fd, "by the first again");
    }
    A_SIDE {
        rw_expect(copy, 12);
        rw_expect(fd, 13);
        rw_expect(copy, 18);
    }
    rw_meet();
    MUST(close(fd));
    rw_meet();
    A_SIDE rw_say(copy, "first is closed");
    B_SIDE rw_expect(copy, 15);
    rw_warm(copy, RW_BLOCK);
    int again = (int)MUST(dup(copy));
    MUST(close(copy));
    B_SIDE rw_say(again, "the last one");
    A_SIDE rw_expect(again, 12);
    rw_rest();
    A_SIDE T(recv(again, buffer, 10, MSG_DONTWAIT));
    rw_rest();
    B_SIDE MUST(close(again));
    rw_rest();
    A_SIDE T(recv(again, buffer, 10, 0));
}

CASE(duplicate_by_dup)
{
    through_duplicate(0);
}

CASE(duplicate_by_dup2)
{
    through_duplicate(1);
}

CASE(duplicate_by_dup3)
{
    through_duplicate(2);
}

CASE(duplicate_by_fcntl)
{
    through_duplicate(3);
}

CASE(duplicate_by_fcntl_closed_at_exec)
{
    through_duplicate(4);
}

CASE(duplicate_by_system_call)
{
    through_duplicate(5);
}

/* pidfd_getfd on oneself: one more number for the same open file, by a road of its own. */
CASE(duplicate_by_pidfd)
{
    rw_warm(fd, RW_BLOCK);
    int self = (int)MUST(syscall(SYS_pidfd_open, getpid(), 0));
    int copy = (int)syscall(SYS_pidfd_getfd, self, fd, 0);
    YES(copy >= 0);
    A_SIDE {
        rw_say(fd, "one");
        rw_say(copy, "two");
    }
    B_SIDE {
        rw_expect(fd, 3);
        rw_expect(copy, 3);
    }
    MUST(close(fd));
    rw_meet();
    B_SIDE rw_say(copy, "three");
    A_SIDE rw_expect(copy, 5);
}

/* dup2 over a connection closes it: the peer sees the end at once. */
CASE(replaced_by_a_pipe)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE rw_say(fd, "before");
    rw_rest();
    int pipes[2];
    MUST(pipe(pipes));
    A_SIDE {
        T(dup2(pipes[1], fd) == fd);
        T(write(fd, "into the pipe", 13));
        rw_bytes("pipe", buffer, T(read(pipes[0], buffer, 100)));
    }
    rw_rest();
    B_SIDE {
        rw_expect(fd, 6);
        T(recv(fd, buffer, 10, 0));
        T(dup3(pipes[1], fd, 0) == fd);
        T(write(fd, "into the pipe", 13));
        rw_bytes("pipe", buffer, T(read(pipes[0], buffer, 100)));
        T(send(fd, "x", 1, 0));
    }
}

CASE(replaced_by_another_connection)
{
    int other = rw_another();
    rw_nodelay(other);
    rw_warm(fd, RW_BLOCK);
    rw_warm(other, RW_BLOCK);
    A_SIDE {
        rw_say(fd, "on the first");
        rw_say(other, "on the other");
    }
    rw_rest();
    B_SIDE {
        rw_expect(fd, 12);
        T(dup2(other, fd) == fd);
        rw_expect(fd, 6);
        rw_expect(other, 6);
        rw_say(fd, "answer");
    }
    rw_rest();
    A_SIDE {
        T(recv(fd, buffer, 10, 0));
        rw_expect(other, 6);
        T(dup2(other, other) == other);
    }
    B_SIDE {
        T(close(other));
        rw_say(fd, "more");
    }
    A_SIDE rw_expect(other, 4);
}

/* The number of a closed connection is given to a file, a pipe and a new connection in turn. */
CASE(number_used_again)
{
    int old = fd;
    char path[] = "/tmp/rw_numbers_XXXXXX";
    rw_warm(fd, RW_BLOCK);
    B_SIDE rw_say(fd, "first life");
    A_SIDE rw_expect(fd, 10);
    rw_meet();
    T(close(fd));
    YES(fcntl(old, F_GETFD) == -1);

    int file = (int)MUST(mkstemp(path));
    MUST(unlink(path));
    YES(file == old);
    T(write(file, "text", 4));
    T(send(file, "text", 4, 0));
    rw_bytes("file", buffer, T(pread(file, buffer, 10, 0)));
    T(read(file, buffer, 10));
    T(close(file));

    int pipes[2];
    MUST(pipe(pipes));
    YES(pipes[0] == old);
    T(write(pipes[1], "pipe", 4));
    rw_bytes("pipe", buffer, T(read(pipes[0], buffer, 10)));
    T(close(pipes[1]));
    T(read(pipes[0], buffer, 10));
    T(close(pipes[0]));
    rw_meet();

    fd = rw_another();
    YES(fd == old);
    rw_nodelay(fd);
    rw_warm(fd, RW_BLOCK);
    A_SIDE rw_say(fd, "second life");
    B_SIDE rw_expect(fd, 11);
}

/* Closed with a byte unread: the next owner of the number must not read it. */
CASE(number_used_again_at_once)
{
    rw_warm(fd, RW_BLOCK);
    for (int i = 0; i < 5; i++) {
        A_SIDE rw_say(fd, "stale");
        rw_rest();
        int old = fd;
        B_SIDE MUST(close(fd));
        A_SIDE MUST(close(fd));
        fd = rw_another();
        YES(fd == old);
        rw_nodelay(fd);
        B_SIDE T(recv(fd, buffer, 10, MSG_DONTWAIT));
        rw_meet();
        if (i % 2)
            rw_warm(fd, RW_BLOCK);
        A_SIDE rw_say(fd, "fresh");
        B_SIDE rw_expect(fd, 5);
        rw_meet();
    }
}

static void allow_many(void)
{
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    if (limit.rlim_cur < 2000) {
        limit.rlim_cur = 2000;
        MUST(setrlimit(RLIMIT_NOFILE, &limit));
    }
}

CASE(number_above_1024)
{
    allow_many();
    int high = (int)MUST(dup2(fd, 1500));
    MUST(close(fd));
    rw_warm(high, RW_POLL);
    A_SIDE {
        rw_say(high, "from above");
        struct pollfd wait = { high, POLLIN, 0 };
        T(poll(&wait, 1, 5000));
        rw_note("%s", rw_poll_names(wait.revents));
        rw_expect(high, 6);
    }
    B_SIDE {
        /* The kernel takes sets of any size; the macros would not. */
        static uint64_t set[2048 / 64];
        set[1500 / 64] = 1ull << (1500 % 64);
        T(select(1501, (fd_set *)set, NULL, NULL, NULL));
        YES(set[1500 / 64] == 1ull << (1500 % 64));
        rw_expect(high, 10);
        int epoll = (int)MUST(epoll_create1(0));
        struct epoll_event event = { .events = EPOLLIN | EPOLLOUT, .data.fd = high };
        T(epoll_ctl(epoll, EPOLL_CTL_ADD, high, &event));
        event.data.fd = -1;
        T(epoll_wait(epoll, &event, 1, 1000));
        YES(event.data.fd == 1500);
        rw_say(high, "answer");
    }
    rw_rest();
    A_SIDE T(close(high));
    rw_rest();
    B_SIDE T(recv(high, buffer, 1, 0));
}

/* getdtablesize() beside a set of the usual size: the kernel looks no further than its table of descriptors is long. */
CASE(select_of_as_many_as_there_may_be)
{
    static struct {
        fd_set set;
        unsigned char behind[(1 << 17) - sizeof(fd_set)];
    } in, out;
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = MIN_OF(limit.rlim_max, 1 << 20);
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    rw_warm(fd, RW_SELECT);
    memset(in.behind, 0xff, sizeof in.behind);
    memset(out.behind, 0xff, sizeof out.behind);
    A_SIDE rw_say(fd, "a word");
    rw_rest();
    B_SIDE {
        FD_SET(fd, &in.set);
        FD_SET(fd, &out.set);
        T(select(getdtablesize(), &in.set, &out.set, NULL, NULL));
        YES(FD_ISSET(fd, &in.set) && FD_ISSET(fd, &out.set));
        rw_expect(fd, 6);
        T(pselect(getdtablesize(), &in.set, NULL, NULL, &(struct timespec) { 0, 10000000 }, NULL));
        YES(!FD_ISSET(fd, &in.set));
        size_t changed = 0;
        for (size_t i = 0; i < sizeof in.behind; i++)
            changed += in.behind[i] != 0xff || out.behind[i] != 0xff;
        rw_note("%zu bytes behind the sets changed", changed);
        /* With a higher number the table is longer. */
        int pipes[2];
        MUST(pipe(pipes));
        int high = (int)MUST(fcntl(pipes[0], F_DUPFD, 3000));
        MUST(write(pipes[1], "x", 1));
        memset(&in, 0, sizeof in);
        ((unsigned char *)&in)[high / 8] = (unsigned char)(1 << high % 8);
        T(select(getdtablesize(), &in.set, NULL, NULL, NULL));
        YES(((unsigned char *)&in)[high / 8] == 1 << high % 8);
    }
}

static void limit_descriptors(rlim_t most)
{
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = most;
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
}

static atomic_bool selects;

static void *select_again_and_again(void *fd)
{
    while (atomic_load(&selects)) {
        fd_set in;
        FD_ZERO(&in);
        FD_SET(*(int *)fd, &in);
        MUST(select(getdtablesize(), &in, NULL, NULL, &(struct timeval) { 0, 0 }));
    }
    return NULL;
}

/* A number that is free is free, whatever another thread waits for. */
CASE(select_takes_no_number_from_another_thread)
{
    limit_descriptors(4096);
    rw_warm(fd, RW_SELECT);
    B_SIDE {
        pthread_t thread;
        int pipes[2], lost = 0;
        MUST(pipe(pipes));
        int next = (int)MUST(dup(pipes[0]));
        MUST(close(next));
        atomic_store(&selects, true);
        MUST(-pthread_create(&thread, NULL, select_again_and_again, &fd));
        for (int i = 0; i < 20000; i++)
            lost += dup2(pipes[0], next) != next || fcntl(next, F_GETFD) == -1 || close(next);
        atomic_store(&selects, false);
        MUST(-pthread_join(thread, NULL));
        YES(lost == 0);
    }
    rw_rest();
}

static bool used_little_time(void)
{
    struct timespec used;
    MUST(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used));
    static double before;
    double now = (double)used.tv_sec * 1e3 + (double)used.tv_nsec / 1e6, spent = now - before;
    before = now;
    return spent < 50;
}

/* A sandbox that may open nothing any more. The limit is one on the entries of poll as well. */
CASE(none_may_be_opened)
{
    rw_warm(fd, RW_BLOCK);
    rw_meet();
    /* Without lockstep, which polls. */
    A_SIDE {
        limit_descriptors(0);
        used_little_time();
        rw_expect(fd, 4);
        T(poll(&(struct pollfd) { fd, POLLIN, 0 }, 1, 10));
        rw_say(fd, "answer");
        T(recv(fd, buffer, 1, 0));
        YES(used_little_time());
        limit_descriptors(100);
    }
    B_SIDE {
        rw_sleep_ms(200);
        rw_say(fd, "late");
        rw_expect(fd, 6);
        rw_sleep_ms(200);
        MUST(close(fd));
    }
}

CASE(one_may_be_opened)
{
    rw_warm(fd, RW_POLL);
    A_SIDE {
        limit_descriptors(1);
        used_little_time();
        struct pollfd wait = { fd, POLLIN, 0 };
        T(poll(&wait, 1, 200));
        YES(used_little_time());
    }
    rw_meet();
    B_SIDE rw_say(fd, "a word");
    A_SIDE {
        struct pollfd wait = { fd, POLLIN, 0 };
        T(poll(&wait, 1, 5000));
        rw_note("%s", rw_poll_names(wait.revents));
        rw_expect(fd, 6);
    }
}

/* As many entries as there may be leave no room for one more. */
CASE(entries_for_all_that_may_be_opened)
{
    rw_warm(fd, RW_POLL);
    enum { MOST = 100 };
    struct pollfd waits[MOST + 1];
    for (int i = 0; i <= MOST; i++)
        waits[i] = (struct pollfd) { i == 7 ? fd : -1, POLLIN, 0 };
    limit_descriptors(MOST);
    A_SIDE {
        T(poll(waits, MOST + 1, 10));
        T(poll(waits, MOST, 10));
    }
    rw_meet();
    B_SIDE rw_say(fd, "a word");
    A_SIDE {
        T(poll(waits, MOST, 5000));
        rw_note("%s", rw_poll_names(waits[7].revents));
        rw_expect(fd, 6);
    }
}

CASE(ranges)
{
    rw_warm(fd, RW_BLOCK);
    int copy = (int)MUST(dup2(fd, 300));
    MUST(dup2(fd, 301));
    MUST(dup2(fd, 302));
    T(close_range(301, 310, 0));
    YES(fcntl(301, F_GETFD) == -1 && fcntl(302, F_GETFD) == -1 && fcntl(300, F_GETFD) == 0);
    T(close_range(300, 300, CLOSE_RANGE_CLOEXEC));
    YES(fcntl(300, F_GETFD) == FD_CLOEXEC);
    T(close_range(fd, fd, 0));
    rw_meet();
    A_SIDE rw_say(copy, "still open");
    B_SIDE rw_expect(copy, 10);
    T(close_range(310, 300, 0));
    rw_rest();
    A_SIDE T(close_range(250, 350, CLOSE_RANGE_UNSHARE));
    rw_rest();
    B_SIDE T(recv(copy, buffer, 10, 0));
}

CASE(closefrom_some_number)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE rw_say(fd, "parting");
    rw_rest();
    A_SIDE {
        /* In a child, because the harness has descriptors of its own above. */
        pid_t child = rw_fork();
        if (child == 0) {
            closefrom(fd);
            _exit(fcntl(fd, F_GETFD) == -1 ? 7 : 8);
        }
        rw_reap(child);
        rw_say(fd, "parent has it still");
    }
    B_SIDE {
        rw_expect(fd, 7);
        rw_expect(fd, 19);
    }
}

/* inetd hands a connection to a program as its descriptors 0 and 1. */
CASE(as_standard_input_and_output)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        MUST(dup2(fd, 0));
        MUST(dup2(fd, 1));
        MUST(close(fd));
        rw_bytes("stdin", buffer, T(read(0, buffer, 10)));
        T(write(1, "answer", 6));
        char line[32];
        rw_note("line: %s", fgets(line, sizeof line, stdin) ? "read" : "none");
        rw_bytes("line", line, (long)strlen(line));
        printf("printed %d\n", 42);
        fflush(stdout);
        T(shutdown(1, SHUT_WR));
    }
    B_SIDE {
        rw_say(fd, "question");
        rw_expect(fd, 6);
        rw_say(fd, "a line of text\n");
        rw_expect(fd, 11);
        T(recv(fd, buffer, 1, 0));
    }
}

RW_MAIN(ENTRY(duplicate_by_dup), ENTRY(duplicate_by_dup2), ENTRY(duplicate_by_dup3), ENTRY(duplicate_by_fcntl),
    ENTRY(duplicate_by_fcntl_closed_at_exec), ENTRY(duplicate_by_system_call), ENTRY(duplicate_by_pidfd), ENTRY(replaced_by_a_pipe),
    ENTRY(replaced_by_another_connection), ENTRY(number_used_again), ENTRY(number_used_again_at_once), ENTRY(number_above_1024), ENTRY(select_of_as_many_as_there_may_be),
    ENTRY(select_takes_no_number_from_another_thread),
    ENTRY(none_may_be_opened), ENTRY(one_may_be_opened), ENTRY(entries_for_all_that_may_be_opened),
    ENTRY(ranges), ENTRY(closefrom_some_number), ENTRY(as_standard_input_and_output))
