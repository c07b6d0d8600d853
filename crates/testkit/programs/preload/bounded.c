/* Bounds that a program sets itself: on the size of files, and on what may leave memory. */
#include "transcript.h"

#include <sys/mman.h>
#include <sys/resource.h>

static void bound_files(rlim_t bytes)
{
    MUST(setrlimit(RLIMIT_FSIZE, &(struct rlimit) { bytes, bytes }));
}

/* KiB of memory that it shares with others, of what is not behind a file. */
static long shared_kib(void)
{
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        sscanf(line, "RssShmem: %ld", &kib);
    return kib;
}

int main(int argc, char **argv)
{
    const char *way = argc == 2 ? argv[1] : "";
    char buffer[64];
    int ends[2];
    if (!strcmp(way, "files"))
        bound_files(4096);
    if (!strcmp(way, "memory"))
        MUST(mlockall(MCL_CURRENT | MCL_FUTURE));
    connection(ends);
    if (!strcmp(way, "files later"))
        bound_files(100);
    for (int i = 0; i < 1000; i++) {
        MUST(send(ends[i % 2], "back and forth", 14, 0));
        MUST(recv(ends[!(i % 2)], buffer, 14, MSG_WAITALL));
        if (i % 20 == 0)
            usleep(1000);
    }
    through(ends[0], ends[1], "to the end");
    if (!strcmp(way, "memory"))
        say("%ld", shared_kib());
}
