/* Other programs beside or in place of this one: exec that keeps a connection, spawn, popen; descriptors given away in messages. */
#include "rw_test.h"

#include <spawn.h>
#include <sys/prctl.h>

extern char **environ;
static char buffer[1 << 16];

static const char *number_of(int descriptor)
{
    static char text[12];
    snprintf(text, sizeof text, "%d", descriptor);
    return text;
}

/* The other side of every script below: data that is unread when the program changes, then an exchange with the new program. */
static void serve_helper(void)
{
    rw_fill(buffer, 3000, 1, 0);
    rw_send_all(fd, buffer, 3000);
    rw_rest();
    rw_meet();
    rw_expect(fd, 11);
    rw_say(fd, "and back");
    rw_expect(fd, 4);
    T(recv(fd, buffer, 1, 0));
}

static void become(const char *kind)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE serve_helper();
    A_SIDE {
        rw_rest();
        rw_expect(fd, 1000);
        execl(rw_helper(kind), "helper", number_of(fd), "m", "r2000", "whelper here", "r8", "wdone", NULL);
        rw_die(__FILE__, __LINE__, "execl");
    }
}

CASE(exec_of_a_program)
{
    become("DYNAMIC");
}

CASE(exec_of_a_static_program)
{
    become("STATIC");
}

static void child_becomes(const char *kind)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        serve_helper();
    }
    A_SIDE {
        rw_rest();
        rw_expect(fd, 1000);
        pid_t child = rw_fork();
        if (child == 0) {
            execl(rw_helper(kind), "helper", number_of(fd), "m", "r2000", "whelper here", "r8", "wdone", NULL);
            rw_die(__FILE__, __LINE__, "execl");
        }
        rw_reap(child);
        T(close(fd));
    }
}

CASE(fork_and_exec_of_a_program)
{
    child_becomes("DYNAMIC");
}

CASE(fork_and_exec_of_a_static_program)
{
    child_becomes("STATIC");
}

/* The parent waits for its child and then goes on with the same connection. */
static void child_borrows(const char *kind, bool by_vfork)
{
    rw_warm(fd, RW_BLOCK);
    for (int round = 0; round < 2; round++) {
        B_SIDE {
            rw_say(fd, "question");
            rw_expect(fd, 8);
        }
        A_SIDE {
            pid_t child;
            const char *path = rw_helper(kind), *number = number_of(fd);
            if (by_vfork) {
                child = vfork();
                if (child == 0) {
                    execl(path, "helper", number, "r8", "wanswered", NULL);
                    _exit(9);
                }
            } else {
                char *arguments[] = { "helper", (char *)number, "r8", "wanswered", NULL };
                MUST(-posix_spawn(&child, path, NULL, NULL, arguments, environ));
            }
            rw_reap(child);
        }
        rw_exchange(fd);
    }
    rw_warm(fd, RW_BLOCK);
    rw_exchange(fd);
}

CASE(spawn_of_a_program)
{
    child_borrows("DYNAMIC", false);
}

CASE(spawn_of_a_static_program)
{
    child_borrows("STATIC", false);
}

CASE(vfork_and_exec_of_a_program)
{
    child_borrows("DYNAMIC", true);
}

CASE(vfork_and_exec_of_a_static_program)
{
    child_borrows("STATIC", true);
}

static void *send_much(void *length)
{
    for (size_t at = 0; at < *(size_t *)length; at += sizeof buffer) {
        rw_fill(buffer, sizeof buffer, 1, at);
        rw_send_all(fd, buffer, sizeof buffer);
    }
    return NULL;
}

/* More than all buffers hold goes both ways, and the new program takes nothing before it has sent everything. */
CASE(a_static_program_that_sends_first)
{
    static size_t length = 16 << 20;
    char send[24], take[24];
    snprintf(send, sizeof send, "s%zu", length);
    snprintf(take, sizeof take, "t%zu", length);
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        pthread_t sender;
        pthread_create(&sender, NULL, send_much, &length);
        rw_recv_stream(fd, 2, length);
        pthread_join(sender, NULL);
        T(recv(fd, buffer, 1, 0));
    }
    A_SIDE {
        /* The other side goes on over TCP meanwhile, behind what it has left unread elsewhere. */
        rw_sleep_ms(100);
        execl(rw_helper("STATIC"), "helper", number_of(fd), send, take, NULL);
        rw_die(__FILE__, __LINE__, "execl");
    }
}

CASE(exec_that_fails)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE rw_say(fd, "unread");
    rw_rest();
    A_SIDE {
        char *arguments[] = { "none", NULL };
        T(execv("/nonexistent/program", arguments));
        T(execvp("/nonexistent/program", arguments));
        T(execve("/dev/null", arguments, environ));
        rw_expect(fd, 6);
    }
    rw_exchange(fd);
}

/* A name is looked for by exec itself. The descriptor would have been closed with bytes unread; it is not. */
CASE(exec_by_a_name_that_fails)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE rw_say(fd, "unread");
    rw_rest();
    A_SIDE {
        char *arguments[] = { "none", NULL };
        struct linger linger = { 1, 5 };
        socklen_t length = sizeof linger;
        MUST(fcntl(fd, F_SETFD, FD_CLOEXEC));
        T(execvp("ropeway-has-no-such-program", arguments));
        MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, length));
        T(execvp("ropeway-has-no-such-program", arguments));
        MUST(getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &length));
        rw_note("linger %d %d", linger.l_onoff, linger.l_linger);
        rw_expect(fd, 6);
        T(close(fd));
    }
    B_SIDE T(recv(fd, buffer, 10, 0));
}

CASE(closed_by_exec)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        rw_say(fd, "parting");
        MUST(fcntl(fd, F_SETFD, FD_CLOEXEC));
        execl(rw_helper("DYNAMIC"), "helper", number_of(fd), "z", "wnobody", "m", NULL);
        rw_die(__FILE__, __LINE__, "execl");
    }
    B_SIDE {
        rw_rest();
        rw_expect(fd, 7);
        T(recv(fd, buffer, 10, 0));
        rw_meet();
    }
}

/* Programs that know nothing of the connection but inherit it for a while. */
CASE(other_programs_beside)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        T(system("exit 3"));
        FILE *pipe = popen("echo words", "r");
        char line[20];
        rw_bytes("popen", line, fgets(line, sizeof line, pipe) ? (long)strlen(line) : -1);
        T(pclose(pipe));
        MUST(fcntl(fd, F_SETFD, FD_CLOEXEC));
        T(system("exit 4"));
        pid_t child;
        char *arguments[] = { "true", NULL };
        MUST(-posix_spawnp(&child, "true", NULL, NULL, arguments, environ));
        rw_reap(child);
        child = vfork();
        if (child == 0) {
            execlp("true", "true", NULL);
            _exit(9);
        }
        rw_reap(child);
        child = vfork();
        if (child == 0)
            _exit(5);
        rw_reap(child);
    }
    rw_exchange(fd);
    rw_warm(fd, RW_BLOCK);
    rw_exchange(fd);
}

/* What a child becomes is no reason for its parent's reads to wait, though the peer is asleep in a set and would have to help. */
CASE(read_beside_a_child_that_becomes_a_program)
{
    struct epoll_event event = { .events = EPOLLIN };
    int set = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    rw_warm_epoll(fd, set);
    B_SIDE {
        rw_say(fd, "request");
        rw_tell();
        T(epoll_wait(set, &event, 1, 10000));
        rw_expect(fd, 6);
    }
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        pid_t child = rw_fork();
        if (child == 0) {
            execlp("true", "true", NULL);
            _exit(9);
        }
        rw_sleep_ms(20);
        double begun = rw_now_ms();
        rw_expect(fd, 7);
        YES(rw_now_ms() - begun < 500);
        rw_reap(child);
        rw_say(fd, "answer");
    }
}

/* A background program keeps the descriptor longer than we do: the connection ends when that program ends. */
CASE(inherited_by_a_background_program)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        pid_t child = rw_fork();
        if (child == 0) {
            execlp("sleep", "sleep", "0.15", NULL);
            _exit(9);
        }
        rw_sleep_ms(30);
        rw_say(fd, "last");
        T(close(fd));
        rw_meet();
        rw_reap(child);
        rw_rest();
    }
    B_SIDE {
        rw_meet();
        rw_expect(fd, 4);
        T(recv(fd, buffer, 10, MSG_DONTWAIT));
        rw_rest();
        T(recv(fd, buffer, 10, 0));
    }
}

/* ---- descriptors in messages ---- */

static void give(int channel, int descriptor)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } control = { .header = { .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS } };
    struct iovec part = { "d", 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes };
    memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
    MUST(sendmsg(channel, &message, 0));
}

static int take(int channel)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } control;
    char byte;
    struct iovec part = { &byte, 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes };
    long got = recvmsg(channel, &message, 0);
    int descriptor = -1;
    if (got == 1 && message.msg_controllen >= CMSG_LEN(sizeof(int)))
        memcpy(&descriptor, CMSG_DATA(&control.header), sizeof descriptor);
    rw_note("taken: %ld, %s", got, descriptor >= 0 ? "with a descriptor" : "without");
    return descriptor;
}

/*
 * A's child is forked before the connection exists, so the message is its only way to it. `keeps`: the giver goes on with it as well.
 */
static void pass(bool warm_first, bool keeps)
{
    int channel[2];
    pid_t child = -1;
    A_SIDE {
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
        child = rw_fork();
    }
    bool receiver = rw_is_a && child == 0;
    if (!receiver) {
        fd = rw_another();
        rw_nodelay(fd);
        if (warm_first)
            rw_warm(fd, RW_BLOCK);
    }
    B_SIDE rw_say(fd, "unread at the time");
    if (!receiver)
        rw_rest();
    if (receiver) {
        MUST(close(channel[0]));
        fd = take(channel[1]);
        rw_expect(fd, 18);
        rw_exchange(fd);
        rw_warm(fd, RW_BLOCK);
        rw_exchange(fd);
        exit(0);
    }
    A_SIDE {
        MUST(close(channel[1]));
        give(channel[0], fd);
        if (!keeps)
            MUST(close(fd));
        rw_reap(child);
    } else {
        rw_exchange(fd);
        rw_warm(fd, RW_BLOCK);
        rw_exchange(fd);
    }
    if (keeps)
        rw_exchange(fd);
    rw_rest();
    if (keeps)
        A_SIDE MUST(close(fd));
    rw_rest();
    B_SIDE T(recv(fd, buffer, 10, 0));
}

CASE(given_away)
{
    pass(true, false);
}

CASE(given_and_kept)
{
    pass(true, true);
}

CASE(given_away_early)
{
    pass(false, false);
}

/* In flight between two holders the connection has no process at all, and must not notice. */
CASE(in_flight_and_held_by_nobody)
{
    int channel[2];
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
        give(channel[0], fd);
        MUST(close(fd));
    }
    rw_rest();
    B_SIDE {
        T(recv(fd, buffer, 10, MSG_DONTWAIT));
        rw_say(fd, "to nobody in particular");
    }
    rw_rest();
    A_SIDE {
        fd = take(channel[1]);
        rw_expect(fd, 23);
    }
    rw_exchange(fd);
    rw_warm(fd, RW_BLOCK);
    rw_exchange(fd);
}

/* A message that nobody receives: closing the channel closes the connection. */
CASE(lost_in_flight)
{
    int channel[2];
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
        give(channel[0], fd);
        MUST(close(fd));
        MUST(close(channel[0]));
        MUST(close(channel[1]));
    }
    rw_rest();
    B_SIDE T(recv(fd, buffer, 10, 0));
}

CASE(listener_given_away)
{
    int channel[2];
    pid_t child = -1;
    A_SIDE {
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
        child = rw_fork();
        if (child > 0) {
            give(channel[0], rw_listener);
            MUST(close(rw_listener));
            rw_reap(child);
            return;
        }
        MUST(close(rw_listener));
        rw_listener = take(channel[1]);
    }
    fd = rw_another();
    rw_nodelay(fd);
    rw_warm(fd, RW_BLOCK);
    rw_exchange(fd);
    A_SIDE exit(0);
}

RW_MAIN(ENTRY(exec_of_a_program), ENTRY(exec_of_a_static_program), ENTRY(fork_and_exec_of_a_program),
    ENTRY(fork_and_exec_of_a_static_program), ENTRY(spawn_of_a_program), ENTRY(spawn_of_a_static_program),
    ENTRY(vfork_and_exec_of_a_program), ENTRY(vfork_and_exec_of_a_static_program), ENTRY(a_static_program_that_sends_first),
    ENTRY(exec_that_fails), ENTRY(exec_by_a_name_that_fails), ENTRY(closed_by_exec),
    ENTRY(other_programs_beside), ENTRY(read_beside_a_child_that_becomes_a_program), ENTRY(inherited_by_a_background_program), ENTRY_WITH(given_away, RW_ALONE),
    ENTRY_WITH(given_and_kept, RW_ALONE), ENTRY_WITH(given_away_early, RW_ALONE), ENTRY(in_flight_and_held_by_nobody),
    ENTRY(lost_in_flight), ENTRY_WITH(listener_given_away, RW_ALONE))
