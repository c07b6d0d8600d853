// Many TCP senders to one receiver, for the suite `box`.
//
//   incast sink PORT SENDERS SECONDS    takes what SENDERS connections bring, for SECONDS from the moment all are there
//   incast source ADDRESS PORT CC       sends with the congestion control CC until the other end closes
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_SENDERS = 256, BUFFER_BYTES = 256 * 1024, CONNECT_SECONDS = 20 };

static char buffer[BUFFER_BYTES];

static void fail(const char *what) {
    fprintf(stderr, "incast: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static int sink(int port, int senders, double seconds) {
    if (senders < 1 || senders > MAX_SENDERS) return 2;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, senders)) fail("listen");
    puts("ready");
    fflush(stdout);
    struct pollfd ends[MAX_SENDERS];
    long long bytes[MAX_SENDERS] = {0}, sum = 0;
    for (int i = 0; i < senders; i++) {
        ends[i] = (struct pollfd){.fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK), .events = POLLIN};
        if (ends[i].fd < 0) fail("accept");
    }
    for (int i = 0; i < senders; i++)
        if (write(ends[i].fd, "", 1) != 1) fail("start a sender");
    double start = now(), end = start;
    while ((end = now()) - start < seconds) {
        if (poll(ends, senders, 100) < 0) fail("poll");
        for (int i = 0; i < senders; i++) {
            ssize_t n = ends[i].revents ? read(ends[i].fd, buffer, sizeof buffer) : 0;
            if (n > 0) bytes[i] += n;
        }
    }
    long long least = bytes[0], most = bytes[0];
    for (int i = 0; i < senders; i++) {
        sum += bytes[i];
        least = bytes[i] < least ? bytes[i] : least;
        most = bytes[i] > most ? bytes[i] : most;
    }
    double scale = 8 / (end - start) / 1e6;
    printf("%lld bytes: %.1f Mbit/s, senders between %.1f and %.1f\n", sum, sum * scale, least * scale, most * scale);
    return 0;
}

static int source(const char *address, int port, const char *control) {
    struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (inet_pton(AF_INET, address, &there.sin_addr) != 1) return 2;
    double start = now();
    for (;;) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control, strlen(control))) fail(control);
        if (connect(fd, (struct sockaddr *)&there, sizeof there) == 0) {
            if (read(fd, buffer, 1) != 1) fail("wait for the start");
            while (write(fd, buffer, sizeof buffer) > 0) {}
            // The receiver has had enough.
            if (errno == EPIPE || errno == ECONNRESET) return 0;
            fail("write");
        }
        if (now() - start > CONNECT_SECONDS) fail("connect");
        close(fd);
        usleep(20000);
    }
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    if (argc == 5 && strcmp(argv[1], "sink") == 0) return sink(atoi(argv[2]), atoi(argv[3]), atof(argv[4]));
    if (argc == 5 && strcmp(argv[1], "source") == 0) return source(argv[2], atoi(argv[3]), argv[4]);
    fprintf(stderr, "usage: incast sink PORT SENDERS SECONDS | source ADDRESS PORT CC\n");
    return 2;
}
