// The smallest pair of programs: a server that echoes messages of a known size, and a client that checks every byte.
//
//   smoke serve BYTES                        prints its port, serves one client, ends
//   smoke ask PORT MESSAGES BYTES            sends, waits for the echo, compares
//   smoke ask PORT MESSAGES BYTES FIRST      the same after FIRST messages, once its standard input has ended
//
// Nothing here knows about Ropeway.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void move_all(int fd, char *buffer, size_t bytes, int sending) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = sending ? send(fd, buffer + done, bytes - done, 0) : recv(fd, buffer + done, bytes - done, 0);
        if (n <= 0) die(sending ? "send" : "recv");
        done += (size_t)n;
    }
}

static int serve(size_t bytes) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1)) die("listen");
    if (getsockname(listener, (struct sockaddr *)&address, &length)) die("getsockname");
    printf("port %d\n", ntohs(address.sin_port));
    fflush(stdout);
    int fd = accept(listener, NULL, NULL);
    if (fd < 0) die("accept");
    char *buffer = malloc(bytes);
    for (;;) {
        ssize_t n = recv(fd, buffer, bytes, 0);
        if (n == 0) return 0;
        if (n < 0) die("recv");
        move_all(fd, buffer + n, bytes - (size_t)n, 0);
        move_all(fd, buffer, bytes, 1);
    }
}

// Sends message number `i`, and compares what comes back.
static void exchange(int fd, long i, char *sent, char *received, size_t bytes) {
    for (size_t at = 0; at < bytes; at++) sent[at] = (char)(i * 31 + (long)at);
    move_all(fd, sent, bytes, 1);
    move_all(fd, received, bytes, 0);
    if (memcmp(sent, received, bytes)) {
        fprintf(stderr, "message %ld came back changed\n", i);
        exit(1);
    }
}

static int ask(int port, long messages, size_t bytes, long first) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) die("connect");
    char *sent = malloc(bytes), *received = malloc(bytes);
    for (long i = 0; i < first + messages; i++) {
        if (first && i == first && read(0, received, 1) != 0) die("end of standard input");
        exchange(fd, i, sent, received, bytes);
    }
    close(fd);
    printf("%ld messages came back\n", first + messages);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "serve")) return serve((size_t)atol(argv[2]));
    if ((argc == 5 || argc == 6) && !strcmp(argv[1], "ask"))
        return ask(atoi(argv[2]), atol(argv[3]), (size_t)atol(argv[4]), argc == 6 ? atol(argv[5]) : 0);
    fprintf(stderr, "usage: smoke serve BYTES | smoke ask PORT MESSAGES BYTES [FIRST]\n");
    return 2;
}
