// Connections of a process that forks: echoes of 32 bytes with `crowd serve`, and children that do nothing but end.
//
// usage: family grow PORT ROUNDS CHILDREN   each round: connect, talk until it is on shared memory, fork so many children one
//                                           after the other, close
//        family beside PORT ROUNDS          each round: fork while another thread closes one connection and opens the next,
//                                           when everybody was told of the fork and the child has not been made
//
// Every connection is in an epoll set of its own. Each prints "round" after the first round, goes on when a line comes on
// standard input, prints "rounds" after the last one, and ends after another line.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

// Echoes with pauses: the two ends of a connection need some tens of milliseconds to find each other on a busy machine.
enum { MESSAGE = 32, SOME_ECHOES = 64, MANY_ECHOES = 500, PAUSE_US = 1000 };

struct member {
    int fd, set;
};

static int port;
static struct member current;
static volatile bool has_other_thread;
static sem_t told, changed;

static void die(const char *what) {
    fprintf(stderr, "family: %s: %s\n", what, strerror(errno));
    exit(1);
}

static struct member open_connection(void) {
    int one = 1;
    struct member m = {socket(AF_INET, SOCK_STREAM, 0), epoll_create1(0)};
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (m.fd < 0 || connect(m.fd, (void *)&a, sizeof a)) die("connect");
    setsockopt(m.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (epoll_ctl(m.set, EPOLL_CTL_ADD, m.fd, &(struct epoll_event){.events = EPOLLIN})) die("epoll_ctl");
    return m;
}

static void close_connection(struct member m) {
    close(m.set);
    close(m.fd);
}

static void talk(int fd, int echoes) {
    char message[MESSAGE] = "to and fro", answer[MESSAGE];
    for (int i = 0; i < echoes; i++) {
        if (send(fd, message, MESSAGE, MSG_NOSIGNAL) != MESSAGE) die("send");
        if (recv(fd, answer, MESSAGE, MSG_WAITALL) != MESSAGE || memcmp(message, answer, MESSAGE)) die("recv");
        usleep(PAUSE_US);
    }
}

static void fork_and_reap(void) {
    int status;
    pid_t child = fork();
    if (child == 0) _exit(0);
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) die("a child");
}

static void grow(int children) {
    struct member m = open_connection();
    talk(m.fd, SOME_ECHOES);
    for (int i = 0; i < children; i++) fork_and_reap();
    close_connection(m);
}

// The other thread closes one that was opened before the fork was counted, and what it opens is closed after.
static void change_and_fork(void) {
    close_connection(current);
    current = open_connection();
    fork_and_reap();
}

static void before_fork(void) {
    if (!has_other_thread) return;
    sem_post(&told);
    sem_wait(&changed);
}

static void register_before_others(void) {
    pthread_atfork(before_fork, NULL, NULL);
}

// Handlers run in the reverse order of their registration: ours, which comes before any library's, is the last one.
__attribute__((section(".preinit_array"), used)) static void (*const first)(void) = register_before_others;

static void *close_and_open(void *unused) {
    for (;;) {
        sem_wait(&told);
        close_connection(current);
        current = open_connection();
        sem_post(&changed);
    }
    return unused;
}

static void start_other_thread(void) {
    pthread_t thread;
    current = open_connection();
    sem_init(&told, 0, 0);
    sem_init(&changed, 0, 0);
    if (pthread_create(&thread, NULL, close_and_open, NULL)) die("pthread_create");
    has_other_thread = true;
}

static void say_and_wait(const char *what) {
    char line[8];
    printf("%s\n", what);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) die("standard input");
}

int main(int argc, char **argv) {
    bool beside = argc == 4 && !strcmp(argv[1], "beside");
    if (!beside && (argc != 5 || strcmp(argv[1], "grow"))) return 2;
    port = atoi(argv[2]);
    if (beside) start_other_thread();
    for (int round = 0; round < atoi(argv[3]); round++) {
        if (beside) change_and_fork();
        else grow(atoi(argv[4]));
        if (round == 0) say_and_wait("round");
    }
    if (beside) talk(current.fd, MANY_ECHOES);
    say_and_wait("rounds");
    return 0;
}
