/*
 * Signals by the thousand while a connection is in use: each must be delivered once, in order, with what was sent along, and its
 * handler must find the connection usable, even on the very socket that it interrupted.
 */
#include "transcript.h"

enum { SIGNALS = 20000 };
static int ends[2];
static volatile int expected, wrong, inside;
static pid_t sender;

static void check(int number, siginfo_t *info, void *context)
{
    (void)context;
    char byte;
    if (inside++ || number != SIGRTMIN || info->si_code != SI_QUEUE || info->si_pid != sender || info->si_value.sival_int != expected)
        wrong++;
    expected++;
    /* Calls that take every lock there is and change nothing. */
    if (recv(ends[1], &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno != EAGAIN)
        wrong++;
    if (send(ends[0], "", 0, MSG_DONTWAIT) != 0 && errno != EAGAIN)
        wrong++;
    inside--;
}

static void send_all(pid_t target, int start)
{
    char byte;
    MUST(read(start, &byte, 1));
    unsigned random = 1;
    for (int i = 0; i < SIGNALS;) {
        if (sigqueue(target, SIGRTMIN, (union sigval) { .sival_int = i }) == 0)
            i++;
        else if (errno != EAGAIN)
            _exit(1);
        /* At moments that have nothing to do with what the target is doing. */
        random = random * 1664525 + 1013904223;
        for (volatile unsigned wait = random >> 20; wait > 0; wait--)
            ;
    }
    _exit(0);
}

static long broken;

static void exchange(uint64_t message)
{
    uint64_t out = message * 0x9e3779b97f4a7c15u, in = 0;
    if (send(ends[0], &out, sizeof out, 0) != sizeof out || recv(ends[1], &in, sizeof in, MSG_WAITALL) != sizeof in || in != out)
        broken++;
}

int main(void)
{
    int start[2];
    alarm(60);
    struct sigaction action = { .sa_sigaction = check, .sa_flags = SA_SIGINFO | SA_RESTART };
    MUST(sigaction(SIGRTMIN, &action, NULL));
    MUST(pipe(start));
    pid_t self = getpid();
    /* Before there is a connection that it would share. */
    sender = (pid_t)MUST(fork());
    if (sender == 0)
        send_all(self, start[0]);
    connection(ends);
    uint64_t messages = 0;
    for (; messages < 2000; messages++)
        exchange(messages);
    MUST(write(start[1], "x", 1));
    while (expected < SIGNALS)
        exchange(messages++);
    sigset_t after;
    sigprocmask(SIG_BLOCK, NULL, &after);
    reap(sender);
    say("%d signals, %d wrong, %ld messages broken, mask %s", expected, wrong, broken,
        sigismember(&after, SIGUSR1) || sigismember(&after, SIGRTMIN) ? "changed" : "as before");
    return 0;
}
