/* Every way to start a process or another program: results, arguments, environment, descriptors, how it ended. */
#include "transcript.h"

#include <dlfcn.h>
#include <pty.h>
#include <sched.h>
#include <spawn.h>

extern char **environ;
extern pid_t _Fork(void);
static const char *self;
static int ends[2];

/* What a program that was started says of itself. */
static int started(int argc, char **argv)
{
    char line[256] = "";
    for (int i = 2; i < argc; i++)
        snprintf(line + strlen(line), sizeof line - strlen(line), " %s", argv[i]);
    const char *colour = getenv("COLOUR");
    say("started:%s (COLOUR=%s)", line, colour ? colour : "");
    return argc;
}

static void with_exec(const char *how, int (*exec)(void))
{
    say("-- %s", how);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        exec();
        say("%s failed: %s", how, error_name(errno));
        _exit(1);
    }
    reap(child);
    through(ends[0], ends[1], how);
}

static char *const list[] = { "launch", "started", "a", "list", NULL };
static char *const blue[] = { "COLOUR=blue", NULL };
static int by_execv(void) { return execv(self, list); }
static int by_execve(void) { return execve(self, list, blue); }
static int by_execvp(void) { return execvp(self, list); }
static int by_execvpe(void) { return execvpe(self, list, blue); }
static int by_execl_short(void) { return execl(self, "launch", "started", NULL); }
static int by_execl(void)
{
    return execl(self, "launch", "started", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", NULL);
}
static int by_execlp(void) { return execlp(self, "launch", "started", "1", "2", "3", NULL); }
static int by_execle(void) { return execle(self, "launch", "started", "1", "2", "3", "4", "5", NULL, blue); }
static int by_execle_short(void) { return execle(self, "launch", "started", NULL, blue); }
static int by_fexecve(void) { return fexecve(open(self, O_RDONLY | O_CLOEXEC), list, blue); }
static int by_execveat(void) { return execveat(AT_FDCWD, self, list, blue, 0); }
static int by_number(void) { return (int)syscall(SYS_execve, self, list, blue); }
static int in_vain(void) { return execl("/nonexistent", "nonexistent", "1", "2", "3", "4", "5", "6", "7", NULL); }

static void all_of_exec(void)
{
    with_exec("execv", by_execv);
    with_exec("execve", by_execve);
    with_exec("execvp", by_execvp);
    with_exec("execvpe", by_execvpe);
    with_exec("execl with two", by_execl_short);
    with_exec("execl with many", by_execl);
    with_exec("execlp", by_execlp);
    with_exec("execle", by_execle);
    with_exec("execle with two", by_execle_short);
    with_exec("fexecve", by_fexecve);
    with_exec("execveat", by_execveat);
    with_exec("syscall(SYS_execve)", by_number);
    with_exec("in vain", in_vain);
}

/* The child writes on this very stack while the parent waits; what it closes and opens must not matter to the parent. */
static __attribute__((noinline)) void by_vfork(const char *path)
{
    int depth = 12345;
    volatile int seen = 0;
    pid_t child = vfork();
    if (child == 0) {
        seen = 1;
        close(ends[0]);
        close(ends[1]);
        dup2(2, ends[0]);
        socket(AF_INET, SOCK_STREAM, 0);
        signal(SIGUSR1, SIG_IGN);
        execl(path, "launch", "started", "by", "vfork", NULL);
        _exit(7);
    }
    reap(child);
    YES(depth == 12345);
    YES(seen == 1);
    through(ends[0], ends[1], "after vfork");
}

static int in_clone(void *arg)
{
    say("in clone: %s", (const char *)arg);
    through(ends[0], ends[1], "inside clone");
    return 3;
}

static void by_clone(void)
{
    static char stack[65536] __attribute__((aligned(16)));
    pid_t child = (pid_t)MUST(clone(in_clone, stack + sizeof stack, SIGCHLD, "own memory"));
    reap(child);
    child = (pid_t)MUST(clone(in_clone, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, "shared memory"));
    reap(child);
    child = (pid_t)MUST(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    if (child == 0)
        _exit(in_clone("by number"));
    reap(child);
    T(clone(in_clone, NULL, SIGCHLD, "no stack"));
    through(ends[0], ends[1], "after clone");
}

static void by_fork(const char *how, pid_t (*make)(void))
{
    pid_t child = make();
    if (child == 0) {
        say("child of %s", how);
        through(ends[0], ends[1], "inside the child");
        _exit(4);
    }
    MUST(child);
    reap(child);
    through(ends[1], ends[0], how);
}
static pid_t fork_by_number(void) { return (pid_t)syscall(SYS_fork); }

static void by_spawn(void)
{
    pid_t child;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, 1, 100);
    int first = posix_spawn(&child, self, &actions, NULL, list, blue);
    reap(child);
    int second = posix_spawnp(&child, self, NULL, NULL, list, environ);
    reap(child);
    say("posix_spawn = %d, posix_spawnp = %d", first, second);
    T(posix_spawn(&child, "/nonexistent", NULL, NULL, list, environ));
    int pipes[2];
    MUST(pipe(pipes));
    posix_spawn_file_actions_adddup2(&actions, ends[0], 9);
    char *const shell[] = { "sh", "-c", "echo by spawn >&9", NULL };
    int third = posix_spawnp(&child, "sh", &actions, NULL, shell, environ);
    reap(child);
    say("posix_spawnp = %d", third);
    char buffer[32];
    long got = recv(ends[1], buffer, sizeof buffer, 0);
    say("from the spawned: %.*s", (int)got - 1, buffer);
    through(ends[0], ends[1], "after spawn");
}

typedef int spawner(int *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[], char *const[]);

/* The C library has these since 2.39. To have none is as much as to have one that says ENOSYS, and programs then do without. */
static void by_pidfd(const char *name)
{
    spawner *spawn = (spawner *)dlsym(RTLD_DEFAULT, name);
    int pidfd = -1;
    int answer = spawn ? spawn(&pidfd, self, NULL, NULL, list, blue) : ENOSYS;
    say("%s: %s", name, error_name(answer));
    if (answer == 0) {
        siginfo_t ended;
        T(waitid(P_PIDFD, (id_t)pidfd, &ended, WEXITED));
        close(pidfd);
    }
}

static void by_shell(void)
{
    char line[64] = "";
    T(system("exit 3"));
    T(system(NULL));
    FILE *stream = popen("echo through popen", "r");
    YES(fgets(line, sizeof line, stream) != NULL && !strcmp(line, "through popen\n"));
    T(pclose(stream));
    int master;
    pid_t child = forkpty(&master, NULL, NULL, NULL);
    if (child == 0) {
        printf("terminal %d\n", isatty(0) && isatty(1));
        fflush(stdout);
        _exit(0);
    }
    long got = read(master, line, sizeof line);
    say("from the terminal: %.*s", got > 2 ? (int)got - 2 : 0, line);
    reap(child);
    through(ends[0], ends[1], "after the shell");
}

static void by_daemon(void)
{
    int pipes[2];
    MUST(pipe(pipes));
    pid_t before = getpid(), child = (pid_t)MUST(fork());
    if (child == 0) {
        int result = daemon(0, 0);
        char line[64], name[64] = "";
        long length = readlink("/proc/self/fd/0", name, sizeof name);
        int written = snprintf(line, sizeof line, "daemon = %d, %d, %.*s, leads %d", result, getppid() != before, (int)length, name,
                               getsid(0) == getpid());
        MUST(write(pipes[1], line, (size_t)written));
        _exit(5);
    }
    reap(child);
    char line[64];
    long got = read(pipes[0], line, sizeof line);
    say("%.*s", (int)got, line);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "started"))
        return started(argc, argv);
    self = realpath(argv[0], NULL);
    setenv("COLOUR", "red", 1);
    connection(ends);
    through(ends[0], ends[1], "at first");
    all_of_exec();
    by_vfork(self);
    by_vfork("/nonexistent");
    by_clone();
    by_fork("fork", fork);
    by_fork("_Fork", _Fork);
    by_fork("syscall(SYS_fork)", fork_by_number);
    by_spawn();
    by_pidfd("pidfd_spawn");
    by_pidfd("pidfd_spawnp");
    by_shell();
    by_daemon();
    through(ends[0], ends[1], "at last");
    return 0;
}
