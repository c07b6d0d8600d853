/* See rw_test.h. This file: launcher, transcript, lockstep. Traffic and sockets are in rw_traffic.c. */
#include "rw_test.h"

#include <link.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

bool rw_is_a;
int fd = -1;
int rw_listener = -1;
volatile long *rw_shared;

/* Control descriptors live from here up, out of the way of cases that count on low numbers, and below the usual soft limit of 1024. */
#define CONTROL_BASE 900
#define HEAR_BOUND_MS 20000
/* Descendants that outlive A and B (a case about daemons leaves some) get this long to finish. */
#define ORPHAN_BOUND_MS 3000

/* The last words of the shared page belong to this file. */
enum { WORD_PORT = RW_SHARED_WORDS, WORD_PID_A, WORD_PID_B, WORDS_ALL };

struct control {
    int log;    /* appended to by every process of the side */
    int hear;   /* read end: bytes from the other side */
    int tell;   /* write end */
    int shared; /* memory behind rw_shared */
};
static struct control control;

/* ---- transcript ---- */

static const struct {
    int number;
    const char *name;
} errno_names[] = {
#define N(name) { name, #name }
    N(EPERM), N(ENOENT), N(EINTR), N(EIO), N(ENXIO), N(EBADF), N(ECHILD), N(EAGAIN), N(ENOMEM), N(EACCES), N(EFAULT), N(EEXIST),
    N(EINVAL), N(EMFILE), N(ENOTTY), N(EFBIG), N(ESPIPE), N(EPIPE), N(ENOSYS), N(ENOEXEC), N(ELOOP), N(EPROTO), N(EOVERFLOW),
    N(ENOTSOCK), N(EDESTADDRREQ), N(EMSGSIZE), N(EPROTOTYPE), N(ENOPROTOOPT), N(EPROTONOSUPPORT), N(EOPNOTSUPP), N(EAFNOSUPPORT),
    N(EADDRINUSE), N(EADDRNOTAVAIL), N(ENETUNREACH), N(ECONNABORTED), N(ECONNRESET), N(ENOBUFS), N(EISCONN), N(ENOTCONN),
    N(ETIMEDOUT), N(ECONNREFUSED), N(EHOSTUNREACH), N(EALREADY), N(EINPROGRESS), N(ECANCELED),
#undef N
};

const char *rw_errno_name(int number)
{
    static __thread char unnamed[24];
    for (size_t i = 0; i < COUNT(errno_names); i++)
        if (errno_names[i].number == number)
            return errno_names[i].name;
    snprintf(unnamed, sizeof unnamed, "errno %d", number);
    return unnamed;
}

const char *rw_poll_names(int events)
{
    static __thread char text[128];
    static const struct {
        int bit;
        const char *name;
    } names[] = { { POLLIN, "IN" },   { POLLPRI, "PRI" },       { POLLOUT, "OUT" },       { POLLERR, "ERR" },       { POLLHUP, "HUP" },
                  { POLLNVAL, "NVAL" }, { POLLRDNORM, "RDNORM" }, { POLLRDBAND, "RDBAND" }, { POLLWRNORM, "WRNORM" }, { POLLWRBAND, "WRBAND" },
                  { POLLRDHUP, "RDHUP" } };
    text[0] = 0;
    for (size_t i = 0; i < COUNT(names); i++) {
        if (!(events & names[i].bit))
            continue;
        if (text[0])
            strcat(text, "|");
        strcat(text, names[i].name);
        events &= ~names[i].bit;
    }
    if (events)
        snprintf(text + strlen(text), sizeof text - strlen(text), "|%#x", events);
    return text[0] ? text : "none";
}

static void write_line(const char *line, size_t length)
{
    int saved = errno;
    while (length > 0) {
        ssize_t n = write(control.log, line, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            _exit(4);
        line += n;
        length -= (size_t)n;
    }
    errno = saved;
}

void rw_note(const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (n < 0 || n > (int)sizeof line - 2)
        n = (int)sizeof line - 2;
    line[n] = '\n';
    write_line(line, (size_t)n + 1);
}

long rw_result(const char *call, long value)
{
    if (value == -1)
        rw_note("%s = -1 %s", call, rw_errno_name(errno));
    else
        rw_note("%s = %ld", call, value);
    return value;
}

bool rw_answer(const char *question, bool answer)
{
    rw_note("%s? %s", question, answer ? "yes" : "NO");
    return answer;
}

void rw_bytes(const char *what, const void *bytes, long length)
{
    uint64_t hash = 0xcbf29ce484222325u;
    char shown[25];
    long i;
    if (length < 0) {
        rw_note("%s: nothing", what);
        return;
    }
    for (i = 0; i < length; i++)
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3u;
    for (i = 0; i < length && i < (long)sizeof shown - 1; i++) {
        char c = ((const char *)bytes)[i];
        shown[i] = c > ' ' && c < 127 ? c : '.';
    }
    shown[i] = 0;
    rw_note("%s: %ld bytes %016llx %s", what, length, (unsigned long long)hash, shown);
}

void rw_die(const char *file, int line, const char *call)
{
    rw_note("FATAL %s:%d: %s: %s", strrchr(file, '/') ? strrchr(file, '/') + 1 : file, line, call, rw_errno_name(errno));
    exit(2);
}

/* ---- lockstep ---- */

double rw_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

void rw_sleep_ms(int ms)
{
    struct timespec left = { ms / 1000, (ms % 1000) * 1000000L };
    while (nanosleep(&left, &left) < 0 && errno == EINTR)
        ;
}

void rw_tell(void)
{
    ssize_t n;
    do
        n = write(control.tell, "!", 1);
    while (n < 0 && errno == EINTR);
}

static bool hear(void)
{
    double deadline = rw_now_ms() + HEAR_BOUND_MS;
    for (;;) {
        struct pollfd wait = { control.hear, POLLIN, 0 };
        int n = poll(&wait, 1, (int)(deadline - rw_now_ms()));
        if (n == 0 || (n < 0 && errno != EINTR)) {
            rw_note("FATAL no word from the other side within %d s", HEAR_BOUND_MS / 1000);
            exit(2);
        }
        if (n < 0)
            continue;
        char byte;
        ssize_t got = read(control.hear, &byte, 1);
        if (got == 1)
            return true;
        if (got == 0)
            return false;
    }
}

void rw_hear(void)
{
    if (!hear()) {
        rw_note("FATAL the other side is gone");
        exit(2);
    }
}

void rw_meet(void)
{
    rw_tell();
    rw_hear();
}

void rw_rest(void)
{
    rw_meet();
    rw_sleep_ms(12);
    rw_meet();
}

static char state_of(pid_t id)
{
    char path[40], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)id);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 'X';
    ssize_t n = read(file, text, sizeof text - 1);
    close(file);
    if (n <= 0)
        return 'X';
    text[n] = 0;
    const char *close_of_name = strrchr(text, ')');
    return close_of_name ? close_of_name[2] : 'X';
}

void rw_wait_asleep(pid_t id)
{
    double deadline = rw_now_ms() + 2000;
    int looks = 0;
    rw_sleep_ms(8);
    while (looks < 3 && rw_now_ms() < deadline) {
        looks = state_of(id) == 'S' ? looks + 1 : 0;
        rw_sleep_ms(3);
    }
}

pid_t rw_pid_of(bool side_a)
{
    return (pid_t)rw_shared[side_a ? WORD_PID_A : WORD_PID_B];
}

/* ---- processes ---- */

pid_t rw_fork(void)
{
    pid_t child = (pid_t)MUST(fork());
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return child;
}

void rw_reap(pid_t child)
{
    int status;
    pid_t got;
    do
        got = waitpid(child, &status, 0);
    while (got < 0 && errno == EINTR);
    if (got != child)
        rw_note("child: not there (%s)", rw_errno_name(errno));
    else if (WIFSIGNALED(status))
        rw_note("child: signal %d", WTERMSIG(status));
    else
        rw_note("child: exit %d", WEXITSTATUS(status));
}

static int add_thread_locals(struct dl_phdr_info *object, size_t size, void *sum)
{
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++)
        *(size_t *)sum += object->dlpi_phdr[i].p_type == PT_TLS ? object->dlpi_phdr[i].p_memsz : 0;
    return 0;
}

void rw_in_small_thread(size_t room, void *(*body)(void *))
{
    pthread_attr_t small;
    pthread_t thread;
    size_t size = room;
    dl_iterate_phdr(add_thread_locals, &size);
    MUST(-pthread_attr_init(&small));
    MUST(-pthread_attr_setstacksize(&small, size));
    MUST(-pthread_create(&thread, &small, body, NULL));
    MUST(-pthread_join(thread, NULL));
}

static void publish_for_exec(void)
{
    char text[80];
    snprintf(text, sizeof text, "%c %d %d %d %d", rw_is_a ? 'a' : 'b', control.log, control.hear, control.tell, control.shared);
    setenv("RW_ADOPT", text, 1);
}

static void map_shared(void)
{
    rw_shared = mmap(NULL, WORDS_ALL * sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, control.shared, 0);
    if (rw_shared == MAP_FAILED)
        _exit(4);
}

void rw_adopt(void)
{
    const char *text = getenv("RW_ADOPT");
    char side;
    if (!text || sscanf(text, "%c %d %d %d %d", &side, &control.log, &control.hear, &control.tell, &control.shared) != 5) {
        fprintf(stderr, "this program is a helper: it is started by the cases that exec\n");
        exit(2);
    }
    rw_is_a = side == 'a';
    map_shared();
}

const char *rw_helper(const char *kind)
{
    char variable[40];
    snprintf(variable, sizeof variable, "RW_HELPER_%s", kind);
    const char *path = getenv(variable);
    if (!path) {
        rw_note("FATAL %s is not set: it must name the helper program", variable);
        exit(2);
    }
    return path;
}

/* ---- launcher ---- */

static int to_control(int descriptor, int index)
{
    int moved = fcntl(descriptor, F_DUPFD, CONTROL_BASE + index);
    if (moved < 0) {
        perror("launcher: F_DUPFD");
        exit(2);
    }
    close(descriptor);
    return moved;
}

static void run_side(const struct rw_case *chosen, bool side_a)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGALRM, SIG_DFL);
    rw_is_a = side_a;
    publish_for_exec();
    if (rw_is_a) {
        uint16_t port;
        rw_listener = rw_listen(&port);
        rw_shared[WORD_PORT] = port;
    }
    rw_meet();
    if (!(chosen->flags & RW_ALONE)) {
        fd = rw_another();
        int on = 1;
        if (!(chosen->flags & RW_NAGLE))
            MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    }
    chosen->run();
    rw_tell();
    hear();
    exit(0);
}

/* Connects A and B once more: B connects, A accepts. */
int rw_another(void)
{
    int made = rw_is_a ? -1 : rw_connect((uint16_t)rw_shared[WORD_PORT]);
    if (rw_is_a)
        made = (int)MUST(accept(rw_listener, NULL, NULL));
    rw_meet();
    return made;
}

static int logs[2];

static void print_log(int which)
{
    char piece[4096];
    ssize_t n;
    off_t at = 0;
    printf("[%c]\n", which ? 'B' : 'A');
    while ((n = pread(logs[which], piece, sizeof piece, at)) > 0) {
        fwrite(piece, 1, (size_t)n, stdout);
        at += n;
    }
    fflush(stdout);
}

static void out_of_time(int number)
{
    (void)number;
    print_log(0);
    print_log(1);
    printf("TIMEOUT: the case did not end in time; what it said so far is above\n");
    fflush(stdout);
    kill(0, SIGKILL);
    _exit(5);
}

static pid_t start_side(const struct rw_case *chosen, bool side_a, int pipes[2][2], int alive[2])
{
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) {
        perror("launcher: fork");
        exit(2);
    }
    if (child > 0)
        return child;
    close(alive[0]);
    /* pipes[0] carries A's word to B, pipes[1] B's to A. */
    control.log = logs[side_a ? 0 : 1];
    control.tell = pipes[side_a ? 0 : 1][1];
    control.hear = pipes[side_a ? 1 : 0][0];
    close(logs[side_a ? 1 : 0]);
    /* The read end of the own pipe stays open, so that a word to a dead peer raises no SIGPIPE; the write end of the peer's pipe does
     * not, so that the death of the peer is the end of that pipe. */
    close(pipes[side_a ? 1 : 0][1]);
    /* The process number before anybody can ask for it. */
    rw_shared[side_a ? WORD_PID_A : WORD_PID_B] = getpid();
    run_side(chosen, side_a);
    return 0;
}

static void report_pids(pid_t a, pid_t b)
{
    const char *path = getenv("RW_PIDS");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file)
        return;
    fprintf(file, "%d %d\n", (int)a, (int)b);
    fclose(file);
}

static void print_end(char side, int status)
{
    if (WIFSIGNALED(status))
        printf("[%c ended by signal %d]\n", side, WTERMSIG(status));
    else
        printf("[%c exit %d]\n", side, WEXITSTATUS(status));
}

static int launch(const struct rw_case *chosen)
{
    int pipes[2][2], alive[2], status[2];
    pid_t sides[2];
    const char *bound = getenv("RW_TIMEOUT");
    setpgid(0, 0);
    for (int i = 0; i < 2; i++) {
        if (pipe(pipes[i]) < 0) {
            perror("launcher: pipe");
            return 2;
        }
        for (int end = 0; end < 2; end++)
            pipes[i][end] = to_control(pipes[i][end], 2 * i + end);
        logs[i] = to_control(memfd_create("transcript", 0), 4 + i);
        fcntl(logs[i], F_SETFL, O_APPEND);
    }
    control.shared = to_control(memfd_create("shared", 0), 6);
    if (ftruncate(control.shared, WORDS_ALL * sizeof(long)) < 0 || pipe(alive) < 0) {
        perror("launcher");
        return 2;
    }
    alive[1] = to_control(alive[1], 7);
    alive[0] = to_control(alive[0], 8);
    map_shared();
    /* Every process of the run inherits the write end of `alive`: its end of file says that all of them are gone. */
    sides[0] = start_side(chosen, true, pipes, alive);
    sides[1] = start_side(chosen, false, pipes, alive);
    close(alive[1]);
    for (int i = 0; i < 4; i++)
        close(pipes[i / 2][i % 2]);
    report_pids(sides[0], sides[1]);
    signal(SIGALRM, out_of_time);
    alarm(bound ? (unsigned)atoi(bound) : 40);
    for (int i = 0; i < 2; i++)
        while (waitpid(sides[i], &status[i], 0) < 0)
            ;
    struct pollfd last = { alive[0], 0, 0 };
    if (poll(&last, 1, ORPHAN_BOUND_MS) == 0)
        printf("[some process of the run is still there]\n");
    for (int i = 0; i < 2; i++) {
        print_log(i);
        print_end(i ? 'B' : 'A', status[i]);
    }
    return 0;
}

int rw_main(int argc, char **argv, const struct rw_case *cases, size_t count)
{
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < count; i++)
            puts(cases[i].name);
        return 0;
    }
    for (size_t i = 0; argc == 2 && i < count; i++)
        if (strcmp(argv[1], cases[i].name) == 0)
            return launch(&cases[i]);
    fprintf(stderr, "usage: %s --list | CASE\n", argv[0]);
    return 2;
}
