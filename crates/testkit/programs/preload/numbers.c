/* Descriptors: programs that close everything they did not open, or put something of their own in every place. */
#include "transcript.h"

#include <dirent.h>
#include <sys/resource.h>

extern void closefrom(int);
static int ends[2];

/* Descriptors that are open and that the program did not open: none, on plain TCP. */
static int strangers(int *list, int room)
{
    DIR *directory = opendir("/proc/self/fd");
    int found = 0, own = dirfd(directory);
    for (struct dirent *entry; (entry = readdir(directory));) {
        int fd = atoi(entry->d_name);
        if (fd > 2 && fd != own && fd != ends[0] && fd != ends[1] && found < room)
            list[found++] = fd;
    }
    closedir(directory);
    return found;
}

/* The program sees nothing but its own, whatever it asks; and whatever it closes, its connection goes on. */
static void unseen(void)
{
    int list[64], count = strangers(list, 64), closed = 0, duplicated = 0, seen = 0;
    for (int i = 0; i < count; i++) {
        seen += fcntl(list[i], F_GETFD) != -1 || errno != EBADF;
        duplicated += dup(list[i]) != -1 || errno != EBADF;
        duplicated += dup2(list[i], 90) != -1 || errno != EBADF;
        closed += close(list[i]) != -1 || errno != EBADF;
    }
    say("seen %d, duplicated %d, closed %d", seen, duplicated, closed);
}

static void close_in_a_loop(void)
{
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    say("soft limit %ld", (long)limit.rlim_cur);
    for (int fd = 3; fd < 25000; fd++)
        if (fd != ends[0] && fd != ends[1])
            close(fd);
}

/* The table, and what else there is before and after. */
static void survivors(void (*closes)(void), const char *how)
{
    int before[64], after[64];
    int count = strangers(before, 64);
    closes();
    YES(strangers(after, 64) == count && !memcmp(before, after, sizeof *before * (size_t)count));
    through(ends[0], ends[1], how);
    through(ends[1], ends[0], how);
}

static void by_ranges(void)
{
    int first = ends[0] < ends[1] ? ends[0] : ends[1], last = ends[0] < ends[1] ? ends[1] : ends[0];
    T(close_range(3, (unsigned)first - 1, 0) <= 0);
    if (first + 1 < last)
        MUST(close_range((unsigned)first + 1, (unsigned)last - 1, 0));
    T(close_range((unsigned)last + 1, ~0u, 0));
    T(close_range(5, 4, 0));
    T(close_range(3, ~0u, 8));
}

static void from_some_number(void)
{
    int high = (ends[0] > ends[1] ? ends[0] : ends[1]) + 1;
    dup2(1, high);
    dup2(1, high + 7);
    closefrom(high);
    YES(fcntl(high, F_GETFD) == -1 && fcntl(high + 7, F_GETFD) == -1);
}

static void in_a_child(void)
{
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        close_in_a_loop();
        closefrom(3);
        YES(send(ends[0], "x", 1, 0) == -1 && errno == EBADF);
        _exit(0);
    }
    reap(child);
    child = vfork();
    if (child == 0) {
        for (int fd = 3; fd < 25000; fd++)
            close(fd);
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    reap(child);
}

/* A file in every place that the limit allows: ours give way. */
static void replaced(void)
{
    int list[64], count = strangers(list, 64), taken = 0;
    for (int i = 0; i < count; i++)
        taken += dup2(2, list[i]) == list[i] || errno == EBADF;
    YES(taken == count);
    for (int i = 0; i < count; i++)
        close(list[i]);
}

static void limits(void)
{
    struct rlimit limit, other;
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = 100;
    T(setrlimit(RLIMIT_NOFILE, &limit));
    T(prlimit(0, RLIMIT_NOFILE, NULL, &other));
    say("limit %ld", (long)other.rlim_cur);
    int more[2], last = -1, opened = 0;
    connection(more);
    through(more[0], more[1], "near the limit");
    close(more[0]);
    close(more[1]);
    for (int fd; (fd = dup(2)) >= 0; opened++)
        last = fd;
    YES(errno == EMFILE);
    say("%d opened, the last is %d", opened, last);
    closefrom((ends[0] > ends[1] ? ends[0] : ends[1]) + 1);
}

int main(int argc, char **argv)
{
    closefrom(3);
    connection(ends);
    if (argc > 1 && !strcmp(argv[1], "strangers")) {
        int list[64];
        say("%d", strangers(list, 64));
        return 0;
    }
    through(ends[0], ends[1], "at first");
    unseen();
    survivors(close_in_a_loop, "after a loop of close");
    survivors(by_ranges, "after close_range");
    survivors(from_some_number, "after closefrom");
    survivors(in_a_child, "after children that closed everything");
    replaced();
    through(ends[0], ends[1], "after all places were taken");
    limits();
    through(ends[0], ends[1], "at last");
    return 0;
}
