// An echo server and client on nothing but the C library, built statically against musl: no preload can reach it.
//
// usage: echo server PORT (serves one connection after the other) | client PORT ROUNDS
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char message[65536], answer[65536];

static int fail(const char *what) {
    perror(what);
    return 1;
}

static int serve(struct sockaddr_in *at) {
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)at, sizeof *at) || listen(listener, 128)) return fail("listen");
    for (;;) {
        int connection = accept(listener, NULL, NULL);
        ssize_t n;
        while ((n = read(connection, message, sizeof message)) > 0)
            for (ssize_t done = 0; done < n;) {
                ssize_t k = write(connection, message + done, n - done);
                if (k < 0) return fail("write");
                done += k;
            }
        close(connection);
    }
}

static int talk(struct sockaddr_in *to, int rounds) {
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(connection, (void *)to, sizeof *to)) return fail("connect");
    for (int i = 0; i < rounds; i++) {
        size_t size = 1 + i * 7919 % sizeof message, got = 0;
        memset(message, 'a' + i % 26, size);
        if (write(connection, message, size) != (ssize_t)size) return fail("write");
        while (got < size) {
            ssize_t k = read(connection, answer + got, size - got);
            if (k <= 0) return fail("read");
            got += k;
        }
        if (memcmp(message, answer, size)) {
            fprintf(stderr, "round %d: the answer differs\n", i);
            return 1;
        }
    }
    printf("ok %d rounds\n", rounds);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return strcmp(argv[1], "server") ? talk(&a, atoi(argv[3])) : serve(&a);
}
