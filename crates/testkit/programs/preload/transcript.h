/*
 * Support for the programs that compare the C library's functions with and without the preload: each writes what it observes to
 * standard output, and the two transcripts must be equal. Nothing here knows about Ropeway.
 */
#ifndef TRANSCRIPT_H
#define TRANSCRIPT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* A line, written at once: children and exec lose nothing that a stream would still hold. */
__attribute__((format(printf, 1, 2))) static inline void say(const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    line[length++] = '\n';
    for (int done = 0; done < length;) {
        long n = syscall(SYS_write, 1, line + done, length - done);
        if (n < 0)
            _exit(99);
        done += (int)n;
    }
}

static inline const char *error_name(int number)
{
    return number ? strerrorname_np(number) : "";
}

/* Makes a call and writes its text, result and errno. */
#define T(call)                                                                                                                    \
    ({                                                                                                                             \
        errno = 0;                                                                                                                 \
        long t_result = (long)(call);                                                                                              \
        say("%s = %ld %s", #call, t_result, error_name(errno));                                                                    \
        t_result;                                                                                                                  \
    })
/* Writes a statement and whether it holds: for values that differ from run to run. */
#define YES(condition) say("%s? %s", #condition, (condition) ? "yes" : "no")
/* Set-up that is not the subject. */
#define MUST(call)                                                                                                                 \
    ({                                                                                                                             \
        long must_result = (long)(call);                                                                                           \
        if (must_result < 0) {                                                                                                     \
            say("FATAL %s:%d: %s: %s", __FILE__, __LINE__, #call, strerror(errno));                                                \
            _exit(98);                                                                                                             \
        }                                                                                                                          \
        must_result;                                                                                                               \
    })

/* How a child ended. */
static inline void reap(pid_t child)
{
    int status = 0;
    MUST(waitpid(child, &status, 0));
    if (WIFEXITED(status))
        say("child exited with %d", WEXITSTATUS(status));
    else
        say("child ended by %s", sigabbrev_np(WTERMSIG(status)));
}

/* Both ends of a new connection over 127.0.0.1. */
static inline void connection(int ends[2])
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    int listener = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), on = 1;
    MUST(bind(listener, (struct sockaddr *)&address, length));
    MUST(listen(listener, 1));
    MUST(getsockname(listener, (struct sockaddr *)&address, &length));
    ends[0] = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    MUST(connect(ends[0], (struct sockaddr *)&address, length));
    ends[1] = (int)MUST(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
    for (int i = 0; i < 2; i++)
        MUST(setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    close(listener);
}

/* Sends a text through a connection and writes what arrives. */
static inline void through(int from, int to, const char *text)
{
    char buffer[256];
    long sent = send(from, text, strlen(text), 0);
    long got = sent < 0 ? -1 : recv(to, buffer, sizeof buffer, 0);
    say("through: %.*s", (int)(got < 0 ? 0 : got), buffer);
}

#endif
