/* Functions whose arguments are not what a simple hook would pass on: variable, floating-point, on the stack, checked for size. */
#include "transcript.h"

#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/uio.h>

extern ssize_t __read_chk(int, void *, size_t, size_t), __recv_chk(int, void *, size_t, size_t, int);
extern ssize_t __recvfrom_chk(int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *);
extern int __poll_chk(struct pollfd *, nfds_t, int, size_t), __dprintf_chk(int, int, const char *, ...);
extern int __ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t);
static int ends[2], pipes[2];

static void formatted(int to, int from)
{
    char buffer[512];
    T(dprintf(to, "%d %s %.3f %c %.1f %ld %.2f %x %g %g %g %g %g %g %d %d %d %d\n", 1, "two", 3.25, '4', 5.5, 6l, 7.75, 8, 9.0, 10.0, 11.0,
        12.0, 13.0, 14.0, 15, 16, 17, 18));
    long got = read(from, buffer, sizeof buffer);
    say("%.*s", (int)got - 1, buffer);
    T(__dprintf_chk(to, 1, "%s %.2f %d\n", "checked", 2.5, 3));
    got = read(from, buffer, sizeof buffer);
    say("%.*s", (int)got - 1, buffer);
}

static void listed(int to, int from, const char *format, ...)
{
    char buffer[512];
    va_list args;
    va_start(args, format);
    int written = vdprintf(to, format, args);
    va_end(args);
    long got = read(from, buffer, sizeof buffer);
    say("vdprintf = %d: %.*s", written, (int)got, buffer);
}

static void with_a_stream(void)
{
    char line[64];
    FILE *stream = fdopen(ends[0], "r+");
    YES(stream != NULL && fileno(stream) == ends[0]);
    MUST(send(ends[1], "a line\nanother\n", 15, 0));
    YES(fgets(line, sizeof line, stream) != NULL && !strcmp(line, "a line\n"));
    YES(fgets(line, sizeof line, stream) != NULL && !strcmp(line, "another\n"));
    fprintf(stream, "answer %d\n", 42);
    T(fflush(stream));
    long got = recv(ends[1], line, sizeof line, 0);
    say("%.*s", (int)got - 1, line);
    T(fclose(stream));
    T(send(ends[0], "x", 1, 0));
    /* The number means a file now. */
    int file = open("/dev/zero", O_RDWR);
    YES(file == ends[0]);
    T(read(file, line, 10));
    T(write(file, line, 10));
    close(file);
    close(ends[1]);
    connection(ends);
}

static void checked(void)
{
    char buffer[64];
    struct pollfd entry = { ends[1], POLLIN, 0 };
    MUST(send(ends[0], "0123456789", 10, 0));
    T(__read_chk(ends[1], buffer, 2, sizeof buffer));
    T(__recv_chk(ends[1], buffer, 2, sizeof buffer, 0));
    T(__recvfrom_chk(ends[1], buffer, 2, sizeof buffer, 0, NULL, NULL));
    T(__poll_chk(&entry, 1, 100, sizeof entry));
    T(__ppoll_chk(&entry, 1, &(struct timespec) { 0, 1000 }, NULL, sizeof entry));
    for (int i = 0; i < 4; i++) {
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            close(2);
            if (i == 0)
                __read_chk(ends[1], buffer, 65, 64);
            if (i == 1)
                __recv_chk(ends[1], buffer, 65, 64, 0);
            if (i == 2)
                __poll_chk(&entry, 2, 0, sizeof entry);
            if (i == 3)
                __recvfrom_chk(ends[1], buffer, 65, 64, 0, NULL, NULL);
            say("not reached");
        }
        reap(child);
    }
    T(recv(ends[1], buffer, sizeof buffer, 0));
}

static void by_number(void)
{
    char buffer[64];
    struct iovec parts[2] = { { "ab", 2 }, { "cde", 3 } }, places[2] = { { buffer, 3 }, { buffer + 3, 10 } };
    struct msghdr out = { .msg_iov = parts, .msg_iovlen = 2 }, in = { .msg_iov = places, .msg_iovlen = 2 };
    struct pollfd entry = { ends[1], POLLIN, 0 };
    int waiting = -1, kind = -1;
    socklen_t length = sizeof kind;
    T(syscall(SYS_write, ends[0], "by number", 9));
    T(syscall(SYS_poll, &entry, 1, 1000));
    T(syscall(SYS_ioctl, ends[1], FIONREAD, &waiting));
    say("waiting %d", waiting);
    T(syscall(SYS_read, ends[1], buffer, 9));
    T(syscall(SYS_writev, ends[0], parts, 2));
    T(syscall(SYS_readv, ends[1], places, 2));
    T(syscall(SYS_sendto, ends[0], "to", 2, 0, NULL, 0));
    T(syscall(SYS_recvfrom, ends[1], buffer, 2, 0, NULL, NULL));
    T(syscall(SYS_sendmsg, ends[0], &out, 0));
    T(syscall(SYS_recvmsg, ends[1], &in, 0));
    T(syscall(SYS_getsockopt, ends[0], SOL_SOCKET, SO_TYPE, &kind, &length));
    say("kind %d", kind);
    long copy = T(syscall(SYS_dup3, ends[0], 77, O_CLOEXEC));
    T(syscall(SYS_fcntl, copy, F_GETFD));
    through((int)copy, ends[1], "through a copy");
    T(syscall(SYS_close, copy));
    T(syscall(SYS_close, copy));
    T(syscall(SYS_close_range, 77, 80, 0));
    T(syscall(SYS_prctl, PR_GET_DUMPABLE, 0, 0, 0, 0));
    T(syscall(SYS_getppid) == getppid());
    T(syscall(100000));
}

/* System calls of waits tell what is left of the time-out, which the C library's functions do not, and look at the set's size. */
static void waits_by_number(void)
{
    struct pollfd entry = { ends[1], POLLIN, 0 };
    sigset_t none;
    fd_set set;
    struct { const sigset_t *mask; size_t bytes; } right = { &none, 8 }, wrong = { &none, sizeof none };
    struct epoll_event event;
    sigemptyset(&none);
    for (int ready = 0; ready < 2; ready++) {
        struct timespec first = { ready * 1000, 20000000 }, second = first, third = { 0, 20000000 };
        FD_ZERO(&set);
        FD_SET(ends[1], &set);
        T(syscall(SYS_ppoll, &entry, 1, &first, &none, 8));
        say("none is left: %d", first.tv_sec == 0 && first.tv_nsec == 0);
        T(syscall(SYS_pselect6, ends[1] + 1, &set, NULL, NULL, &second, &right));
        say("none is left: %d", second.tv_sec == 0 && second.tv_nsec == 0);
        T(ppoll(&entry, 1, &third, NULL));
        say("as before: %d", third.tv_nsec == 20000000);
        if (!ready)
            T(write(ends[0], "x", 1));
    }
    T(read(ends[1], &(char) { 0 }, 1));
    int ep = (int)MUST(epoll_create1(0));
    T(syscall(SYS_ppoll, &entry, 1, NULL, &none, sizeof none));
    T(syscall(SYS_pselect6, ends[1] + 1, &set, NULL, NULL, NULL, &wrong));
    T(syscall(SYS_pselect6, 0, NULL, NULL, NULL, NULL, 8));
    T(syscall(SYS_epoll_pwait, ep, &event, 1, 0, &none, sizeof none));
    T(syscall(SYS_epoll_pwait, ep, &event, 1, 0, &none, 8));
    close(ep);
}

/* What is left is told where it can be written, and the wait is the same where it cannot. */
static void waits_with_a_constant_time(void)
{
    static const struct timespec fixed = { 0, 1000000 };
    struct pollfd entry = { ends[1] ? ends[1] : pipes[0], POLLIN, 0 };
    fd_set set;
    FD_ZERO(&set);
    FD_SET(entry.fd, &set);
    T(syscall(SYS_ppoll, &entry, 1, &fixed, NULL, 0));
    T(syscall(SYS_pselect6, entry.fd + 1, &set, NULL, NULL, &fixed, NULL));
}

static void *with_all_signals_blocked(void *nothing)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    waits_with_a_constant_time();
    return nothing;
}

/* Called with arguments that say something of their number: absent ones must not be missed. */
static void with_absent_arguments(void)
{
    T(fcntl(ends[0], F_GETFL) & O_ACCMODE);
    T(fcntl(ends[0], F_SETFL, O_NONBLOCK));
    T(recv(ends[0], &(char) { 0 }, 1, 0));
    int off = 0;
    T(ioctl(ends[0], FIONBIO, &off));
    T(fcntl(ends[0], F_GETFL) & O_NONBLOCK);
    T(ioctl(ends[0], FIOCLEX));
    T(fcntl(ends[0], F_GETFD));
    T(prctl(PR_GET_DUMPABLE));
    T(syscall(SYS_getpid) == getpid());
}

int main(void)
{
    alarm(20);
    MUST(pipe(pipes));
    pthread_t thread;
    formatted(pipes[1], pipes[0]);
    waits_with_a_constant_time();
    connection(ends);
    by_number();
    waits_by_number();
    waits_with_a_constant_time();
    MUST(-pthread_create(&thread, NULL, with_all_signals_blocked, NULL));
    pthread_join(thread, NULL);
    checked();
    with_absent_arguments();
    formatted(ends[0], ends[1]);
    listed(ends[0], ends[1], "%s %.2f %d", "listed", 2.5, 3);
    through(ends[0], ends[1], "still a connection");
    with_a_stream();
    through(ends[0], ends[1], "a new one in the same place");
    return 0;
}
