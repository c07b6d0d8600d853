// A local program of another user that talks to the rendezvous as if the sockets of others were its own.
//
// usage: intruder ADDRESS COOKIE LOCAL_PORT REMOTE_PORT   registers 127.0.0.1:LOCAL_PORT -> 127.0.0.1:REMOTE_PORT
//        intruder ADDRESS list                            asks for all processes and their socket tables
//        intruder ADDRESS stop                            tells the rendezvous to end
//        intruder ADDRESS noise SEED                      sends 2000 messages of random bytes, on several connections
//        intruder ADDRESS squat                           takes the address and listens, until it is killed
//        intruder /proc/PID/... open                      opens a file for reading and writing
// ADDRESS is abstract, without its leading zero. Prints what came back: "answer KIND REASON", "descriptor TYPE of BYTES",
// "closed", "silence", "opened" or the error. A message is described in the rendezvous module of crates/socket; this
// program knows only what any local program can read there.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { HELLO = 1, REGISTER = 3, STOP = 18, LIST = 20, SILENCE_MS = 1500 };

static unsigned char message[512];
static size_t length;

static void put(const void *bytes, size_t n) {
    memcpy(message + length, bytes, n);
    length += n;
}

static void begin(unsigned char kind) {
    const unsigned char head[4] = {'R', 'W', 1, kind};
    length = 0;
    put(head, 4);
}

static void endpoint(int port) {
    const unsigned char loopback[16] = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1};
    uint16_t p = port;
    put(loopback, 16);
    put(&p, 2);
}

static socklen_t address(struct sockaddr_un *a, const char *name) {
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    memcpy(a->sun_path + 1, name, strlen(name));
    return offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name);
}

static int meet(const char *name) {
    struct sockaddr_un a;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (connect(fd, (void *)&a, address(&a, name))) {
        printf("connect: %s\n", strerror(errno));
        exit(0);
    }
    return fd;
}

static void say(int fd) {
    if (send(fd, message, length, MSG_NOSIGNAL) < 0) printf("send: %s\n", strerror(errno));
}

static void hello(int fd) {
    uint32_t pid = getpid();
    const char comm[16] = "intruder", profile[32] = "";
    begin(HELLO);
    put(&pid, 4);
    put(comm, 16);
    put(profile, 32);
    say(fd);
}

// Prints every answer, and every descriptor that comes with one, until nothing comes any more.
static void listen_to(int fd) {
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, SILENCE_MS) == 0) {
            puts("silence");
            return;
        }
        unsigned char answer[512];
        union { struct cmsghdr align; char room[CMSG_SPACE(8 * sizeof(int))]; } control;
        struct iovec iov = {answer, sizeof answer};
        struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
        ssize_t n = recvmsg(fd, &m, 0);
        if (n <= 0) {
            puts("closed");
            return;
        }
        uint16_t reason = 0;
        // A denial is a token of eight bytes, then the reason.
        if (n >= 14) memcpy(&reason, answer + 12, 2);
        printf("answer %d %d\n", answer[3], answer[3] == 6 ? reason : 0);
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
            int passed;
            struct stat status;
            memcpy(&passed, CMSG_DATA(c), sizeof passed);
            fstat(passed, &status);
            printf("descriptor with answer %d of %lld bytes\n", answer[3], (long long)status.st_size);
            close(passed);
        }
    }
}

static void claim(const char *name, uint64_t cookie, int local, int remote) {
    int fd = meet(name), claimed = 0;
    uint64_t token = 1, hashed = 0;
    const uint32_t hashes[9] = {0};
    hello(fd);
    begin(REGISTER);
    put(&token, 8);
    put(&cookie, 8);
    put(&claimed, 4);
    endpoint(local);
    endpoint(remote);
    for (int direction = 0; direction < 2; direction++) {
        put(hashes, sizeof hashes);
        put(&hashed, 8);
    }
    say(fd);
    listen_to(fd);
}

static void noise(const char *name, unsigned seed) {
    srandom(seed);
    for (int round = 0; round < 40; round++) {
        int fd = meet(name);
        if (round % 2) hello(fd);
        for (int i = 0; i < 50; i++) {
            // Half of them have a right head, so that the noise gets past the first check.
            begin(random() % 24);
            if (random() % 2) length = 0;
            for (size_t n = random() % 300; length < n;) message[length++] = random();
            if (send(fd, message, length, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) break;
        }
        close(fd);
    }
    puts("done");
}

static void squat(const char *name) {
    struct sockaddr_un a;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (bind(fd, (void *)&a, address(&a, name)) || listen(fd, 16)) {
        printf("bind: %s\n", strerror(errno));
        exit(1);
    }
    puts("squatting");
    fflush(stdout);
    pause();
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    if (!strcmp(argv[2], "open")) {
        int fd = open(argv[1], O_RDWR);
        puts(fd >= 0 ? "opened" : strerror(errno));
    } else if (!strcmp(argv[2], "squat")) {
        squat(argv[1]);
    } else if (!strcmp(argv[2], "noise")) {
        noise(argv[1], atoi(argv[3]));
    } else if (!strcmp(argv[2], "list") || !strcmp(argv[2], "stop")) {
        int fd = meet(argv[1]);
        begin(!strcmp(argv[2], "list") ? LIST : STOP);
        say(fd);
        listen_to(fd);
    } else {
        claim(argv[1], strtoull(argv[2], NULL, 10), atoi(argv[3]), atoi(argv[4]));
    }
    return 0;
}
