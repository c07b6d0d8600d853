/* How bytes come through: partial reads and writes, flags of recv, vectors, counts of what waits. */
#include "rw_test.h"

static char buffer[1 << 16];

CASE(partial_read)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        rw_fill(buffer, 1000, 1, 0);
        T(send(fd, buffer, 1000, 0));
    }
    rw_rest();
    B_SIDE {
        static const int sizes[] = { 1, 9, 90, 300, 10000 };
        for (size_t i = 0; i < COUNT(sizes); i++)
            rw_bytes("got", buffer, T(recv(fd, buffer, sizes[i], 0)));
        T(recv(fd, buffer, 10, MSG_DONTWAIT));
    }
}

CASE(many_sends_one_read)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        T(send(fd, "one", 3, 0));
        T(write(fd, "two", 3));
        T(send(fd, "three", 5, MSG_NOSIGNAL));
        T(sendto(fd, "four", 4, 0, NULL, 0));
        rw_fill(buffer, 300, 1, 0);
        T(send(fd, buffer, 300, 0));
    }
    rw_rest();
    B_SIDE rw_bytes("all", buffer, T(recv(fd, buffer, sizeof buffer, 0)));
}

/* Records of all sizes around the borders of cells, each answered: nothing may be cut, padded or merged wrongly. */
CASE(every_size)
{
    size_t at = 0;
    int wrong = 0;
    rw_warm(fd, RW_BLOCK);
    for (size_t size = 1; size < 66000; size += size < 260 ? 1 : size / 13) {
        if (rw_is_a) {
            rw_fill(buffer, MIN_OF(size, sizeof buffer), 2, at);
            rw_send_all(fd, buffer, MIN_OF(size, sizeof buffer));
            wrong += rw_recv_all(fd, buffer, 1) != 1 || buffer[0] != 'k';
        } else {
            size_t n = rw_recv_all(fd, buffer, MIN_OF(size, sizeof buffer));
            wrong += n != MIN_OF(size, sizeof buffer) || !rw_matches(buffer, n, 2, at);
            rw_send_all(fd, "k", 1);
        }
        at += size;
    }
    rw_note("%d wrong", wrong);
}

/* A reader that keeps up and then pauses: short messages go whole as long as there is room for one. */
CASE(short_messages_go_whole)
{
    enum { ENOUGH = 20000 };
    int in_part = 0;
    rw_warm(fd, RW_BLOCK);
    for (int round = 0; round < 100; round++) {
        size_t size = 57 + 31 * (size_t)round % 1000;
        for (int i = 0; i < 2 + round % 5; i++) {
            A_SIDE rw_send_all(fd, buffer, size);
            B_SIDE rw_recv_all(fd, buffer, size);
            rw_meet();
        }
        A_SIDE {
            size_t went = 0;
            while (went < ENOUGH) {
                ssize_t n = send(fd, buffer, size, MSG_DONTWAIT);
                if (n <= 0)
                    break;
                in_part += (size_t)n != size;
                went += (size_t)n;
            }
            rw_shared[0] = (long)went;
        }
        rw_meet();
        B_SIDE rw_recv_all(fd, buffer, (size_t)rw_shared[0]);
        rw_meet();
    }
    A_SIDE YES(in_part == 0);
}

CASE(partial_write)
{
    rw_warm(fd, RW_POLL);
    A_SIDE {
        rw_nonblocking(fd, true);
        size_t went = rw_stuff(fd, 3);
        rw_shared[0] = (long)went;
        YES(went > 0);
        T(send(fd, "x", 1, 0));
        T(write(fd, "x", 1));
        rw_meet();
        struct pollfd wait = { fd, POLLOUT, 0 };
        T(poll(&wait, 1, 5000));
        rw_note("%s", rw_poll_names(wait.revents));
        rw_meet();
        T(send(fd, "end", 3, 0));
    }
    B_SIDE {
        rw_meet();
        YES(rw_take_stream(fd, 3, (size_t)rw_shared[0]));
        rw_meet();
        rw_bytes("tail", buffer, T(recv(fd, buffer, 10, 0)));
    }
}

CASE(blocking_write_of_more_than_fits)
{
    enum { LARGE = 12 << 20 };
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        char *large = malloc(LARGE);
        rw_fill(large, LARGE, 4, 0);
        rw_tell();
        T(send(fd, large, LARGE, 0));
        free(large);
    }
    B_SIDE {
        rw_hear();
        rw_sleep_ms(60); /* longer than a blocked sender waits before it looks for another way */
        rw_recv_stream(fd, 4, LARGE);
    }
}

CASE(peek)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        rw_fill(buffer, 200, 5, 0);
        rw_send_all(fd, buffer, 100);
        rw_send_all(fd, buffer + 100, 100);
    }
    rw_rest();
    B_SIDE {
        rw_bytes("peek", buffer, T(recv(fd, buffer, 50, MSG_PEEK)));
        rw_bytes("peek", buffer, T(recv(fd, buffer, 150, MSG_PEEK)));
        rw_bytes("peek", buffer, T(recv(fd, buffer, 1000, MSG_PEEK)));
        rw_bytes("read", buffer, T(recv(fd, buffer, 120, 0)));
        rw_bytes("peek", buffer, T(recv(fd, buffer, 1000, MSG_PEEK | MSG_DONTWAIT)));
        struct iovec parts[2] = { { buffer, 10 }, { buffer + 100, 10 } };
        struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
        rw_bytes("peek", buffer, T(recvmsg(fd, &message, MSG_PEEK)));
        rw_bytes("second part", buffer + 100, 10);
        rw_bytes("read", buffer, T(recv(fd, buffer, 1000, 0)));
        T(recv(fd, buffer, 10, MSG_PEEK | MSG_DONTWAIT));
    }
}

CASE(peek_waits_for_data_and_for_the_end)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        T(send(fd, "hello", 5, 0));
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        T(shutdown(fd, SHUT_WR));
    }
    B_SIDE {
        rw_tell();
        rw_bytes("peek", buffer, T(recv(fd, buffer, 10, MSG_PEEK)));
        rw_bytes("read", buffer, T(recv(fd, buffer, 10, 0)));
        rw_tell();
        T(recv(fd, buffer, 10, MSG_PEEK));
        T(recv(fd, buffer, 10, 0));
    }
}

CASE(waitall)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        rw_fill(buffer, 1300, 6, 0);
        for (int i = 0; i < 10; i++) {
            rw_send_all(fd, buffer + 100 * i, 100);
            rw_sleep_ms(2);
        }
        rw_meet();
        rw_send_all(fd, buffer + 1000, 300);
        T(shutdown(fd, SHUT_WR));
    }
    B_SIDE {
        rw_bytes("all", buffer, T(recv(fd, buffer, 1000, MSG_WAITALL)));
        rw_meet();
        rw_bytes("until the end", buffer, T(recv(fd, buffer, 1000, MSG_WAITALL)));
        T(recv(fd, buffer, 1000, MSG_WAITALL));
    }
}

CASE(waitall_large)
{
    enum { LARGE = 3 << 20 };
    rw_warm(fd, RW_BLOCK);
    A_SIDE rw_send_stream(fd, 7, LARGE);
    B_SIDE {
        char *large = malloc(LARGE);
        T(recv(fd, large, LARGE, MSG_WAITALL));
        YES(rw_matches(large, LARGE, 7, 0));
        free(large);
    }
}

CASE(waitall_nonblocking)
{
    rw_warm(fd, RW_POLL);
    A_SIDE T(send(fd, "abcdef", 6, 0));
    rw_rest();
    B_SIDE {
        rw_nonblocking(fd, true);
        rw_bytes("some", buffer, T(recv(fd, buffer, 100, MSG_WAITALL)));
        T(recv(fd, buffer, 100, MSG_WAITALL));
    }
    rw_rest();
    A_SIDE T(send(fd, "ghi", 3, 0));
    rw_rest();
    B_SIDE {
        rw_nonblocking(fd, false);
        rw_bytes("some", buffer, T(recv(fd, buffer, 100, MSG_WAITALL | MSG_DONTWAIT)));
    }
}

CASE(peek_waitall)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        rw_fill(buffer, 400, 8, 0);
        rw_send_all(fd, buffer, 150);
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        rw_send_all(fd, buffer + 150, 250);
    }
    B_SIDE {
        rw_tell();
        rw_bytes("peeked", buffer, T(recv(fd, buffer, 400, MSG_PEEK | MSG_WAITALL)));
        rw_bytes("read", buffer, T(recv(fd, buffer, 400, MSG_WAITALL)));
    }
}

CASE(dontwait)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE T(recv(fd, buffer, 10, MSG_DONTWAIT));
    rw_rest();
    A_SIDE T(send(fd, "data", 4, MSG_DONTWAIT));
    rw_rest();
    B_SIDE {
        rw_bytes("got", buffer, T(recv(fd, buffer, 10, MSG_DONTWAIT)));
        T(recv(fd, buffer, 10, MSG_DONTWAIT));
        T(recvfrom(fd, buffer, 10, MSG_DONTWAIT, NULL, NULL));
    }
    rw_rest();
    A_SIDE T(shutdown(fd, SHUT_WR));
    rw_rest();
    B_SIDE T(recv(fd, buffer, 10, MSG_DONTWAIT));
}

/* On a TCP socket MSG_TRUNC throws the bytes away instead of copying them. */
CASE(trunc_discards)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        rw_fill(buffer, 300, 9, 0);
        T(send(fd, buffer, 300, 0));
    }
    rw_rest();
    B_SIDE {
        memset(buffer, '.', 16);
        T(recv(fd, buffer, 40, MSG_TRUNC));
        rw_bytes("untouched", buffer, 8);
        void *volatile nowhere = NULL;
        T(recv(fd, nowhere, 1000, MSG_TRUNC | MSG_PEEK));
        T(recv(fd, buffer, 60, MSG_TRUNC | MSG_PEEK));
        rw_bytes("untouched", buffer, 8);
        T(recv(fd, nowhere, 60, MSG_TRUNC));
        rw_bytes("rest", buffer, T(recv(fd, buffer, 100, 0)));
        T(recv(fd, buffer, 1000, MSG_TRUNC | MSG_WAITALL | MSG_DONTWAIT));
        T(recv(fd, buffer, 1000, MSG_TRUNC | MSG_DONTWAIT));
    }
}

/* B has only sent so far, and waits for a first byte from A in vain. */
static void only_send(void)
{
    struct timeval soon = { .tv_usec = 20000 };
    rw_warm_one_way(fd);
    B_SIDE {
        T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon));
        T(recv(fd, buffer, 100, 0));
    }
    rw_rest();
}

/* Programs drain a connection in this way before they close it. */
CASE(trunc_finds_the_end)
{
    only_send();
    A_SIDE T(close(fd));
    rw_rest();
    B_SIDE {
        T(recv(fd, buffer, 100, MSG_TRUNC));
        T(recv(fd, buffer, 100, MSG_TRUNC | MSG_DONTWAIT));
    }
}

CASE(trunc_finds_a_reset)
{
    struct linger now = { 1, 0 };
    only_send();
    A_SIDE {
        T(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now));
        T(close(fd));
    }
    rw_rest();
    B_SIDE {
        T(recv(fd, buffer, 100, MSG_TRUNC | MSG_DONTWAIT));
        T(recv(fd, buffer, 100, MSG_TRUNC));
    }
}

CASE(zero_length)
{
    struct iovec none[2] = { { buffer, 0 }, { buffer, 0 } };
    struct msghdr empty = { .msg_iov = none, .msg_iovlen = 2 }, no_vector = { .msg_iovlen = 0 };
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        T(send(fd, buffer, 0, 0));
        T(write(fd, buffer, 0));
        T(writev(fd, none, 2));
        T(writev(fd, none, 0));
        T(sendmsg(fd, &empty, 0));
        T(sendmsg(fd, &no_vector, 0));
    }
    rw_rest();
    B_SIDE {
        rw_note("with nothing there");
        T(read(fd, buffer, 0));
        T(recv(fd, buffer, 0, MSG_DONTWAIT));
        T(readv(fd, none, 2));
        T(readv(fd, none, 0));
        T(recvmsg(fd, &empty, MSG_DONTWAIT));
        T(recvmsg(fd, &no_vector, MSG_DONTWAIT));
    }
    rw_rest();
    A_SIDE T(send(fd, "data", 4, 0));
    rw_rest();
    B_SIDE {
        rw_note("with four bytes there");
        T(read(fd, buffer, 0));
        T(recv(fd, buffer, 0, 0));
        T(recv(fd, buffer, 0, MSG_PEEK));
        T(recvmsg(fd, &empty, 0));
        rw_bytes("still there", buffer, T(recv(fd, buffer, 10, 0)));
    }
    rw_rest();
    A_SIDE T(shutdown(fd, SHUT_WR));
    rw_rest();
    B_SIDE {
        rw_note("at the end");
        T(recv(fd, buffer, 0, 0));
        T(read(fd, buffer, 0));
        T(send(fd, buffer, 0, 0));
    }
    A_SIDE {
        signal(SIGPIPE, SIG_IGN);
        T(send(fd, buffer, 0, MSG_NOSIGNAL));
        T(write(fd, buffer, 0));
        T(writev(fd, none, 0));
    }
}

CASE(fionread)
{
    int waiting = -1;
#define WAITING() rw_note("FIONREAD: %ld, %d waiting", (long)ioctl(fd, FIONREAD, &waiting), waiting)
    rw_warm(fd, RW_BLOCK);
    B_SIDE WAITING();
    rw_rest();
    A_SIDE {
        rw_fill(buffer, 5000, 10, 0);
        rw_send_all(fd, buffer, 10);
        rw_send_all(fd, buffer + 10, 990);
    }
    rw_rest();
    B_SIDE {
        WAITING();
        T(recv(fd, buffer, 300, 0));
        WAITING();
        T(recv(fd, buffer, 300, MSG_PEEK));
        WAITING();
        T(recv(fd, buffer, 200, MSG_TRUNC));
        WAITING();
    }
    rw_rest();
    A_SIDE {
        rw_send_all(fd, buffer + 1000, 4000);
        T(shutdown(fd, SHUT_WR));
    }
    rw_rest();
    B_SIDE {
        WAITING();
        T(recv(fd, buffer, sizeof buffer, MSG_WAITALL));
        WAITING();
        T(recv(fd, buffer, 1, 0));
        WAITING();
    }
#undef WAITING
}

/* How much the kernel, or a ring, still holds is its own affair; that it holds nothing once the peer has read all is not. */
CASE(siocoutq)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        int unsent = -1;
        rw_fill(buffer, 10000, 11, 0);
        rw_send_all(fd, buffer, 10000);
        T(ioctl(fd, TIOCOUTQ, &unsent));
        YES(unsent >= 0 && unsent <= 10000);
        rw_meet();
        rw_meet();
        double deadline = rw_now_ms() + 3000;
        do
            ioctl(fd, TIOCOUTQ, &unsent);
        while (unsent > 0 && rw_now_ms() < deadline);
        rw_note("%d bytes on their way after the peer read all", unsent);
    }
    B_SIDE {
        rw_meet();
        T(recv(fd, buffer, 10000, MSG_WAITALL));
        rw_meet();
    }
}

/* The receiver looks at every step and takes nothing, so the unread bytes may lie in two places: every count must span both. */
CASE(peek_and_counts_across_carriers)
{
    enum { STEPS = 150, STEP = 100 };
    rw_warm(fd, RW_BLOCK);
    rw_fill(buffer, STEPS * STEP, 12, 0);
    static char seen[STEPS * STEP + 100];
    int wrong = 0;
    for (int i = 0; i < STEPS; i++) {
        if (rw_is_a)
            rw_send_all(fd, buffer + i * STEP, STEP);
        rw_meet();
        if (!rw_is_a) {
            int waiting = 0;
            double deadline = rw_now_ms() + 2000;
            while (ioctl(fd, FIONREAD, &waiting) == 0 && waiting < (i + 1) * STEP && rw_now_ms() < deadline)
                rw_sleep_ms(1);
            ssize_t n = recv(fd, seen, sizeof seen, MSG_PEEK);
            wrong += waiting != (i + 1) * STEP || n != waiting || memcmp(seen, buffer, (size_t)n) != 0;
        }
        rw_meet();
    }
    rw_note("%d wrong", wrong);
    B_SIDE {
        int enough = STEPS * STEP - 50;
        T(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &enough, sizeof enough));
        struct pollfd wait = { fd, POLLIN, 0 };
        T(poll(&wait, 1, 1000));
        rw_bytes("all", seen, T(recv(fd, seen, sizeof seen, 0)));
    }
}

CASE(cork)
{
    int on = 1, off = 0;
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        T(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
        T(send(fd, "head", 4, 0));
        T(send(fd, "body", 4, MSG_MORE));
        T(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off));
        T(send(fd, "part", 4, MSG_MORE));
        T(send(fd, "last", 4, MSG_EOR));
    }
    rw_rest();
    B_SIDE rw_bytes("all", buffer, T(recv(fd, buffer, 16, MSG_WAITALL)));
}

RW_MAIN(ENTRY(partial_read), ENTRY(many_sends_one_read), ENTRY(every_size), ENTRY(short_messages_go_whole), ENTRY(partial_write),
    ENTRY(blocking_write_of_more_than_fits), ENTRY(peek), ENTRY(peek_waits_for_data_and_for_the_end), ENTRY(waitall),
    ENTRY(waitall_large), ENTRY(waitall_nonblocking), ENTRY(peek_waitall), ENTRY(dontwait), ENTRY(trunc_discards),
    ENTRY(trunc_finds_the_end), ENTRY(trunc_finds_a_reset), ENTRY(zero_length), ENTRY(fionread), ENTRY(siocoutq), ENTRY(peek_and_counts_across_carriers), ENTRY(cork))
