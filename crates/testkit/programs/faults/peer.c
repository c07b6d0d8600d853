// One end of a TCP connection, driven by a script on the command line. The same script runs on plain TCP and under
// Ropeway, so that what a program sees of a fault can be compared.
//
// Every step prints one line: its name, the bytes it moved, and how it ended ("ok", "eof" or the name of an errno).
// Bytes are a function of their offset in the stream alone, so the reader finds a lost, doubled or foreign byte by itself:
// it prints "BAD@offset" and exits with 3.
//
//   listen=PORT      listen on 127.0.0.1           accept           take one connection (and keep it as the current one)
//   connect=PORT     connect to 127.0.0.1          bind=PORT        local port of the connect that follows
//   send=N           send N bytes                  recv=N|eof       receive N bytes, or until the end of the stream
//   both=N           send and receive N by poll    ping=N, pong=N   N rounds of 32 bytes, starting or answering
//   calm=N           ping=N with a pause after every round: on a busy machine the rendezvous gets its turn meanwhile
//   shut             shutdown(SHUT_WR)             close            close the current connection
//   wait             read one line from stdin      mark=TEXT        print TEXT
//   cookie           print "cookie NUMBER ok", the kernel's name for the socket
//   sleep=MS         do nothing                    stdio=N          receive N bytes through fdopen and fread
//   deepbind=LIB:N   receive N by read() of LIB, loaded with RTLD_DEEPBIND
//   exec=PROG:N      run PROG, another build of this file, in a child: it takes the socket and receives N bytes
//   take=FD:OFFSET   the current connection is descriptor FD, already received up to OFFSET; :OFFSET more, for what was sent
//   image[=PROG]     another image of this program, or PROG, goes on with the connection and the steps that follow
//   child[=PROG]     likewise in a child, after this process has closed the connection (childkeeps: which keeps it)
//   fork             likewise in a child without another image
//   stillborn=N      N children, each killed as soon as it is there
//   barren=N         N children, each killed in its own fork, before there is a child of it
//   leaver           a child that takes the connection out of Ropeway's hands, and is killed if that takes more than 100 ms
//   clone[=WAY]      likewise, in a network namespace of the child's own: by system call, or by the C library's function (WAY)
//   apart[=WAY]      a child in a PID namespace of its own closes the connection, and ends: by system call, or by the C library's
//                    function (function), or by fork after this process has left its namespace to its children (unshare)
//   restrict[=files] reach no abstract UNIX addresses of others any more, by Landlock (exit code 5 where the kernel has none that can),
//                    or run no files (files)
//   netns            go to a network namespace of one's own (netns=PID: to that of a process)
//   salt=N           bytes sent from here on are another function of the offset; rsalt=N the same for bytes received
//   sndbuf=N         size of each send, default 65536
//   kernelbuf=N      SO_SNDBUF and SO_RCVBUF of the current connection
// Sizes take k, m, g.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef __GLIBC__
// musl has neither; its builds only continue a stream, and nothing compares the errno they print.
#define strerrorname_np strerror
#define RTLD_DEEPBIND 0
#endif

static int listener = -1, conn = -1, bind_port;
static uint64_t sent, received, out_salt, in_salt;
static size_t chunk = 65536;
static unsigned char buffer[1 << 20], expected[1 << 20];

static uint64_t pattern_word(uint64_t index, uint64_t salt) {
    uint64_t x = index * 0x9E3779B97F4A7C15ull + salt * 0xD1B54A32D192ED03ull;
    return x ^ (x >> 29);
}

// Fills `to` with the bytes at `offset .. offset + n` of the stream: without a short period.
static void pattern_fill(unsigned char *to, uint64_t offset, size_t n, uint64_t salt) {
    for (size_t i = 0; i < n;) {
        uint64_t word = pattern_word((offset + i) / 8, salt);
        size_t within = (offset + i) % 8, take = 8 - within < n - i ? 8 - within : n - i;
        memcpy(to + i, (unsigned char *)&word + within, take);
        i += take;
    }
}

static void report(const char *step, uint64_t bytes, const char *end) {
    printf("%s %llu %s\n", step, (unsigned long long)bytes, end);
    fflush(stdout);
}

static void die(const char *what) {
    fprintf(stderr, "peer: %s: %s\n", what, strerror(errno));
    exit(2);
}

static uint64_t size_of(const char *text) {
    char *unit;
    uint64_t n = strtoull(text, &unit, 10);
    switch (*unit) {
    case 'g': n <<= 10; // fall through
    case 'm': n <<= 10; // fall through
    case 'k': n <<= 10;
    }
    return n;
}

static struct sockaddr_in loopback(int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return a;
}

static void tune(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void do_listen(int port) {
    int one = 1;
    struct sockaddr_in a = loopback(port);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&a, sizeof a) || listen(listener, 4096)) die("listen");
    report("listen", port, "ok");
}

static void do_connect(int port) {
    int one = 1;
    struct sockaddr_in a = loopback(port), from = loopback(bind_port);
    conn = socket(AF_INET, SOCK_STREAM, 0);
    if (bind_port) {
        setsockopt(conn, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(conn, (void *)&from, sizeof from)) die("bind");
    }
    if (connect(conn, (void *)&a, sizeof a)) die("connect");
    tune(conn);
    sent = received = 0;
    report("connect", 0, "ok");
}

static void do_accept(void) {
    conn = accept(listener, NULL, NULL);
    if (conn < 0) die("accept");
    tune(conn);
    sent = received = 0;
    report("accept", 0, "ok");
}

static void check(size_t n) {
    pattern_fill(expected, received, n, in_salt);
    if (memcmp(buffer, expected, n)) {
        size_t i = 0;
        while (buffer[i] == expected[i]) i++;
        printf("BAD@%llu\n", (unsigned long long)(received + i));
        fflush(stdout);
        exit(3);
    }
    received += n;
}

static int send_some(size_t n, int flags, uint64_t *done) {
    pattern_fill(buffer, sent, n, out_salt);
    ssize_t k = send(conn, buffer, n, flags | MSG_NOSIGNAL);
    if (k < 0) return errno;
    sent += k;
    *done += k;
    return 0;
}

static void do_send(uint64_t n) {
    uint64_t done = 0;
    int error = 0;
    while (done < n && !error) error = send_some(n - done < chunk ? n - done : chunk, 0, &done);
    report("send", done, error ? strerrorname_np(error) : "ok");
}

// Under AddressSanitizer every receive gets a block of exactly its size, so that a byte too many is found.
static ssize_t exact_recv(int fd, void *to, size_t n, int flags) {
#ifdef __SANITIZE_ADDRESS__
    void *exact = malloc(n);
    ssize_t k = recv(fd, exact, n, flags);
    if (k > 0) memcpy(to, exact, k);
    free(exact);
    return k;
#else
    return recv(fd, to, n, flags);
#endif
}

static ssize_t by_recv(int fd, void *to, size_t n) { return exact_recv(fd, to, n, 0); }

static void do_recv(const char *step, uint64_t n, ssize_t (*reader)(int, void *, size_t)) {
    uint64_t done = 0;
    const char *end = "ok";
    while (done < n) {
        size_t want = n - done < sizeof buffer ? n - done : sizeof buffer;
        ssize_t k = reader(conn, buffer, want);
        if (k < 0) { end = strerrorname_np(errno); break; }
        if (k == 0) { end = "eof"; break; }
        check(k);
        done += k;
    }
    report(step, done, end);
}

static void do_both(uint64_t n) {
    uint64_t out = 0, in = 0;
    const char *end = "ok";
    while (out < n || in < n) {
        struct pollfd p = {.fd = conn, .events = (out < n ? POLLOUT : 0) | (in < n ? POLLIN : 0)};
        if (poll(&p, 1, -1) < 0) die("poll");
        if (p.revents & POLLOUT) {
            int error = send_some(n - out < chunk ? n - out : chunk, MSG_DONTWAIT, &out);
            if (error && error != EAGAIN) { end = strerrorname_np(error); break; }
        }
        if (p.revents & (POLLIN | POLLHUP | POLLERR)) {
            ssize_t k = exact_recv(conn, buffer, n - in < sizeof buffer ? n - in : sizeof buffer, MSG_DONTWAIT);
            if (k == 0) { end = "eof"; break; }
            if (k < 0 && errno != EAGAIN) { end = strerrorname_np(errno); break; }
            if (k > 0) { check(k); in += k; }
        }
    }
    report("both", out + in, end);
}

static void do_rounds(const char *step, uint64_t n, int starts, int pause_ms) {
    uint64_t rounds = 0, done;
    const char *end = "ok";
    for (; rounds < n; rounds++) {
        int error = 0;
        done = 0;
        if (starts) error = send_some(32, 0, &done);
        for (size_t got = 0; !error && got < 32;) {
            ssize_t k = exact_recv(conn, buffer, 32 - got, 0);
            if (k == 0) { end = "eof"; goto out; }
            if (k < 0) { error = errno; break; }
            check(k);
            got += k;
        }
        if (!error && !starts) error = send_some(32, 0, &done);
        if (error) { end = strerrorname_np(error); break; }
        if (pause_ms) poll(NULL, 0, pause_ms);
    }
out:
    report(step, rounds, end);
}

static void do_stdio(uint64_t n) {
    FILE *stream = fdopen(conn, "r");
    if (!stream) die("fdopen");
    uint64_t done = 0;
    while (done < n) {
        size_t want = n - done < 4096 ? n - done : 4096, k = fread(buffer, 1, want, stream);
        if (!k) break;
        check(k);
        done += k;
    }
    report("stdio", done, done == n ? "ok" : ferror(stream) ? "error" : "eof");
}

static void do_deepbind(char *argument) {
    char *count = strchr(argument, ':');
    *count++ = 0;
    void *library = dlopen(argument, RTLD_NOW | RTLD_DEEPBIND);
    if (!library) { fprintf(stderr, "peer: %s\n", dlerror()); exit(2); }
    do_recv("deepbind", size_of(count), (ssize_t (*)(int, void *, size_t))dlsym(library, "deep_read"));
}

// The child goes on with the same stream at the same offset; the parent keeps its descriptor but only waits.
static void do_exec(char *argument) {
    char *count = strchr(argument, ':'), take[64], recv[64];
    *count++ = 0;
    snprintf(take, sizeof take, "take=%d:%llu", conn, (unsigned long long)received);
    snprintf(recv, sizeof recv, "recv=%s", count);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execlp(argument, argument, take, recv, (char *)NULL);
        _exit(127);
    }
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) die("waitpid");
    if (status == 0) received += size_of(count);
    report("exec", 0, status == 0 ? "ok" : WIFSIGNALED(status) ? "killed" : "failed");
}

static void do_take(char *argument) {
    char *offset;
    conn = strtol(argument, &offset, 10);
    received = strtoull(offset + 1, &offset, 10);
    if (*offset) sent = strtoull(offset + 1, NULL, 10);
}

static char **rest; // the steps that follow

static void do_image(const char *program) {
    char take[96], *arguments[64] = {"peer", take};
    snprintf(take, sizeof take, "take=%d:%llu:%llu", conn, (unsigned long long)received, (unsigned long long)sent);
    for (int i = 0; rest[i] && i < 60; i++) arguments[2 + i] = rest[i];
    execv(*program ? program : "/proc/self/exe", arguments);
    die("exec");
}

static void end_as(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) die("waitpid");
    exit(WIFEXITED(status) ? WEXITSTATUS(status) : 4);
}

static void do_child(const char *program, int keeps) {
    pid_t child = fork();
    if (child == 0) {
        if (!program) return;
        do_image(program);
    }
    if (!keeps) close(conn);
    end_as(child);
}

static void do_stillborn(int n) {
    for (int i = 0; i < n; i++) {
        int status;
        pid_t child = fork();
        if (child == 0)
            for (;;) pause();
        if (child < 0 || kill(child, SIGKILL) || waitpid(child, &status, 0) != child) die("stillborn");
    }
    report("stillborn", n, "ok");
}

// Runs a child up to its next system call, or past it. True while it lives.
static int next_stop(pid_t child) {
    int status;
    if (ptrace(PTRACE_SYSCALL, child, NULL, NULL) || waitpid(child, &status, 0) != child) die("ptrace");
    return WIFSTOPPED(status);
}

static int is_at_fork(pid_t child) {
    struct user_regs_struct registers;
    if (ptrace(PTRACE_GETREGS, child, NULL, &registers)) die("ptrace");
    return registers.orig_rax == SYS_clone || registers.orig_rax == SYS_clone3 || registers.orig_rax == SYS_fork;
}

static void do_barren(int n) {
    for (int i = 0; i < n; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            if (ptrace(PTRACE_TRACEME, 0, NULL, NULL)) _exit(4);
            raise(SIGSTOP);
            fork();
            _exit(0);
        }
        if (child < 0 || waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) die("barren");
        do
            if (!next_stop(child)) die("barren");
        while (!is_at_fork(child));
        if (kill(child, SIGKILL) || waitpid(child, &status, 0) != child || !WIFSIGNALED(status)) die("barren");
    }
    report("barren", n, "ok");
}

static void do_leaver(void) {
    pid_t child = fork();
    if (child == 0) {
        int off = -1;
        setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_usec = 100000}, NULL);
        setsockopt(conn, SOL_SOCKET, SO_PEEK_OFF, &off, sizeof off);
        _exit(0);
    }
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) die("waitpid");
    report("leaver", 0, WIFSIGNALED(status) ? "killed" : "ok");
}

static void run(char **steps);

static int go_on(void *steps) {
    run(steps);
    exit(0);
}

static void do_clone(const char *way) {
    enum { STACK = 1 << 20 };
    int flags = CLONE_NEWNET | SIGCHLD;
    char *stack = malloc(STACK);
    pid_t child = *way ? clone(go_on, stack + STACK, flags, rest) : syscall(SYS_clone, flags, 0, 0, 0, 0);
    if (child < 0) die("clone");
    if (child == 0) return;
    close(conn);
    end_as(child);
}
static int leave_alone(void *nothing) {
    (void)nothing;
    exit(close(conn) ? 1 : 0);
}

static void do_apart(const char *way) {
    enum { STACK = 1 << 20 };
    int flags = CLONE_NEWPID | SIGCHLD;
    pid_t child;
    if (!strcmp(way, "function")) {
        char *stack = malloc(STACK);
        child = clone(leave_alone, stack + STACK, flags, NULL);
    } else if (!strcmp(way, "unshare")) {
        if (unshare(CLONE_NEWPID)) die("unshare");
        child = fork();
    } else {
        child = syscall(SYS_clone, flags, 0, 0, 0, 0);
    }
    if (child < 0) die("apart");
    if (child == 0) leave_alone(NULL);
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) die("waitpid");
    report("apart", 0, status == 0 ? "ok" : "failed");
}

static void do_restrict(const char *what) {
    enum { CREATE_RULESET = 444, RESTRICT_SELF = 446 };
    int files = !strcmp(what, "files");
    const uint64_t attributes[] = {files, 0, !files}; // file system: execute, network, scope: abstract UNIX sockets
    int ruleset = syscall(CREATE_RULESET, attributes, sizeof attributes, 0);
    if (ruleset < 0) exit(5);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(RESTRICT_SELF, ruleset, 0)) die("restrict");
    close(ruleset);
    report("restrict", 0, "ok");
}

static void do_netns(const char *pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/ns/net", pid);
    if (*pid ? setns(open(path, O_RDONLY), 0) : unshare(CLONE_NEWNET)) die("netns");
    report("netns", 0, "ok");
}

static void do_kernelbuf(int n) {
    if (setsockopt(conn, SOL_SOCKET, SO_SNDBUF, &n, sizeof n) || setsockopt(conn, SOL_SOCKET, SO_RCVBUF, &n, sizeof n)) die("kernelbuf");
}

static void do_wait(void) {
    char line[64];
    if (!fgets(line, sizeof line, stdin)) exit(0);
    report("wait", 0, "ok");
}

static void do_cookie(void) {
    uint64_t cookie = 0;
    socklen_t length = sizeof cookie;
    if (getsockopt(conn, SOL_SOCKET, SO_COOKIE, &cookie, &length)) die("SO_COOKIE");
    report("cookie", cookie, "ok");
}

static void step(char *name) {
    char *value = strchr(name, '=');
    if (value) *value++ = 0;
    else value = "";
    if (!strcmp(name, "listen")) do_listen(atoi(value));
    else if (!strcmp(name, "accept")) do_accept();
    else if (!strcmp(name, "bind")) bind_port = atoi(value);
    else if (!strcmp(name, "connect")) do_connect(atoi(value));
    else if (!strcmp(name, "send")) do_send(size_of(value));
    else if (!strcmp(name, "recv")) do_recv("recv", !strcmp(value, "eof") ? UINT64_MAX : size_of(value), by_recv);
    else if (!strcmp(name, "deepbind")) do_deepbind(value);
    else if (!strcmp(name, "both")) do_both(size_of(value));
    else if (!strcmp(name, "ping")) do_rounds("ping", size_of(value), 1, 0);
    else if (!strcmp(name, "calm")) do_rounds("calm", size_of(value), 1, 2);
    else if (!strcmp(name, "pong")) do_rounds("pong", size_of(value), 0, 0);
    else if (!strcmp(name, "stdio")) do_stdio(size_of(value));
    else if (!strcmp(name, "exec")) do_exec(value);
    else if (!strcmp(name, "cookie")) do_cookie();
    else if (!strcmp(name, "take")) do_take(value);
    else if (!strcmp(name, "image")) do_image(value);
    else if (!strcmp(name, "child")) do_child(value, 0);
    else if (!strcmp(name, "childkeeps")) do_child(value, 1);
    else if (!strcmp(name, "fork")) do_child(NULL, 0);
    else if (!strcmp(name, "leaver")) do_leaver();
    else if (!strcmp(name, "stillborn")) do_stillborn(atoi(value));
    else if (!strcmp(name, "barren")) do_barren(atoi(value));
    else if (!strcmp(name, "salt")) out_salt = strtoull(value, NULL, 10);
    else if (!strcmp(name, "rsalt")) in_salt = strtoull(value, NULL, 10);
    else if (!strcmp(name, "sndbuf")) chunk = size_of(value);
    else if (!strcmp(name, "kernelbuf")) do_kernelbuf(size_of(value));
    else if (!strcmp(name, "shut")) report("shut", 0, shutdown(conn, SHUT_WR) ? strerrorname_np(errno) : "ok");
    else if (!strcmp(name, "close")) report("close", 0, close(conn) ? strerrorname_np(errno) : "ok");
    else if (!strcmp(name, "sleep")) poll(NULL, 0, atoi(value));
    else if (!strcmp(name, "clone")) do_clone(value);
    else if (!strcmp(name, "apart")) do_apart(value);
    else if (!strcmp(name, "restrict")) do_restrict(value);
    else if (!strcmp(name, "netns")) do_netns(value);
    else if (!strcmp(name, "wait")) do_wait();
    else if (!strcmp(name, "mark")) report(value, 0, "ok");
    else { fprintf(stderr, "peer: unknown step %s\n", name); exit(2); }
}

static void run(char **steps) {
    for (; *steps; steps++) {
        rest = steps + 1;
        step(*steps);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    run(argv + 1);
    return 0;
}
