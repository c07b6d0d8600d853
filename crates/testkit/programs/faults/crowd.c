// Many connections: echoes of 32 bytes, held open at the same time or made one after the other.
//
// usage: crowd serve PORT                   echo on every address of this host until SIGTERM
//        crowd hold PORT COUNT              COUNT connections at once; prints "held" when all are open, goes on with rounds
//                                           on each by turns until a line comes on standard input, then prints "done ROUNDS"
//        crowd cycle PORT COUNT ROUNDS N    COUNT connections, N at a time: connect, ROUNDS by turns, close; prints "cycled"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MESSAGE = 32, EVENTS = 256, PLACES = 250 };

static void die(const char *what) {
    fprintf(stderr, "crowd: %s: %s\n", what, strerror(errno));
    exit(1);
}

static struct sockaddr_in address(in_addr_t host, int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    a.sin_addr.s_addr = htonl(host);
    return a;
}

static void many_descriptors(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit)) die("setrlimit");
}

static void terminate(int signal) {
    (void)signal;
    exit(0);
}

static void serve(int port) {
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), set = epoll_create1(0);
    struct sockaddr_in a = address(INADDR_ANY, port);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&a, sizeof a) || listen(listener, 4096)) die("listen");
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[EVENTS];
    epoll_ctl(set, EPOLL_CTL_ADD, listener, &event);
    signal(SIGTERM, terminate);
    for (;;) {
        int n = epoll_wait(set, events, EVENTS, -1);
        if (n < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    struct epoll_event connection = {.events = EPOLLIN, .data.fd = fd};
                    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &connection)) die("epoll_ctl");
                }
                if (errno != EAGAIN) die("accept");
                continue;
            }
            char message[4096];
            ssize_t k = recv(fd, message, sizeof message, 0);
            if (k > 0 && send(fd, message, k, MSG_NOSIGNAL) == k) continue;
            if (k < 0 && errno == EAGAIN) continue;
            close(fd);
        }
    }
}

// Spread over the addresses of 127/8: closed connections occupy their pair of ports for a while.
static int connect_to(int port, int number) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = address(INADDR_LOOPBACK + number % PLACES, port);
    if (fd < 0) die("socket");
    if (connect(fd, (void *)&a, sizeof a)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void ask(int fd, int number, int round) {
    char message[MESSAGE], answer[MESSAGE];
    snprintf(message, sizeof message, "%d %d", number, round);
    if (send(fd, message, MESSAGE, MSG_NOSIGNAL) != MESSAGE) die("send");
    for (size_t got = 0; got < MESSAGE;) {
        ssize_t k = recv(fd, answer + got, MESSAGE - got, 0);
        if (k <= 0) die("recv");
        got += k;
    }
    if (strcmp(message, answer)) {
        fprintf(stderr, "crowd: connection %d: the answer to \"%s\" is \"%s\"\n", number, message, answer);
        exit(1);
    }
}

// Connections with numbers from `first` on, and `rounds` on each, one after the other in turn.
static void open_all(int *fds, int port, int first, int count, int rounds) {
    for (int i = 0; i < count; i++) fds[i] = connect_to(port, first + i);
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < count; i++) ask(fds[i], first + i, round);
}

static void say(const char *what, int count) {
    printf("%s %d\n", what, count);
    fflush(stdout);
}

static void hold(int port, int count) {
    int *fds = calloc(count, sizeof *fds), rounds = 0;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    open_all(fds, port, 0, count, 1);
    say("held", count);
    while (poll(&input, 1, 0) == 0) {
        rounds++;
        for (int i = 0; i < count; i++) ask(fds[i], i, rounds);
    }
    say("done", rounds);
}

static void cycle(int port, int count, int rounds, int at_a_time) {
    int *fds = calloc(at_a_time, sizeof *fds);
    char line[8];
    for (int i = 0; i + at_a_time <= count; i += at_a_time) {
        open_all(fds, port, i, at_a_time, rounds);
        for (int k = 0; k < at_a_time; k++) close(fds[k]);
    }
    say("cycled", count);
    // What is left over after all of them can be counted from outside now.
    if (!fgets(line, sizeof line, stdin)) die("standard input");
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    many_descriptors();
    int port = atoi(argv[2]);
    if (!strcmp(argv[1], "serve")) serve(port);
    if (!strcmp(argv[1], "hold") && argc > 3) hold(port, atoi(argv[3]));
    else if (argc > 5) cycle(port, atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
    else return 2;
    return 0;
}
