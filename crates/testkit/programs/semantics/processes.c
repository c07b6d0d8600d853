/* One connection, several processes: fork with sharing, accept-fork-close, what children and their deaths do to the parent's socket. */
#include "rw_test.h"

#include <sched.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static char buffer[1 << 16];

CASE(child_and_parent_write)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        for (int i = 0; i < 3; i++) {
            pid_t child = rw_fork();
            if (child == 0) {
                rw_say(fd, "child ");
                exit(0);
            }
            rw_reap(child);
            rw_say(fd, "parent ");
        }
    }
    B_SIDE rw_expect(fd, 3 * 13);
    rw_exchange(fd);
}

CASE(child_and_parent_read)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        rw_fill(buffer, 3000, 1, 0);
        rw_send_all(fd, buffer, 3000);
    }
    rw_rest();
    B_SIDE {
        rw_expect(fd, 500);
        pid_t child = rw_fork();
        if (child == 0) {
            rw_expect(fd, 1000);
            exit(0);
        }
        rw_reap(child);
        rw_expect(fd, 1500);
    }
    rw_exchange(fd);
}

/* Four children and the parent write at once; every record is small enough to be one call, who comes when is chance. */
CASE(children_write_at_once)
{
    enum { CHILDREN = 4, RECORDS = 1500, SIZE = 40 };
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        pid_t children[CHILDREN];
        for (int i = 0; i < CHILDREN; i++) {
            children[i] = rw_fork();
            if (children[i] == 0) {
                char record[SIZE];
                memset(record, 'a' + i, SIZE);
                for (int n = 0; n < RECORDS; n++)
                    rw_send_all(fd, record, SIZE);
                exit(0);
            }
        }
        for (int i = 0; i < CHILDREN; i++)
            rw_reap(children[i]);
        T(shutdown(fd, SHUT_WR));
    }
    B_SIDE {
        long counts[CHILDREN] = { 0 }, other = 0;
        ssize_t n;
        while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0)
            for (ssize_t i = 0; i < n; i++)
                if (buffer[i] >= 'a' && buffer[i] < 'a' + CHILDREN)
                    counts[buffer[i] - 'a']++;
                else
                    other++;
        rw_note("end %ld, others %ld", (long)n, other);
        for (int i = 0; i < CHILDREN; i++)
            rw_note("child %d: %ld", i, counts[i]);
    }
}

CASE(child_leaves_without_touching)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        for (int i = 0; i < 3; i++) {
            pid_t child = rw_fork();
            if (child == 0) {
                if (i == 0)
                    exit(0);
                if (i == 1)
                    _exit(0);
                close(fd);
                _exit(0);
            }
            rw_reap(child);
        }
    }
    rw_exchange(fd);
    rw_warm(fd, RW_BLOCK);
    rw_exchange(fd);
}

/* A child that is killed while it owns a share leaves nothing behind: the parent's close is still the last one. */
CASE(child_is_killed)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        pid_t child = rw_fork();
        if (child == 0) {
            recv(fd, buffer, 1, 0);
            pause();
        }
        rw_wait_asleep(child);
        kill(child, SIGKILL);
        rw_reap(child);
    }
    rw_exchange(fd);
    A_SIDE T(close(fd));
    rw_rest();
    B_SIDE T(recv(fd, buffer, 10, 0));
}

CASE(parent_leaves_child_goes_on)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        pid_t child = (pid_t)MUST(fork());
        if (child > 0)
            exit(0);
        rw_sleep_ms(20);
    }
    rw_exchange(fd);
    rw_warm(fd, RW_BLOCK);
    rw_exchange(fd);
}

CASE(daemon_goes_on)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        T(daemon(1, 1));
        rw_sleep_ms(10);
    }
    rw_exchange(fd);
    rw_warm(fd, RW_BLOCK);
    rw_exchange(fd);
}

/* Only the last close of all owners ends the connection. */
CASE(last_owner_closes)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        pid_t child = rw_fork();
        if (child == 0) {
            while (!rw_shared[0])
                rw_sleep_ms(1);
            rw_say(fd, "child");
            close(fd);
            _exit(0);
        }
        T(close(fd));
        rw_rest();
        rw_reap(child);
        rw_rest();
    }
    B_SIDE {
        rw_rest();
        T(recv(fd, buffer, 10, MSG_DONTWAIT));
        rw_shared[0] = 1;
        rw_rest();
        rw_expect(fd, 5);
        T(recv(fd, buffer, 10, 0));
    }
}

/* The pattern of PostgreSQL: the parent accepts, a child serves, the parent closes. */
CASE(accept_fork_close)
{
    for (int round = 0; round < 3; round++) {
        fd = rw_another();
        rw_nodelay(fd);
        A_SIDE {
            pid_t child = rw_fork();
            if (child == 0) {
                MUST(close(rw_listener));
                rw_warm(fd, RW_BLOCK);
                rw_exchange(fd);
                exit(0);
            }
            MUST(close(fd));
            rw_reap(child);
        }
        B_SIDE {
            rw_warm(fd, RW_BLOCK);
            rw_exchange(fd);
            rw_sleep_ms(15);
            T(recv(fd, buffer, 10, 0));
            MUST(close(fd));
        }
        rw_meet();
    }
}

/* Shared before it was warm, later owned by one process alone. */
CASE(shared_then_alone)
{
    pid_t child = -1;
    A_SIDE {
        child = rw_fork();
        if (child == 0) {
            pause();
            _exit(0);
        }
    }
    rw_warm(fd, RW_BLOCK);
    rw_exchange(fd);
    A_SIDE {
        kill(child, SIGTERM);
        rw_reap(child);
    }
    rw_warm(fd, RW_BLOCK);
    rw_exchange(fd);
}

static char stack_of_child[1 << 16] __attribute__((aligned(16)));

static pid_t clone_with(int (*child)(void *), int flags)
{
    return (pid_t)MUST(clone(child, stack_of_child + sizeof stack_of_child, flags | SIGCHLD, NULL));
}

static int in_clone(void *unused)
{
    (void)unused;
    rw_say(fd, "clone");
    _exit(3);
}

CASE(other_ways_to_fork)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        pid_t child = _Fork();
        if (child == 0) {
            rw_say(fd, "_Fork");
            _exit(1);
        }
        rw_reap(child);
        rw_reap(clone_with(in_clone, 0));
        child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
        if (child == 0) {
            rw_say(fd, "raw");
            _exit(2);
        }
        rw_reap(child);
        child = (pid_t)syscall(SYS_fork);
        if (child == 0) {
            rw_say(fd, "rawfork");
            _exit(2);
        }
        rw_reap(child);
    }
    B_SIDE rw_expect(fd, 5 + 5 + 3 + 7);
    rw_exchange(fd);
    rw_warm(fd, RW_BLOCK);
    rw_exchange(fd);
}

static int do_nothing(void *unused)
{
    (void)unused;
    return 0;
}

static int leave_only(void *unused)
{
    (void)unused;
    _exit(0);
}

static int close_and_leave(void *unused)
{
    (void)unused;
    close(fd);
    _exit(0);
}

/* A child with memory of its own and the parent's descriptors: what it does to one it does to the parent's. */
CASE(child_shares_the_descriptors)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE rw_say(fd, "before");
    rw_rest();
    B_SIDE {
        rw_reap(clone_with(do_nothing, CLONE_FILES));
        rw_expect(fd, 6);
        pid_t child = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);
        if (child == 0)
            _exit(4);
        rw_reap(child);
    }
    rw_exchange(fd);
    rw_wait_quietly(fd);
    rw_warm(fd, RW_BLOCK);
    rw_exchange(fd);
    A_SIDE rw_say(fd, "unread");
    rw_rest();
    B_SIDE {
        rw_reap(clone_with(close_and_leave, CLONE_FILES));
        int file = (int)MUST(open("/proc/sys/kernel/ostype", O_RDONLY));
        YES(file == fd);
        rw_bytes("file", buffer, T(read(file, buffer, 100)));
    }
    rw_rest();
    A_SIDE T(recv(fd, buffer, 10, 0));
}

/* A child with descriptors of its own and the parent's memory: what it does to them is nothing to the parent. */
CASE(child_shares_the_memory)
{
    static int (*const children[])(void *) = { leave_only, close_and_leave };
    rw_warm(fd, RW_BLOCK);
    for (size_t i = 0; i < COUNT(children); i++) {
        A_SIDE rw_say(fd, "unread");
        rw_rest();
        B_SIDE {
            struct linger linger = { 0 };
            socklen_t length = sizeof linger;
            rw_reap(clone_with(children[i], CLONE_VM));
            T(getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &length));
            rw_note("linger %d", linger.l_onoff);
            rw_expect(fd, 6);
        }
        rw_exchange(fd);
    }
}

static volatile pid_t waiter_id;

static void *wait_for_data(void *unused)
{
    (void)unused;
    waiter_id = (pid_t)syscall(SYS_gettid);
    rw_expect(fd, 8);
    return NULL;
}

/* fork while another thread of the process sleeps in recv on the socket. */
CASE(fork_beside_a_waiting_thread)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        pthread_t thread;
        MUST(-pthread_create(&thread, NULL, wait_for_data, NULL));
        while (!waiter_id)
            rw_sleep_ms(1);
        rw_wait_asleep(waiter_id);
        pid_t child = rw_fork();
        if (child == 0)
            _exit(send(fd, "by child", 8, 0) == 8 ? 0 : 1);
        rw_reap(child);
        rw_tell();
        pthread_join(thread, NULL);
    }
    A_SIDE {
        rw_expect(fd, 8);
        rw_hear();
        rw_say(fd, "at last!");
    }
    rw_exchange(fd);
}

/* Children that come and go, each taking a little of both directions, while the connection stays. */
CASE(many_generations)
{
    rw_warm(fd, RW_BLOCK);
    int wrong = 0;
    for (int i = 0; i < 12; i++) {
        char mine[16];
        snprintf(mine, sizeof mine, "child %2d", i);
        A_SIDE {
            pid_t child = rw_fork();
            if (child == 0) {
                rw_recv_all(fd, buffer, 8);
                _exit(memcmp(buffer, mine, 8) == 0 && rw_send_all(fd, mine, 8) == 8 ? 0 : 1);
            }
            int status = -1;
            waitpid(child, &status, 0);
            wrong += status != 0;
        }
        B_SIDE {
            rw_send_all(fd, mine, 8);
            wrong += rw_recv_all(fd, buffer, 8) != 8 || memcmp(buffer, mine, 8) != 0;
        }
    }
    rw_note("%d wrong", wrong);
    rw_exchange(fd);
}

RW_MAIN(ENTRY(child_and_parent_write), ENTRY(child_and_parent_read), ENTRY(children_write_at_once),
    ENTRY(child_leaves_without_touching), ENTRY(child_is_killed), ENTRY(parent_leaves_child_goes_on), ENTRY(daemon_goes_on),
    ENTRY(last_owner_closes), ENTRY_WITH(accept_fork_close, RW_ALONE), ENTRY(shared_then_alone), ENTRY(other_ways_to_fork),
    ENTRY(child_shares_the_descriptors), ENTRY(child_shares_the_memory),
    ENTRY(fork_beside_a_waiting_thread), ENTRY(many_generations))
