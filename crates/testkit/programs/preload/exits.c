/* The ways out of a process. Whatever it used of its connection must be in what it leaves behind. */
#include "transcript.h"

static int ends[2];

static void leave_by(const char *way)
{
    if (!strcmp(way, "exit"))
        exit(3);
    if (!strcmp(way, "_exit"))
        _exit(3);
    if (!strcmp(way, "_Exit"))
        _Exit(3);
    if (!strcmp(way, "quick_exit"))
        quick_exit(3);
    if (!strcmp(way, "exit_group"))
        syscall(SYS_exit_group, 3);
    if (!strcmp(way, "exec"))
        execlp("sh", "sh", "-c", "exit 3", NULL);
    if (!strcmp(way, "exec in vain")) {
        execl("/nonexistent", "nonexistent", NULL);
        through(ends[0], ends[1], "ten bytes.");
        exit(3);
    }
    if (!strcmp(way, "daemon") && daemon(1, 1) == 0)
        exit(3);
    if (!strcmp(way, "vfork")) {
        if (vfork() == 0)
            _exit(0);
        exit(3);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    connection(ends);
    through(ends[0], ends[1], "ten bytes.");
    leave_by(argv[1]);
    return 3;
}
