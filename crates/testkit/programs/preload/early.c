/* A library that is preloaded too, and uses the C library before anybody else has started. */
#include "transcript.h"

static void handler(int number) { (void)number; }

__attribute__((constructor)) static void start(void)
{
    int ends[2], pipes[2];
    char buffer[16];
    connection(ends);
    through(ends[0], ends[1], "early");
    MUST(pipe(pipes));
    MUST(dprintf(pipes[1], "%d %.1f", 1, 2.5));
    MUST(read(pipes[0], buffer, sizeof buffer));
    MUST(poll(&(struct pollfd) { pipes[0], POLLIN, 0 }, 1, 0));
    MUST(sigaction(SIGUSR2, &(struct sigaction) { .sa_handler = handler }, NULL));
    MUST(fcntl(pipes[0], F_GETFD));
    MUST(syscall(SYS_getpid));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0)
        _exit(0);
    reap(child);
    close(ends[0]);
    close(ends[1]);
    close(pipes[0]);
    close(pipes[1]);
}
