/*
 * Two processes with random calls on both ends of one connection; RW_SEED chooses everything that is not the scheduler's.
 *
 * Each end writes a stream whose bytes follow from their positions, so the reader knows what must come. Every call is checked against
 * what TCP promises for it (see the comments with WRONG); what was seen at the end is written to the transcript and must be the same
 * on every carrier. Where the outcome depends on timing, the transcript only says that it was one of those that TCP allows.
 */
#include "rw_test.h"

#include <sys/sendfile.h>
#include <sys/time.h>

/* ---- what both processes know ---- */

enum { W_SENT = 0, W_SENDING = 2, W_RECEIVED = 4, W_FINISHED = 6, W_BLOCKER = 8, W_SLEEPER, W_CLOSING };
/* W_CLOSING: the end that leaves early asks, the other stops and agrees, the first leaves. */
enum { CLOSE_WANTED = 1, CLOSE_AGREED, CLOSE_DONE };

static long look(int word) { return __atomic_load_n(&rw_shared[word], __ATOMIC_SEQ_CST); }
static void set(int word, long value) { __atomic_store_n(&rw_shared[word], value, __ATOMIC_SEQ_CST); }

/* ---- chance ---- */

static uint64_t state;

static uint32_t any(uint32_t below)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * 0x2545f4914f6cdd1du) >> 33) % below;
}

static bool one_in(uint32_t n) { return any(n) == 0; }

static size_t any_size(void)
{
    switch (any(8)) {
    case 0: return any(3);
    case 1: case 2: case 3: return any(65);
    case 4: case 5: return any(4097);
    case 6: return any(40000);
    default: return any(200000);
    }
}

/* ---- the plan ---- */

enum { STREAM = 20, LARGEST = 200000, CALM = 40000 };

static int out, in;            /* directions, as indices of the shared words */
static long total[2];          /* bytes of each direction, unless an end leaves early */
static int leaving_side;       /* -1: nobody leaves early */
static int leaving_after;      /* calls of that end */
static bool leaves_unread, leaves_by_reset;
static int storm;              /* microseconds between signals, 0 for none */
static int storm_flags;
static bool exotic;            /* sendfile and splice too */
static bool polls, has_sets;   /* waits by poll and select, by epoll too */
static bool starts_cold;       /* the connection is as young as can be */

static bool nonblocking, ended, drained, in_child;
static int level_set = -1, edge_set = -1, file = -1, pipes[2] = { -1, -1 };
static int calls;
static char bytes[LARGEST + 16], copy[LARGEST + 16];

/* One end at a time may do what would be a deadlock if both did it; none that may be asked to stand still. */
static bool take_flag(int word)
{
    return leaving_side < 0 && __atomic_exchange_n(&rw_shared[word], 1, __ATOMIC_SEQ_CST) == 0;
}

static long outstanding(int direction) { return look(W_SENT + direction) - look(W_RECEIVED + direction); }

#define WRONG(...)                                                                                                                 \
    do {                                                                                                                           \
        rw_note("WRONG after %d calls%s, sent %ld of %ld, received %ld of %ld:", calls, in_child ? " (in a child)" : "",           \
            look(W_SENT + out), total[out], look(W_RECEIVED + in), total[in]);                                                     \
        rw_note(__VA_ARGS__);                                                                                                      \
        exit(6);                                                                                                                   \
    } while (0)

static long any_total(void)
{
    switch (any(4)) {
    case 0: return any(2000);
    case 1: return any(60000);
    case 2: return any(500000);
    default: return any(2500000);
    }
}

static void make_plan(void)
{
    const char *text = getenv("RW_SEED");
    if (!text)
        rw_die(__FILE__, __LINE__, "RW_SEED is not set");
    uint64_t seed = strtoull(text, NULL, 10);
    state = (seed + 1) * 0x9e3779b97f4a7c15u;
    for (int i = 0; i < 8; i++)
        any(2);
    total[0] = any_total();
    total[1] = any_total();
    leaving_side = one_in(4) ? (int)any(2) : -1;
    leaving_after = 5 + (int)any(60);
    leaves_unread = one_in(2);
    leaves_by_reset = one_in(3);
    storm = one_in(4) ? 300 + (int)any(3000) : 0;
    storm_flags = one_in(2) ? SA_RESTART : 0;
    exotic = one_in(3);
    polls = !one_in(3);
    has_sets = polls && one_in(2);
    starts_cold = one_in(4);
    out = rw_is_a ? 0 : 1;
    in = 1 - out;
    /* From here on each end has its own chances. */
    state += rw_is_a ? 0 : 0x123456789u;
    for (int i = 0; i < 8; i++)
        any(2);
}

/* ---- sending ---- */

static long call_send(size_t n, int flags)
{
    struct iovec parts[4];
    size_t at = 0;
    for (int i = 0; i < 4; i++) {
        size_t size = i == 3 ? n - at : any((uint32_t)(n - at) + 1);
        parts[i] = (struct iovec) { bytes + at, size };
        at += size;
    }
    struct mmsghdr message = { .msg_hdr = { .msg_iov = parts, .msg_iovlen = 4 } };
    switch (any(exotic && n > 0 ? 9 : 7)) {
    case 0: return flags ? send(fd, bytes, n, flags) : write(fd, bytes, n);
    case 1: return flags ? sendmsg(fd, &message.msg_hdr, flags) : writev(fd, parts, 4);
    case 2: return sendmsg(fd, &message.msg_hdr, flags | MSG_NOSIGNAL);
    case 3: return sendmmsg(fd, &message, 1, flags) == 1 ? (long)message.msg_len : -1;
    case 4: return sendto(fd, bytes, n, flags | (one_in(8) ? MSG_MORE : 0), NULL, 0);
    case 7: {
        /* Each byte at its own place: pages that are still on their way must not change. */
        off_t from = look(W_SENT + out);
        if (flags)
            return send(fd, bytes, n, flags);
        MUST(pwrite(file, bytes, n, from));
        return sendfile(fd, file, &from, n);
    }
    case 8: {
        size_t piece = MIN_OF(n, 60000u);
        if (flags)
            return send(fd, bytes, n, flags);
        MUST(write(pipes[1], bytes, piece));
        long went = splice(pipes[0], NULL, fd, NULL, piece, 0);
        int error = errno;
        for (size_t left = piece - (went > 0 ? (size_t)went : 0); left > 0;)
            left -= (size_t)MUST(read(pipes[0], copy, left));
        errno = error;
        return went;
    }
    default: return send(fd, bytes, n, flags);
    }
}

static void do_send(void)
{
    long at = look(W_SENT + out);
    size_t n = any_size();
    n = MIN_OF(n, (size_t)(total[out] - at));
    int flags = one_in(3) ? MSG_DONTWAIT : 0;
    bool may_block = !nonblocking && !flags, holds = false;
    if (may_block && outstanding(out) + (long)n > CALM) {
        holds = take_flag(W_BLOCKER);
        flags = holds ? 0 : MSG_DONTWAIT;
        may_block = holds;
    }
    rw_fill(bytes, n, STREAM + (unsigned)out, (size_t)at);
    set(W_SENDING + out, at + (long)n);
    errno = 0;
    long result = call_send(n, flags);
    int error = errno;
    if (holds)
        set(W_BLOCKER, 0);
    if (result > (long)n || (result == 0 && n > 0))
        WRONG("send of %zu bytes gave %ld", n, result);
    if (result < 0 && !(error == EINTR && storm) && !(error == EAGAIN && !may_block))
        WRONG("send of %zu bytes, flags %#x: %s", n, (unsigned)flags, rw_errno_name(error));
    if (result > 0)
        set(W_SENT + out, at + result);
}

static void do_finish(void)
{
    if (look(W_SENT + out) < total[out] || look(W_FINISHED + out))
        return;
    set(W_FINISHED + out, 1);
    MUST(shutdown(fd, SHUT_WR));
    if (one_in(3) && (send(fd, "x", 1, MSG_NOSIGNAL) != -1 || errno != EPIPE))
        WRONG("send after shutdown: %s", rw_errno_name(errno));
}

/* ---- receiving ---- */

static long call_recv(char *to, size_t n, int flags)
{
    struct iovec parts[3];
    size_t third = n / 3;
    parts[0] = (struct iovec) { to, third };
    parts[1] = (struct iovec) { to + third, third };
    parts[2] = (struct iovec) { to + 2 * third, n - 2 * third };
    struct mmsghdr message = { .msg_hdr = { .msg_iov = parts, .msg_iovlen = 3 } };
    switch (any(6)) {
    case 0: return flags ? recv(fd, to, n, flags) : read(fd, to, n);
    case 1: return flags ? recvmsg(fd, &message.msg_hdr, flags) : readv(fd, parts, 3);
    case 2: return recvmsg(fd, &message.msg_hdr, flags);
    case 3: return recvmmsg(fd, &message, 1, flags, NULL) == 1 ? (long)message.msg_len : -1;
    case 4: return recvfrom(fd, to, n, flags, NULL, NULL);
    default: return recv(fd, to, n, flags);
    }
}

/* Checks what a receiving call gave and takes note of it; `least` bytes had to come, unless the end or a signal did. */
static long took(long result, size_t n, size_t least, bool may_block, int flags)
{
    int error = errno;
    long at = look(W_RECEIVED + in);
    drained = false;
    if (result < 0) {
        drained = error == EAGAIN;
        if (!(error == EAGAIN && !may_block) && !(error == EINTR && storm))
            WRONG("recv of %zu bytes, flags %#x: %s", n, (unsigned)flags, rw_errno_name(error));
        if (least > 0 && error == EAGAIN)
            WRONG("recv of %zu bytes, flags %#x: EAGAIN, where %zu bytes had to be", n, (unsigned)flags, least);
        return result;
    }
    if (result > (long)n || at + result > look(W_SENDING + in))
        WRONG("recv of %zu bytes gave %ld at %ld, only %ld were sent", n, result, at, look(W_SENDING + in));
    if (!rw_matches(copy, (size_t)result, STREAM + (unsigned)in, (size_t)at))
        WRONG("recv of %zu bytes, flags %#x, gave %ld wrong bytes at %ld", n, (unsigned)flags, result, at);
    if (result == 0 && n > 0) {
        if (!look(W_FINISHED + in) || at != total[in])
            WRONG("the end at %ld of %ld bytes, flags %#x", at, total[in], (unsigned)flags);
        ended = !(flags & MSG_PEEK);
    } else if ((size_t)result < least && !storm) {
        WRONG("recv of %zu bytes, flags %#x, gave %ld where %zu had to be", n, (unsigned)flags, result, least);
    }
    if (!(flags & MSG_PEEK))
        set(W_RECEIVED + in, at + result);
    return result;
}

/* Reads `n` bytes that are known to be there, without waiting; a carrier may end between them. */
static void take_what_is_there(size_t n)
{
    while (n > 0) {
        long got = took(call_recv(copy, n, MSG_DONTWAIT), n, 1, false, MSG_DONTWAIT);
        if (got == 0)
            WRONG("the end, where %zu bytes had to be", n);
        n -= got > 0 ? (size_t)got : 0;
    }
}

static void do_recv(void)
{
    size_t n = any_size() + 1;
    long there = outstanding(in);
    int flags = one_in(3) ? MSG_DONTWAIT : 0;
    bool may_block = !nonblocking && !flags, sleeps = false;
    size_t least = 0;
    /* Not positive: what there is was received before its sender came to count it. */
    if (may_block && there <= 0) {
        sleeps = take_flag(W_SLEEPER);
        flags = sleeps ? 0 : MSG_DONTWAIT;
        may_block = sleeps;
    } else if (may_block && one_in(3)) {
        flags |= MSG_WAITALL;
        least = n = MIN_OF(n, (size_t)there);
    }
    if (one_in(5)) {
        /* What is peeked at is what is read afterwards. Waiting for more than is queued can be for ever, because what is only
         * looked at keeps its room: the kernel's window may be closed. */
        int queued = 0;
        MUST(ioctl(fd, FIONREAD, &queued));
        if (flags & MSG_WAITALL)
            least = n = MIN_OF(n, (size_t)queued);
        long seen = took(call_recv(copy, n, flags | MSG_PEEK), n, least, may_block, flags | MSG_PEEK);
        if (seen > 0)
            take_what_is_there((size_t)seen);
    } else {
        took(call_recv(copy, n, flags), n, least, may_block, flags);
    }
    if (sleeps)
        set(W_SLEEPER, 0);
}

/* What FIONREAD says is there can be read at once. */
static void do_count(void)
{
    int waiting = -1;
    MUST(ioctl(fd, FIONREAD, &waiting));
    if (waiting < 0 || waiting > look(W_SENDING + in) - look(W_RECEIVED + in))
        WRONG("FIONREAD says %d", waiting);
    size_t n = MIN_OF((size_t)waiting, (size_t)LARGEST);
    if (n > 0 && one_in(2))
        take_what_is_there(n);
    int unsent = -1;
    MUST(ioctl(fd, TIOCOUTQ, &unsent));
    if (unsent < 0)
        WRONG("TIOCOUTQ says %d", unsent);
}

static void do_timeout(void)
{
    struct timeval some = { 0, 4000 }, none = { 0, 0 };
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &some, sizeof some));
    size_t n = any_size() + 1;
    took(call_recv(copy, n, 0), n, 0, false, 0);
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none));
}

/* ---- waiting ---- */

static int wait_by_select(int wanted, int ms)
{
    fd_set readable, writable;
    struct timeval bound = { 0, ms * 1000 };
    FD_ZERO(&readable);
    FD_ZERO(&writable);
    if (wanted & POLLIN)
        FD_SET(fd, &readable);
    if (wanted & POLLOUT)
        FD_SET(fd, &writable);
    if (select(fd + 1, &readable, &writable, NULL, &bound) < 0)
        return -1;
    return (FD_ISSET(fd, &readable) ? POLLIN : 0) | (FD_ISSET(fd, &writable) ? POLLOUT : 0);
}

static int wait_by_epoll(int wanted, int ms)
{
    struct epoll_event event = { .events = (uint32_t)wanted };
    MUST(epoll_ctl(level_set, EPOLL_CTL_MOD, fd, &event));
    int n = epoll_wait(level_set, &event, 1, ms);
    return n < 0 ? -1 : n == 0 ? 0 : (int)event.events;
}

/* Ready means that the next call does not wait. */
static void do_wait(void)
{
    int wanted = one_in(3) ? POLLOUT : one_in(2) ? POLLIN : POLLIN | POLLOUT, ms = one_in(2) ? 0 : (int)any(12), events;
    struct pollfd wait = { fd, (short)wanted, 0 };
    double start = rw_now_ms();
    errno = 0;
    switch (any(has_sets ? 3 : 2)) {
    case 0: events = poll(&wait, 1, ms) < 0 ? -1 : wait.revents; break;
    case 1: events = wait_by_select(wanted, ms); break;
    default: events = wait_by_epoll(wanted, ms); break;
    }
    double waited = rw_now_ms() - start;
    if (events < 0 && !(errno == EINTR && storm))
        WRONG("a wait for %s: %s", rw_poll_names(wanted), rw_errno_name(errno));
    if (events == 0 && waited < ms - 1)
        WRONG("a wait of %d ms ended after %.1f ms with nothing", ms, waited);
    if (events > 0 && (events & POLLIN) && !ended)
        took(recv(fd, copy, 100, MSG_DONTWAIT), 100, ended ? 0 : 1, false, MSG_DONTWAIT);
    long at = look(W_SENT + out);
    if (events > 0 && (events & POLLOUT) && at < total[out]) {
        set(W_SENDING + out, at + 1);
        rw_fill(bytes, 1, STREAM + (unsigned)out, (size_t)at);
        if (send(fd, bytes, 1, MSG_DONTWAIT) != 1)
            WRONG("said to be writable, then %s", rw_errno_name(errno));
        set(W_SENT + out, at + 1);
    }
}

/* After reading until EAGAIN, bytes that come make an edge. */
static void do_edge(void)
{
    struct epoll_event event;
    if (!drained || outstanding(in) <= 0)
        return;
    double deadline = rw_now_ms() + 5000;
    int n;
    do
        n = epoll_wait(edge_set, &event, 1, 5000);
    while (n < 0 && errno == EINTR && rw_now_ms() < deadline);
    if (n != 1)
        WRONG("no edge within 5 s for %ld bytes", outstanding(in));
    took(recv(fd, copy, LARGEST, MSG_DONTWAIT), LARGEST, 1, false, MSG_DONTWAIT);
}

/* ---- descriptors and processes ---- */

static void join_sets(void)
{
    if (!has_sets)
        return;
    struct epoll_event event = { .events = EPOLLIN };
    MUST(epoll_ctl(level_set, EPOLL_CTL_ADD, fd, &event));
    event.events = EPOLLIN | EPOLLET;
    MUST(epoll_ctl(edge_set, EPOLL_CTL_ADD, fd, &event));
}

static void do_duplicate(void)
{
    if (has_sets) {
        MUST(epoll_ctl(level_set, EPOLL_CTL_DEL, fd, NULL));
        MUST(epoll_ctl(edge_set, EPOLL_CTL_DEL, fd, NULL));
    }
    int again = (int)MUST(one_in(2) ? dup(fd) : dup2(fd, 100 + (int)any(20)));
    if (again != fd)
        MUST(close(fd));
    fd = again;
    join_sets();
    drained = false;
}

static void do_flags(void)
{
    nonblocking = one_in(2);
    rw_nonblocking(fd, nonblocking);
    int error = -1;
    socklen_t length = sizeof error;
    MUST(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length));
    if (error)
        WRONG("SO_ERROR: %s", rw_errno_name(error));
}

static void random_call(void);

static void do_fork(void)
{
    if (in_child)
        return;
    uint64_t chances = state + 77;
    pid_t child = rw_fork();
    if (child == 0) {
        in_child = true;
        state = chances;
        for (uint32_t i = 1 + any(6); i > 0 && !ended; i--)
            random_call();
        _exit(ended ? 2 : 0);
    }
    int status = -1;
    while (waitpid(child, &status, 0) < 0)
        ;
    if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 2))
        WRONG("a child ended with status %#x", (unsigned)status);
    ended = ended || WEXITSTATUS(status) == 2;
    drained = false;
    /* The child may have changed it, and it belongs to the open file. */
    nonblocking = fcntl(fd, F_GETFL) & O_NONBLOCK;
}

static void random_call(void)
{
    calls++;
    bool sends = look(W_SENT + out) < total[out];
    switch (any(24)) {
    case 0: rw_sleep_ms((int)any(3)); break;
    case 1: if (!in_child) do_duplicate(); break; /* a child would change the sets it shares */
    case 2: do_flags(); break;
    case 3: if (one_in(3)) do_fork(); break;
    case 4: if (!ended) do_timeout(); break;
    case 5: case 6: if (has_sets && !ended) do_edge(); break;
    case 7: case 8: if (!ended) do_count(); break;
    case 9: case 10: case 11: if (polls) do_wait(); break;
    case 12: case 13: case 14: case 15: case 16: case 17:
        if (sends)
            do_send();
        else
            do_finish();
        break;
    default: if (!ended) do_recv(); break;
    }
}

/* ---- the end ---- */

/* Whether an end got around to leaving early depends on the scheduler, so the transcript does not tell. */
static void note_end(void)
{
    if (leaving_side >= 0)
        rw_note("all of it right, as far as it went");
    else
        rw_note("sent %ld, received %ld, all of it right, then the end", total[out], total[in]);
}

/* This end leaves before all is done, while the other stands still: all that was on its way is known. */
static void leave(void)
{
    set(W_CLOSING, CLOSE_WANTED);
    while (look(W_CLOSING) != CLOSE_AGREED)
        rw_sleep_ms(1);
    if (!leaves_unread)
        while (outstanding(in) > 0)
            do_recv();
    /* Bytes that the kernel holds back are not unread yet: let them arrive. */
    rw_sleep_ms(15);
    rw_shared[W_CLOSING + 1] = outstanding(in);
    rw_shared[W_CLOSING + 2] = leaves_by_reset;
    if (leaves_by_reset)
        MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger) { 1, 0 }, sizeof(struct linger)));
    MUST(close(level_set));
    MUST(close(edge_set));
    MUST(close(fd));
    rw_sleep_ms(10);
    set(W_CLOSING, CLOSE_DONE);
    note_end();
}

/* The other end left: what it sent before may be there, and then its end shows as TCP shows it. */
static void be_left(void)
{
    /* Of bytes that Nagle's algorithm holds back the other end knows nothing when it leaves: until it acknowledges what came before, 40 ms. */
    MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)));
    set(W_CLOSING, CLOSE_AGREED);
    while (look(W_CLOSING) != CLOSE_DONE)
        rw_sleep_ms(1);
    bool by_reset = rw_shared[W_CLOSING + 1] > 0 || rw_shared[W_CLOSING + 2];
    /* A reset overtakes bytes, and an end, that the sender's kernel still held back. */
    bool may_end = !by_reset || look(W_FINISHED + in) || ended;
    long at = look(W_RECEIVED + in), n;
    rw_nonblocking(fd, false);
    while ((n = recv(fd, copy, LARGEST, 0)) > 0 || (n < 0 && errno == EINTR)) {
        if (n > 0 && !rw_matches(copy, (size_t)n, STREAM + (unsigned)in, (size_t)at))
            WRONG("%ld wrong bytes at %ld after the other end left", n, at);
        at += n > 0 ? n : 0;
    }
    int error = n < 0 ? errno : 0;
    if (at > look(W_SENT + in) || (!by_reset && at < look(W_SENT + in)))
        WRONG("received %ld of the %ld bytes sent before the other end left", at, look(W_SENT + in));
    if (error == 0 ? !may_end : !by_reset || error != ECONNRESET)
        WRONG("the other end left%s%s: %s", by_reset ? " by a reset" : "", look(W_FINISHED + in) ? " after its last byte" : "",
            error ? rw_errno_name(error) : "the end");
    note_end();
}

static void on_alarm(int number) { (void)number; }

CASE(exchange)
{
    make_plan();
    signal(SIGPIPE, SIG_IGN);
    file = (int)MUST(memfd_create("bytes", 0));
    MUST(pipe(pipes));
    level_set = (int)MUST(epoll_create1(0));
    edge_set = (int)MUST(epoll_create1(0));
    join_sets();
    if (has_sets)
        epoll_wait(edge_set, &(struct epoll_event) { 0 }, 1, 0);
    if (!starts_cold && has_sets)
        rw_warm_epoll(fd, level_set);
    else if (!starts_cold)
        rw_warm(fd, polls ? RW_POLL : RW_BLOCK);
    if (storm) {
        struct sigaction action = { .sa_handler = on_alarm, .sa_flags = storm_flags };
        struct itimerval often = { { 0, storm }, { 0, storm } };
        MUST(sigaction(SIGALRM, &action, NULL));
        MUST(setitimer(ITIMER_REAL, &often, NULL));
    }
    rw_meet();
    bool leaving = leaving_side == (rw_is_a ? 0 : 1);
    double deadline = rw_now_ms() + 9000;
    while (!ended || !look(W_FINISHED + out)) {
        if (look(W_CLOSING) == CLOSE_WANTED && !leaving) {
            be_left();
            return;
        }
        if (leaving && calls >= leaving_after) {
            leave();
            return;
        }
        if (rw_now_ms() > deadline)
            WRONG("no end in sight after 9 s");
        random_call();
    }
    /* An end that wanted to leave and was done before stays. */
    if (look(W_SENT + out) != total[out] || look(W_RECEIVED + in) != total[in])
        WRONG("done, but not all of it");
    if (!leaving && leaving_side >= 0) {
        while (look(W_CLOSING) != CLOSE_WANTED && look(W_CLOSING + 3) == 0)
            rw_sleep_ms(1);
        if (look(W_CLOSING) == CLOSE_WANTED) {
            be_left();
            return;
        }
    }
    if (leaving)
        set(W_CLOSING + 3, 1);
    note_end();
}

RW_MAIN(ENTRY(exchange))
