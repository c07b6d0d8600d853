/* A seccomp filter that allows what the program itself does from then on, and kills it for anything else. */
#include "transcript.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>

enum { MEMBERS = 4, MANY = 200 };

static int ends[2], ended[2], members[MEMBERS][2], late_read[2], fresh[2], go[2], done[2];

/* A thread that was there before the filter, and touches a connection only behind it. */
static void *late(void *nothing)
{
    char byte;
    MUST(read(go[0], &byte, 1));
    through(ends[0], ends[1], "from another thread");
    MUST(write(done[1], "", 1));
    MUST(read(go[0], &byte, 1));
    return nothing;
}

/* What a set says now, in the order in which its members were entered. */
static void reported(int set)
{
    struct epoll_event events[MEMBERS];
    uint64_t ready = 0;
    long n = epoll_wait(set, events, MEMBERS, 0);
    for (long i = 0; i < n; i++)
        ready |= events[i].data.u64;
    say("%ld members are ready: %#llx", n, (unsigned long long)ready);
}

static void filter(bool by_number)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendto, 14, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_recvfrom, 13, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_read, 12, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 11, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close, 10, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 9, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_connect, 8, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_accept, 7, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_poll, 6, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pselect6, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_wait, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_dup, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_dup2, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof code / sizeof *code, code };
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    /* By number it can be for all threads at once. */
    if (by_number)
        MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program));
    else
        MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

/* What a child shares is read behind the filter by another number than before, which then stands for something else. */
static void read_by_a_duplicate(void)
{
    int other[2];
    char buffer[64] = "";
    connection(ends);
    for (int i = 0; i < 100; i++) {
        through(ends[0], ends[1], "before the child");
        through(ends[1], ends[0], "and an answer");
        usleep(100);
    }
    MUST(pipe(go));
    MUST(pipe(other));
    if (MUST(fork()) == 0) {
        close(go[1]);
        (void)!read(go[0], buffer, 1);
        _exit(0);
    }
    MUST(send(ends[0], "unread until then", 17, 0));
    MUST(write(other[1], "of the pipe", 11));
    filter(false);
    int again = (int)MUST(dup(ends[1]));
    T(recv(again, buffer, 6, MSG_DONTWAIT));
    MUST(dup2(other[0], ends[1]));
    T(read(ends[1], buffer, sizeof buffer));
    T(recv(again, buffer, 10, MSG_DONTWAIT));
    say("%.10s", buffer);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "shared")) {
        read_by_a_duplicate();
        return 0;
    }
    static const uint32_t wanted[MEMBERS] = { EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT, EPOLLIN | EPOLLONESHOT };
    bool by_number = argc > 1 && !strcmp(argv[1], "by number");
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    char buffer[64];
    pthread_t thread;
    connection(ends);
    connection(ended);
    int set = (int)MUST(epoll_create1(0));
    for (int i = 0; i < MEMBERS; i++) {
        connection(members[i]);
        struct epoll_event event = { wanted[i], { .u64 = 1u << 4 * i } };
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, members[i][1], &event));
    }
    /* One of which the last bytes are read only behind the filter. */
    connection(late_read);
    int second_set = (int)MUST(epoll_create1(0));
    MUST(epoll_ctl(second_set, EPOLL_CTL_ADD, late_read[1], &(struct epoll_event) { EPOLLIN, { .u64 = 77 } }));
    int listener = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(bind(listener, (struct sockaddr *)&address, length));
    MUST(listen(listener, 8));
    MUST(getsockname(listener, (struct sockaddr *)&address, &length));
    MUST(pipe(go));
    MUST(pipe(done));
    MUST(pthread_create(&thread, NULL, late, NULL));
    /* How programs ask whether the kernel knows filters. */
    T(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL));
    T(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL));
    for (int i = 0; i < 100; i++) {
        through(ends[0], ends[1], "before the filter");
        through(ended[0], ended[1], "before the end");
        through(late_read[0], late_read[1], "all but the rest");
        for (int k = 0; k < MEMBERS; k++) {
            through(members[k][0], members[k][1], "before a member is left to the kernel");
            through(members[k][1], members[k][0], "and an answer");
        }
        usleep(100);
    }
    /* One that has fired, and is not asked for again. */
    MUST(send(members[3][0], "fired", 5, 0));
    reported(set);
    MUST(recv(members[3][1], buffer, sizeof buffer, 0));
    MUST(send(late_read[0], "rest", 4, 0));
    filter(by_number);
    for (int i = 0; i < 1000; i++)
        through(ends[0], ends[1], "behind the filter");
    MUST(write(go[1], "", 1));
    MUST(read(done[0], buffer, 1));

    reported(set);
    for (int i = 0; i < MEMBERS; i++)
        MUST(send(members[i][0], "news", 4, 0));
    reported(set);
    reported(set);

    struct epoll_event event;
    T(epoll_wait(second_set, &event, 1, 10000));
    say("for %llu", (unsigned long long)event.data.u64);
    T(recv(late_read[1], buffer, sizeof buffer, 0));
    MUST(send(late_read[0], "more", 4, 0));
    T(epoll_wait(second_set, &event, 1, 10000));
    T(recv(late_read[1], buffer, sizeof buffer, 0));

    struct pollfd waits[MANY];
    for (int i = 0; i < MANY; i++)
        waits[i] = (struct pollfd) { members[i % MEMBERS][1], POLLIN, 0 };
    T(poll(waits, MANY, 0));
    fd_set readable;
    FD_ZERO(&readable);
    for (int i = 0; i < MEMBERS; i++)
        FD_SET(members[i][1], &readable);
    T(select(FD_SETSIZE, &readable, NULL, NULL, &(struct timeval) { 0, 0 }) == MEMBERS);

    T(close(ended[0]));
    T(recv(ended[1], buffer, sizeof buffer, 0));
    T(read(ended[1], buffer, sizeof buffer));
    /* New ones, more than after which processes that died are looked for. */
    for (int i = 0; i < 1100; i++)
        MUST(close((int)MUST(socket(AF_INET, SOCK_STREAM, 0))));
    fresh[0] = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(fresh[0], (struct sockaddr *)&address, length));
    fresh[1] = (int)MUST(accept(listener, NULL, NULL));
    through(fresh[0], fresh[1], "through a new one");
    through((int)MUST(dup(fresh[1])), fresh[0], "and back from a duplicate");
    T(close(fresh[1]));
    T(close(ends[0]));
    T(close(ends[1]));
    return 0;
}
