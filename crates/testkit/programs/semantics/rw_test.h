/*
 * Support for the programs that compare socket behaviour on two carriers.
 *
 * One program holds the cases of one theme. `program --list` prints their names, `program CASE` runs one: a launcher starts two
 * processes, A (accepts) and B (connects), joined by one TCP connection over 127.0.0.1 and by pipes for lockstep. Each process
 * writes a transcript of what it observed; the launcher prints A's, then B's. The programs know nothing of Ropeway: run bare and run
 * under it, the two transcripts must be equal to the byte. So nothing that depends on time, on a process number, on a port or on the
 * size of a buffer may be written; invariants over such values may (see YES).
 *
 * Environment: RW_MOMENT=cold leaves the warming-up out, RW_WARM_PAUSE_US=n makes it slower or faster, RW_PIDS=FILE receives the process numbers of A and B, RW_TIMEOUT=seconds
 * bounds the run.
 */
#ifndef RW_TEST_H
#define RW_TEST_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define MIN_OF(a, b) ((a) < (b) ? (a) : (b))

/* What a case wants from the launcher. */
enum {
    RW_ALONE = 1, /* no connection: the case makes its own */
    RW_NAGLE = 2, /* leave TCP_NODELAY off; without this flag both ends set it, so that a lone small send is on its way at once */
};

struct rw_case {
    const char *name;
    void (*run)(void);
    int flags;
};

#define CASE(name) static void name(void)
#define ENTRY(name) { #name, name, 0 }
#define ENTRY_WITH(name, flags) { #name, name, flags }
#define RW_MAIN(...)                                                                                                               \
    int main(int argc, char **argv)                                                                                                \
    {                                                                                                                              \
        static const struct rw_case cases[] = { __VA_ARGS__ };                                                                     \
        return rw_main(argc, argv, cases, COUNT(cases));                                                                           \
    }
int rw_main(int argc, char **argv, const struct rw_case *cases, size_t count);

/* ---- who am I --------------------------------------------------------------------------------------------------------------- */

extern bool rw_is_a;  /* the accepting process (or one of its children) */
extern int fd;        /* this end of the connection */
extern int rw_listener; /* A only: the listening socket that fd came from */
#define A_SIDE if (rw_is_a)
#define B_SIDE if (!rw_is_a)
pid_t rw_pid_of(bool side_a);

/* A few words that all processes of a run share, zero at first; their meaning is the case's own. */
extern volatile long *rw_shared;
#define RW_SHARED_WORDS 64

/* ---- the transcript ----------------------------------------------------------------------------------------------------------- */

void rw_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
long rw_result(const char *call, long value);
bool rw_answer(const char *question, bool answer);
void rw_bytes(const char *what, const void *bytes, long length);
const char *rw_errno_name(int number);
const char *rw_poll_names(int events); /* POLLIN... of a poll() or, being the same numbers, of an epoll set */

/* Makes a call and writes its text, result and errno. */
#define T(call) rw_result(#call, (errno = 0, (long)(call)))
/* Writes a statement and whether it holds: for values that may differ from run to run. */
#define YES(condition) rw_answer(#condition, (condition))
/* Set-up that is not the subject of the case: ends the run when it fails. */
#define MUST(call)                                                                                                                 \
    ({                                                                                                                             \
        errno = 0;                                                                                                                 \
        long must_result = (long)(call);                                                                                           \
        if (must_result < 0)                                                                                                       \
            rw_die(__FILE__, __LINE__, #call);                                                                                     \
        must_result;                                                                                                               \
    })
void rw_die(const char *file, int line, const char *call) __attribute__((noreturn));

/* ---- lockstep ----------------------------------------------------------------------------------------------------------------- */

void rw_tell(void); /* lets the other side's rw_hear return; never waits */
void rw_hear(void);
void rw_meet(void); /* both sides are here */
void rw_rest(void); /* both sides are here and everything sent before has arrived */
void rw_sleep_ms(int ms);
double rw_now_ms(void);
/* Returns when the thread or process `id` has been asleep in the kernel for a while: it is inside the call it announced. */
void rw_wait_asleep(pid_t id);

/* ---- traffic ------------------------------------------------------------------------------------------------------------------ */

enum rw_wait { RW_BLOCK, RW_POLL, RW_SELECT };

/*
 * Exchanges 64 requests and responses with pauses, so that a carrier other than TCP has every occasion to take over both directions;
 * the end that waits does so in the way named, because the way of waiting matters to a hand-over. Does nothing at RW_MOMENT=cold.
 */
void rw_warm(int socket, enum rw_wait how);
void rw_warm_epoll(int socket, int set);
/* The same without the responses: only what B sends comes onto another carrier. */
void rw_warm_one_way(int socket);
/* One end of the same exchange when the two ends wait differently or are in one process: `first` sends first. */
void rw_warm_pair(int first_socket, int second_socket);

/* The byte stream `stream` from position `at`: the same for sender and receiver, different at every position. */
void rw_fill(void *bytes, size_t length, unsigned stream, size_t at);
bool rw_matches(const void *bytes, size_t length, unsigned stream, size_t at);
/* Blocking or not, until all is done or an error or the end came; returns the bytes moved. */
size_t rw_send_all(int socket, const void *bytes, size_t length);
size_t rw_recv_all(int socket, void *bytes, size_t length);
/* Sends or receives and checks `length` bytes of a stream; says in the transcript whether they were right. */
void rw_send_stream(int socket, unsigned stream, size_t length);
void rw_recv_stream(int socket, unsigned stream, size_t length);
/* Receives `length` bytes of a stream and says only to the caller whether they were right, for lengths that differ from run to run. */
bool rw_take_stream(int socket, unsigned stream, size_t length);
/* Sends a text; receives so many bytes and shows them, or says what came instead. */
void rw_say(int socket, const char *text);
void rw_expect(int socket, size_t length);
/* B waits for a word that A sends late, and says whether it slept through: neither time nor anybody woke it again and again. */
void rw_wait_quietly(int socket);
/* One text each way, both sides calling this. */
void rw_exchange(int socket);
/* Sends stream bytes on a socket without waiting until there is no room; returns how many went. */
size_t rw_stuff(int socket, unsigned stream);
/* The same, and then by calls that wait, because a sender that waits in vain may find another carrier that has room. */
size_t rw_stuff_for_good(int socket, unsigned stream);

/* ---- sockets and processes ---------------------------------------------------------------------------------------------------- */

void rw_nonblocking(int descriptor, bool on);
void rw_nodelay(int socket);
int rw_listen(uint16_t *port);
int rw_connect(uint16_t port);
/* A second connection between A and B, by way of the launcher's listener. */
int rw_another(void);
/* A child that dies with its parent and belongs to the same side. */
pid_t rw_fork(void);
/* Waits for a child and writes how it ended. */
void rw_reap(pid_t child);
/* Runs `body` in a thread with `room` bytes of stack besides its thread-local variables, and waits until it has ended. */
void rw_in_small_thread(size_t room, void *(*body)(void *));
/* For a program that took the place of a side by exec: finds transcript and pipes again. */
void rw_adopt(void);
/* The path of the helper program (helper.c) linked in the way named: DYNAMIC or STATIC; from the environment, RW_HELPER_<kind>. */
const char *rw_helper(const char *kind);

#endif
