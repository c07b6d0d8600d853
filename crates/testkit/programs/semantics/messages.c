/* Vectors and messages, their limits and fields; what bad pointers, descriptors and flags give. */
#include "rw_test.h"

#include <limits.h>
#include <sys/sendfile.h>

static char buffer[1 << 17];

/* Cuts `length` bytes of `bytes` into `count` pieces of unequal sizes, some of them empty. */
static void cut(struct iovec *parts, int count, char *bytes, size_t length)
{
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        size_t size = i % 7 == 3 ? 0 : MIN_OF((size_t)(i * 37 % 90 + 1), length - at);
        if (i == count - 1)
            size = length - at;
        parts[i] = (struct iovec) { bytes + at, size };
        at += size;
    }
}

CASE(vectors)
{
    struct iovec parts[64];
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        rw_fill(buffer, 2000, 1, 0);
        cut(parts, 8, buffer, 1000);
        T(writev(fd, parts, 8));
        cut(parts, 64, buffer + 1000, 1000);
        struct msghdr message = { .msg_iov = parts, .msg_iovlen = 64 };
        T(sendmsg(fd, &message, 0));
    }
    rw_rest();
    B_SIDE {
        cut(parts, 30, buffer, 1500);
        rw_bytes("scattered", buffer, T(readv(fd, parts, 30)));
        cut(parts, 64, buffer + 1500, 3000);
        struct msghdr message = { .msg_iov = parts, .msg_iovlen = 64 };
        rw_bytes("scattered", buffer + 1500, T(recvmsg(fd, &message, 0)));
        YES(rw_matches(buffer, 2000, 1, 0));
    }
}

CASE(as_many_vectors_as_there_may_be)
{
    static struct iovec parts[IOV_MAX + 1];
    volatile int minus = -1;
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = IOV_MAX };
    rw_warm(fd, RW_BLOCK);
    cut(parts, IOV_MAX, buffer, 60000);
    parts[IOV_MAX] = (struct iovec) { buffer, 1 };
    A_SIDE {
        rw_fill(buffer, 60000, 2, 0);
        T(writev(fd, parts, IOV_MAX));
        T(sendmsg(fd, &message, 0));
        T(writev(fd, parts, IOV_MAX + 1));
        message.msg_iovlen = IOV_MAX + 1;
        T(sendmsg(fd, &message, 0));
    }
    rw_rest();
    B_SIDE {
        T(readv(fd, parts, IOV_MAX + 1));
        T(readv(fd, parts, minus));
        long got = T(readv(fd, parts, IOV_MAX));
        YES(rw_matches(buffer, (size_t)got, 2, 0));
        message.msg_flags = 0;
        got = T(recvmsg(fd, &message, MSG_WAITALL));
        YES(rw_matches(buffer, (size_t)got, 2, 0));
        message.msg_iovlen = IOV_MAX + 1;
        T(recvmsg(fd, &message, 0));
        T(recv(fd, buffer, 10, MSG_DONTWAIT));
    }
}

CASE(many_messages_at_once)
{
    struct mmsghdr messages[6];
    struct iovec parts[6][2];
    rw_warm(fd, RW_BLOCK);
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < 6; i++) {
        parts[i][0] = (struct iovec) { buffer + 100 * i, 40 };
        parts[i][1] = (struct iovec) { buffer + 100 * i + 40, 60 };
        messages[i].msg_hdr.msg_iov = parts[i];
        messages[i].msg_hdr.msg_iovlen = 2;
    }
    A_SIDE {
        rw_fill(buffer, 600, 3, 0);
        T(sendmmsg(fd, messages, 6, 0));
        for (int i = 0; i < 6; i++)
            rw_note("message %d: %u", i, messages[i].msg_len);
        T(sendmmsg(fd, messages, 0, 0));
        T(sendmmsg(fd, messages, 1, MSG_DONTWAIT));
    }
    rw_rest();
    B_SIDE {
        struct timespec bound = { 1, 0 };
        T(recvmmsg(fd, messages, 4, 0, &bound));
        for (int i = 0; i < 4; i++)
            rw_note("message %d: %u flags %#x", i, messages[i].msg_len, messages[i].msg_hdr.msg_flags);
        YES(rw_matches(buffer, 400, 3, 0));
        T(recvmmsg(fd, messages, 6, MSG_WAITFORONE, NULL));
        for (int i = 0; i < 3; i++)
            rw_bytes("message", buffer + 100 * i, messages[i].msg_len);
        T(recvmmsg(fd, messages, 6, MSG_DONTWAIT, NULL));
        T(recvmmsg(fd, messages, 0, 0, NULL));
    }
    rw_rest();
    A_SIDE {
        T(send(fd, "short", 5, 0));
        T(shutdown(fd, SHUT_WR));
    }
    rw_rest();
    B_SIDE {
        T(recvmmsg(fd, messages, 3, MSG_WAITFORONE, NULL));
        for (int i = 0; i < 3; i++)
            rw_note("message %d: %u", i, messages[i].msg_len);
    }
}

/* sendmmsg ends at a message that it cannot send whole, though a later one would fit, and at the most it takes at once. */
CASE(many_messages_in_part)
{
    enum { LARGE = 32 << 20, MANY = IOV_MAX + 1 };
    static struct mmsghdr messages[MANY];
    static struct iovec parts[MANY];
    struct mmsghdr two[2];
    struct iovec pieces[2] = { { buffer, 0 }, { buffer, 1 } };
    rw_warm(fd, RW_BLOCK);
    memset(two, 0, sizeof two);
    for (int i = 0; i < 2; i++) {
        two[i].msg_hdr.msg_iov = &pieces[i];
        two[i].msg_hdr.msg_iovlen = 1;
    }
    for (int i = 0; i < MANY; i++) {
        parts[i] = (struct iovec) { buffer, 1 };
        messages[i].msg_hdr.msg_iov = &parts[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    A_SIDE T(sendmmsg(fd, messages, MANY, 0));
    rw_rest();
    B_SIDE {
        T(recv(fd, buffer, IOV_MAX, MSG_WAITALL));
        T(recv(fd, buffer, 1, MSG_DONTWAIT));
    }
    rw_rest();
    A_SIDE {
        pieces[0] = (struct iovec) { mmap(NULL, LARGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), LARGE };
        T(sendmmsg(fd, two, 2, MSG_DONTWAIT));
        YES(two[0].msg_len < LARGE);
        YES(two[1].msg_len == 0);
    }
}

/* An error behind the first message is told by the next call. */
CASE(many_messages_before_a_reset)
{
    struct iovec part = { buffer, 10 };
    struct mmsghdr messages[2];
    rw_warm(fd, RW_BLOCK);
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < 2; i++) {
        messages[i].msg_hdr.msg_iov = &part;
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    A_SIDE T(send(fd, "hello", 5, 0));
    B_SIDE T(send(fd, "never read", 10, 0));
    rw_rest();
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        T(close(fd));
    }
    B_SIDE {
        rw_tell();
        T(recvmmsg(fd, messages, 2, 0, NULL));
        T(recv(fd, buffer, 10, 0));
        T(recv(fd, buffer, 10, 0));
    }
}

CASE(time_of_many_messages)
{
    static const struct timespec fixed = { 1000, 0 };
    struct timespec bad[] = { { -1, 0 }, { 0, -1 }, { 0, 1000000000 } }, bound = { 1000, 0 };
    struct iovec part = { buffer, 2 };
    struct mmsghdr messages[2];
    rw_warm(fd, RW_BLOCK);
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < 2; i++) {
        messages[i].msg_hdr.msg_iov = &part;
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    A_SIDE T(send(fd, "abcd", 4, 0));
    rw_rest();
    B_SIDE {
        for (size_t i = 0; i < COUNT(bad); i++)
            T(recvmmsg(fd, messages, 1, MSG_DONTWAIT, &bad[i]));
        T(recvmmsg(fd, messages, 1, 0, &bound));
        rw_note("what is left is told: %d", bound.tv_sec < 1000 && bound.tv_sec > 900);
        bound = (struct timespec) { 0, 0 };
        T(recvmmsg(fd, messages, 2, 0, &bound));
        rw_note("%ld s %ld ns", (long)bound.tv_sec, bound.tv_nsec);
        bound = (struct timespec) { 1000, 0 };
        T(recvmmsg(fd, messages, 2, MSG_DONTWAIT, &bound));
        rw_note("%ld s %ld ns", (long)bound.tv_sec, bound.tv_nsec);
    }
    rw_rest();
    A_SIDE T(send(fd, "efgh", 4, 0));
    rw_rest();
    B_SIDE {
        rw_note("nothing can be told where nothing can be written");
        T(recvmmsg(fd, messages, 1, 0, (struct timespec *)&fixed));
        T(recvmmsg(fd, messages, 2, MSG_DONTWAIT, (struct timespec *)&fixed));
        T(recvmmsg(fd, messages, 1, MSG_DONTWAIT, (struct timespec *)&fixed));
    }
}

CASE(fields_of_a_message)
{
    struct sockaddr_in from;
    socklen_t from_length = sizeof from;
    char control[128];
    struct iovec part = { buffer, 100 };
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        T(sendto(fd, "first", 5, 0, (struct sockaddr *)&to, sizeof to));
        struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_name = &to, .msg_namelen = sizeof to, .msg_flags = -1 };
        memcpy(buffer, "second", 6);
        part.iov_len = 6;
        T(sendmsg(fd, &message, 0));
    }
    rw_rest();
    B_SIDE {
        memset(&from, 0xee, sizeof from);
        rw_bytes("got", buffer, T(recvfrom(fd, buffer, 5, 0, (struct sockaddr *)&from, &from_length)));
        rw_note("address of %u bytes, family %#x", from_length, from.sin_family);
        struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_name = &from, .msg_namelen = sizeof from,
            .msg_control = control, .msg_controllen = sizeof control, .msg_flags = -1 };
        rw_bytes("got", buffer, T(recvmsg(fd, &message, 0)));
        rw_note("name %u control %zu flags %#x", message.msg_namelen, message.msg_controllen, message.msg_flags);
        T(recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC));
        rw_note("name %u control %zu flags %#x", message.msg_namelen, message.msg_controllen, message.msg_flags);
    }
}

/* Shows what a receive of `size` bytes says beside them, with so much room for it. */
static void show_control(size_t size, size_t room)
{
    char control[128];
    struct iovec part = { buffer, size };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = room ? control : NULL, .msg_controllen = room };
    int number;
    memset(control, 0xee, sizeof control);
    T(recvmsg(fd, &message, 0));
    rw_note("control %zu flags %#x", message.msg_controllen, message.msg_flags);
    for (struct cmsghdr *said = CMSG_FIRSTHDR(&message); said; said = CMSG_NXTHDR(&message, said)) {
        memcpy(&number, CMSG_DATA(said), sizeof number);
        rw_note("level %d type %d", said->cmsg_level, said->cmsg_type);
        if (said->cmsg_level == IPPROTO_TCP)
            rw_note("length %zu: %d", said->cmsg_len, number);
    }
}

/* With TCP_INQ every recvmsg tells how many bytes are left; programs that wait for edges go by it. */
CASE(bytes_left)
{
    int on = 1, off = 0;
    rw_warm(fd, RW_BLOCK);
    B_SIDE T(setsockopt(fd, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
    A_SIDE T(send(fd, buffer, 100, 0));
    rw_rest();
    B_SIDE {
        show_control(10, 64);
        show_control(10, CMSG_SPACE(sizeof(int)));
        show_control(10, CMSG_LEN(sizeof(int)));
        show_control(10, sizeof(struct cmsghdr) + 2);
        show_control(10, sizeof(struct cmsghdr) - 1);
        show_control(10, 0);
        show_control(40, 64);
        T(setsockopt(fd, IPPROTO_TCP, TCP_INQ, &off, sizeof off));
    }
    rw_rest();
    A_SIDE T(send(fd, buffer, 20, 0));
    rw_rest();
    B_SIDE {
        show_control(10, 64);
        T(setsockopt(fd, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
    }
    rw_rest();
    A_SIDE {
        T(send(fd, buffer, 10, 0));
        T(shutdown(fd, SHUT_WR));
    }
    rw_rest();
    B_SIDE {
        show_control(5, 64);
        show_control(10, 64);
        show_control(5, 64);
        show_control(10, 64);
    }
}

/* The end that the peer has sent counts as a byte; that of one's own making does not. */
CASE(bytes_left_after_shutdown_of_reading)
{
    int on = 1;
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        T(setsockopt(fd, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
        T(shutdown(fd, SHUT_RD));
        show_control(10, 64);
    }
    rw_rest();
    A_SIDE {
        T(send(fd, buffer, 10, 0));
        T(close(fd));
    }
    rw_rest();
    B_SIDE {
        show_control(5, 64);
        show_control(10, 64);
    }
}

/* The same where the peer closes at once. */
CASE(bytes_left_of_a_closed_connection)
{
    int on = 1;
    rw_warm(fd, RW_BLOCK);
    B_SIDE T(setsockopt(fd, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
    A_SIDE {
        T(send(fd, buffer, 10, 0));
        T(close(fd));
    }
    rw_rest();
    B_SIDE {
        show_control(5, 64);
        show_control(5, 64);
        show_control(5, 64);
    }
}

/* Accepts a connection from a listener that has the option, and becomes its accepting end. */
static int accept_with(int level, int option)
{
    uint16_t port;
    int on = 1, listener = rw_listen(&port);
    MUST(setsockopt(listener, level, option, &on, sizeof on));
    int client = rw_connect(port);
    fd = (int)MUST(accept(listener, NULL, NULL));
    rw_nodelay(client);
    rw_nodelay(fd);
    rw_warm_pair(client, fd);
    return client;
}

CASE(bytes_left_by_the_listener)
{
    int client = accept_with(IPPROTO_TCP, TCP_INQ);
    MUST(send(client, buffer, 100, 0));
    show_control(10, 64);
}

CASE(times_of_arrival_by_the_listener)
{
    int on = 1, other = (int)MUST(socket(AF_INET, SOCK_DGRAM, 0));
    MUST(setsockopt(other, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on));
    int client = accept_with(SOL_SOCKET, SO_TIMESTAMP);
    rw_sleep_ms(20);
    MUST(send(client, buffer, 100, 0));
    show_control(100, 64);
}

/* What takes a connection out of the ordinary waits for nobody, though the peer does nothing and much that it sent is unread. */
enum { UNREAD = 10000, QUICK_MS = 500 };

/* Control data of a message that is sent are for the kernel, which refuses what it does not know. */
CASE(control_data_sent)
{
    struct sockaddr_in before, after;
    socklen_t length = sizeof before;
    struct iovec part = { buffer, 10 };
    union { struct cmsghdr header; char room[CMSG_SPACE(sizeof(int))]; } control = {
        .header = { .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = 99 } };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
    rw_warm(fd, RW_BLOCK);
    B_SIDE rw_send_stream(fd, 5, UNREAD);
    rw_rest();
    A_SIDE {
        MUST(getsockname(fd, (struct sockaddr *)&before, &length));
        double start = rw_now_ms();
        T(sendmsg(fd, &message, 0));
        control.header.cmsg_level = IPPROTO_TCP;
        T(sendmsg(fd, &message, 0));
        message.msg_control = NULL;
        T(sendmsg(fd, &message, 0));
        YES(rw_now_ms() - start < QUICK_MS);
        MUST(getsockname(fd, (struct sockaddr *)&after, &length));
        YES(memcmp(&before, &after, sizeof before) == 0);
        rw_recv_stream(fd, 5, UNREAD);
    }
    rw_rest();
    B_SIDE T(recv(fd, buffer, 100, MSG_DONTWAIT));
}

CASE(times_of_arrival)
{
    int on = 1;
    /* The kernel begins to stamp packets a moment after the first socket has asked for it. */
    int other = (int)MUST(socket(AF_INET, SOCK_DGRAM, 0));
    MUST(setsockopt(other, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on));
    rw_warm(fd, RW_BLOCK);
    A_SIDE rw_send_stream(fd, 6, UNREAD);
    rw_rest();
    B_SIDE {
        double start = rw_now_ms();
        T(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on));
        YES(rw_now_ms() - start < QUICK_MS);
        rw_recv_stream(fd, 6, UNREAD);
    }
    rw_rest();
    A_SIDE T(send(fd, buffer, 100, 0));
    rw_rest();
    B_SIDE show_control(100, 64);
}

/* The kernel answers EFAULT and takes no byte; a carrier in user space must not die instead. */
CASE(bad_pointers)
{
    void *volatile null = NULL, *volatile kernel = (void *)0xffff800000000000u;
    void *volatile hole = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *bad[] = { null, hole, kernel };
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        for (size_t i = 0; i < COUNT(bad); i++) {
            struct iovec parts[2] = { { bad[i], 10 }, { buffer, 10 } };
            T(send(fd, bad[i], 10, 0));
            T(write(fd, bad[i], 10));
            T(writev(fd, parts, 2));
            struct msghdr message = { .msg_iov = bad[i], .msg_iovlen = 1 };
            T(writev(fd, bad[i], 1));
            T(writev(fd, bad[i], 2));
            T(sendmsg(fd, bad[i], 0));
            T(sendmsg(fd, &message, 0));
        }
        T(send(fd, "good", 4, 0));
    }
    rw_rest();
    B_SIDE {
        for (size_t i = 0; i < COUNT(bad); i++) {
            struct iovec parts[2] = { { bad[i], 10 }, { buffer, 10 } };
            struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
            T(recv(fd, bad[i], 10, 0));
            T(recv(fd, bad[i], 10, MSG_PEEK));
            T(read(fd, bad[i], 10));
            T(readv(fd, parts, 2));
            T(readv(fd, bad[i], 1));
            T(readv(fd, bad[i], 2));
            T(recvmsg(fd, bad[i], 0));
            T(recvmsg(fd, &message, 0));
            message.msg_iov = bad[i], message.msg_iovlen = 1;
            T(recvmsg(fd, &message, 0));
            T(ioctl(fd, FIONREAD, bad[i]));
            T(poll(bad[i], 1, 0));
            T(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, bad[i], sizeof(int)));
        }
        rw_bytes("untouched", buffer, T(recv(fd, buffer, 10, 0)));
        T(recv(fd, hole, 10, MSG_DONTWAIT));
    }
}

/* A buffer whose end is not there: what was sent in one piece arrives whole or not at all. */
CASE(buffers_that_end_in_a_hole)
{
    char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *edge = pages + 4096 - 100;
    MUST(mprotect(pages + 4096, 4096, PROT_NONE));
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        T(send(fd, edge, 200, 0));
        T(send(fd, edge, 100, 0));
        rw_fill(buffer, 2000, 4, 0);
        T(send(fd, buffer, 2000, 0));
    }
    rw_rest();
    B_SIDE {
        T(recv(fd, buffer, 100, MSG_WAITALL));
        T(recv(fd, edge, 2000, 0));
        T(recv(fd, edge, 2000, MSG_PEEK));
        long got = T(recv(fd, buffer, 2000, 0));
        YES(rw_matches(buffer, (size_t)got, 4, 0));
    }
}

/* A list of which some buffer is not there: what is said to have been sent arrives, in its place in the stream, and nothing else. */
CASE(lists_of_which_a_part_is_not_there)
{
    enum { MUCH = 40000 };
    void *volatile null = NULL, *volatile kernel = (void *)0xffff800000000000u;
    void *hole = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *bad[] = { null, hole, kernel };
    rw_warm(fd, RW_BLOCK);
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct iovec parts[2] = { { buffer, MUCH }, { bad[i], 10 } };
        A_SIDE {
            rw_fill(buffer, MUCH, 1, 0);
            T(send(fd, "before", 6, 0));
            ssize_t n = writev(fd, parts, 2);
            YES(bad[i] == kernel ? n == -1 && errno == EFAULT : n > 0 && n <= MUCH);
            rw_shared[0] = n > 0 ? n : 0;
            T(send(fd, "after", 5, 0));
        }
        rw_rest();
        B_SIDE {
            rw_expect(fd, 6);
            YES(rw_take_stream(fd, 1, (size_t)rw_shared[0]));
            rw_expect(fd, 5);
        }
        rw_rest();
        A_SIDE T(send(fd, "12345", 5, 0));
        rw_rest();
        B_SIDE {
            parts[0].iov_len = 5;
            rw_bytes("got", buffer, T(readv(fd, parts, 2)));
            if (bad[i] == kernel)
                rw_expect(fd, 5);
        }
        rw_rest();
    }
}

/* Several messages, of which the last ones are not there: those before them are moved. */
CASE(messages_of_which_some_are_not_there)
{
    char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct mmsghdr *messages = (struct mmsghdr *)(pages + 4096) - 2;
    struct iovec parts[2] = { { "first ", 6 }, { "second", 6 } };
    MUST(mprotect(pages + 4096, 4096, PROT_NONE));
    for (int i = 0; i < 2; i++)
        messages[i].msg_hdr = (struct msghdr) { .msg_iov = &parts[i], .msg_iovlen = 1 };
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        T(send(fd, "before ", 7, 0));
        T(sendmmsg(fd, messages, 3, 0));
        T(sendmmsg(fd, messages + 2, 1, 0));
        T(send(fd, " after", 6, 0));
    }
    rw_rest();
    B_SIDE {
        parts[0] = (struct iovec) { buffer, 13 };
        parts[1] = (struct iovec) { buffer + 13, 12 };
        T(recvmmsg(fd, messages + 2, 1, 0, NULL));
        T(recvmmsg(fd, messages, 2, 0, NULL));
        rw_bytes("got", buffer, 25);
    }
}

CASE(bad_descriptors)
{
    int pipes[2], closed;
    struct iovec part = { buffer, 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    rw_warm(fd, RW_BLOCK);
    MUST(pipe(pipes));
    closed = dup(fd);
    MUST(close(closed));
    int bad[] = { -1, closed, 1 << 20, pipes[1] };
    for (size_t i = 0; i < COUNT(bad); i++) {
        T(send(bad[i], "x", 1, 0));
        T(recv(bad[i], buffer, 1, MSG_DONTWAIT));
        T(sendmsg(bad[i], &message, 0));
        T(recvmsg(bad[i], &message, 0));
        T(shutdown(bad[i], SHUT_RD));
        T(read(bad[i], buffer, 1));
        T(getpeername(bad[i], NULL, NULL));
        T(sendfile(bad[i], pipes[0], NULL, 0));
    }
    T(close(-1));
    T(close(closed));
    T(close(closed));
    T(dup(closed));
    T(dup2(closed, closed));
    T(write(closed, "x", 1));
    rw_meet();
    A_SIDE T(send(fd, "still", 5, 0));
    B_SIDE rw_bytes("got", buffer, T(recv(fd, buffer, 10, 0)));
}

CASE(calls_for_files_only)
{
    struct iovec part = { buffer, 4 };
    rw_warm(fd, RW_BLOCK);
    A_SIDE T(send(fd, "data", 4, 0));
    rw_rest();
    T(lseek(fd, 0, SEEK_CUR));
    T(pwrite(fd, "x", 1, 0));
    T(pread(fd, buffer, 1, 0));
    T(preadv(fd, &part, 1, 0));
    T(pwritev(fd, &part, 1, 5));
    T(ftruncate(fd, 0));
    rw_rest();
    B_SIDE {
        rw_note("an offset of -1 means none");
        rw_bytes("got", buffer, T(preadv2(fd, &part, 1, -1, 0)));
        T(preadv2(fd, &part, 1, -1, RWF_NOWAIT));
        T(preadv2(fd, &part, 0, -1, 0));
        T(pwritev2(fd, &part, 1, -1, 0));
    }
    A_SIDE rw_bytes("echo", buffer, T(recv(fd, buffer, 10, 0)));
}

/* Whether this kernel knows a flag, of those that came after the first ones. */
static bool is_taken(int flag)
{
    int ends[2];
    struct iovec part = { "?", 1 };
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    bool taken = pwritev2(ends[0], &part, 1, -1, flag) == 1;
    MUST(close(ends[0]));
    MUST(close(ends[1]));
    return taken;
}

/* Most of these are about files, and mean nothing to a socket, which takes them. */
CASE(flags_of_single_calls)
{
    enum { NOAPPEND = 32, NOSIGNAL = 256, UNKNOWN = 1 << 30 };
    int flags[] = { RWF_HIPRI, RWF_DSYNC, RWF_SYNC, RWF_APPEND, NOAPPEND, RWF_DSYNC | RWF_NOWAIT, NOSIGNAL, UNKNOWN };
    rw_warm(fd, RW_BLOCK);
    for (size_t i = 0; i < COUNT(flags); i++) {
        struct iovec part = { "flagged", 7 };
        if (flags[i] != UNKNOWN && !is_taken(flags[i]))
            continue;
        A_SIDE {
            T(send(fd, "before ", 7, 0));
            T(pwritev2(fd, &part, 1, -1, flags[i]));
            T(send(fd, " after", 6, 0));
        }
        rw_rest();
        B_SIDE {
            part = (struct iovec) { buffer, 10 };
            T(preadv2(fd, &part, 1, -1, flags[i]));
            rw_bytes("and then", buffer, T(recv(fd, buffer, 100, 0)));
        }
        rw_rest();
    }
}

CASE(unusual_flags)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        T(send(fd, "a", 1, MSG_EOR));
        T(send(fd, "b", 1, MSG_CONFIRM));
        T(send(fd, "c", 1, MSG_DONTROUTE));
        T(send(fd, "d", 1, 0x800000));
        T(send(fd, "e", 1, MSG_PROXY));
        T(send(fd, "f", 1, MSG_WAITALL));
        T(send(fd, "g", 1, MSG_PEEK));
        T(send(fd, "h", 1, MSG_BATCH));
        T(send(fd, "i", 1, MSG_ERRQUEUE));
    }
    rw_rest();
    B_SIDE {
        T(recv(fd, buffer, 1, MSG_OOB));
        T(recv(fd, buffer, 1, MSG_ERRQUEUE));
        rw_bytes("got", buffer, T(recv(fd, buffer, 1, MSG_NOSIGNAL)));
        rw_bytes("got", buffer, T(recv(fd, buffer, 1, MSG_WAITFORONE)));
        rw_bytes("got", buffer, T(recv(fd, buffer, 1, 0x800000)));
        rw_bytes("got", buffer, T(recv(fd, buffer, 6, MSG_EOR | MSG_WAITALL)));
    }
}

CASE(lengths_beyond_reason)
{
    struct iovec parts[2] = { { buffer, SSIZE_MAX }, { buffer, SSIZE_MAX } };
    rw_warm(fd, RW_BLOCK);
    A_SIDE T(send(fd, "data", 4, 0));
    rw_rest();
    B_SIDE {
        T(readv(fd, parts, 2));
        T(writev(fd, parts, 2));
        parts[0].iov_len = 100;
        rw_bytes("got", buffer, T(recv(fd, buffer, (size_t)INT_MAX + 100, MSG_DONTWAIT)));
        T(recv(fd, buffer, SIZE_MAX, MSG_DONTWAIT));
    }
}

/* Options and names that programs read back must look as before. */
CASE(options_and_names)
{
    struct sockaddr_in mine, theirs;
    socklen_t length = sizeof mine;
    int value, on = 1;
    struct tcp_info info;
    rw_warm(fd, RW_BLOCK);
    T(getsockname(fd, (struct sockaddr *)&mine, &length));
    T(getpeername(fd, (struct sockaddr *)&theirs, &length));
    rw_shared[rw_is_a ? 0 : 2] = mine.sin_port;
    rw_shared[rw_is_a ? 1 : 3] = theirs.sin_port;
    rw_meet();
    YES(rw_shared[0] == rw_shared[3] && rw_shared[1] == rw_shared[2]);
    YES(mine.sin_addr.s_addr == htonl(INADDR_LOOPBACK) && mine.sin_family == AF_INET && length == sizeof mine);
#define SHOW(level, option)                                                                                                        \
    length = sizeof value, value = -1;                                                                                             \
    T(getsockopt(fd, level, option, &value, &length));                                                                             \
    rw_note("%d in %u bytes", value, length)
    SHOW(SOL_SOCKET, SO_TYPE);
    SHOW(SOL_SOCKET, SO_PROTOCOL);
    SHOW(SOL_SOCKET, SO_DOMAIN);
    SHOW(SOL_SOCKET, SO_ACCEPTCONN);
    SHOW(SOL_SOCKET, SO_ERROR);
    SHOW(SOL_SOCKET, SO_RCVLOWAT);
    SHOW(SOL_SOCKET, SO_KEEPALIVE);
    T(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on));
    SHOW(SOL_SOCKET, SO_KEEPALIVE);
    SHOW(IPPROTO_TCP, TCP_NODELAY);
    value = 100000;
    T(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, sizeof value));
    SHOW(SOL_SOCKET, SO_RCVBUF);
    value = 100000;
    T(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, sizeof value));
    SHOW(SOL_SOCKET, SO_SNDBUF);
    T(setsockopt(fd, SOL_SOCKET, 9999, &value, sizeof value));
    T(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &value, 1));
#undef SHOW
    length = sizeof info;
    T(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length));
    rw_note("state %d", info.tcpi_state);
    rw_meet();
    A_SIDE T(send(fd, "after", 5, 0));
    B_SIDE rw_bytes("got", buffer, T(recv(fd, buffer, 10, 0)));
}

/* SO_PEEK_OFF makes every peek continue where the last one ended. */
CASE(peek_offset)
{
    int offset = 0;
    rw_warm(fd, RW_BLOCK);
    A_SIDE T(send(fd, "abcdefghij", 10, 0));
    rw_rest();
    B_SIDE {
        T(setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset));
        rw_bytes("peek", buffer, T(recv(fd, buffer, 3, MSG_PEEK)));
        rw_bytes("peek", buffer, T(recv(fd, buffer, 3, MSG_PEEK)));
        rw_bytes("read", buffer, T(recv(fd, buffer, 2, 0)));
        rw_bytes("peek", buffer, T(recv(fd, buffer, 3, MSG_PEEK)));
        rw_bytes("read", buffer, T(recv(fd, buffer, 20, 0)));
    }
    rw_rest();
    A_SIDE T(send(fd, "klm", 3, 0));
    rw_rest();
    B_SIDE rw_bytes("read", buffer, T(recv(fd, buffer, 20, 0)));
}

RW_MAIN(ENTRY(vectors), ENTRY(as_many_vectors_as_there_may_be), ENTRY(many_messages_at_once), ENTRY(many_messages_in_part),
    ENTRY(many_messages_before_a_reset), ENTRY(time_of_many_messages), ENTRY(fields_of_a_message), ENTRY(bytes_left),
    ENTRY(bytes_left_after_shutdown_of_reading), ENTRY(bytes_left_of_a_closed_connection),
    ENTRY_WITH(bytes_left_by_the_listener, RW_ALONE), ENTRY(control_data_sent), ENTRY(times_of_arrival),
    ENTRY_WITH(times_of_arrival_by_the_listener, RW_ALONE), ENTRY(bad_pointers), ENTRY(buffers_that_end_in_a_hole),
    ENTRY(lists_of_which_a_part_is_not_there), ENTRY(messages_of_which_some_are_not_there), ENTRY(bad_descriptors),
    ENTRY(calls_for_files_only), ENTRY(flags_of_single_calls), ENTRY(unusual_flags), ENTRY(lengths_beyond_reason), ENTRY(options_and_names), ENTRY(peek_offset))
