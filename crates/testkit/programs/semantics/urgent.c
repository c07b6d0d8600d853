/* Urgent data: the mark, the byte beside the stream, SIGURG. A carrier that cannot have it must give the connection back to TCP. */
#include "rw_test.h"

static char buffer[4096];
static volatile int urgent_signals;

static void on_sigurg(int number)
{
    (void)number;
    urgent_signals++;
}

static void send_with_urgent_byte(void)
{
    T(send(fd, "before", 6, 0));
    T(send(fd, "!", 1, MSG_OOB));
    T(send(fd, "after", 5, 0));
}

static void show_mark(void)
{
    int mark = -1;
    T(ioctl(fd, SIOCATMARK, &mark));
    rw_note("at the mark: %d", mark);
    T(sockatmark(fd));
}

static void echo(void)
{
    rw_meet();
    A_SIDE T(send(fd, "ping", 4, 0));
    B_SIDE {
        rw_bytes("got", buffer, (long)rw_recv_all(fd, buffer, 4));
        T(send(fd, "pong", 4, 0));
    }
    A_SIDE rw_bytes("got", buffer, (long)rw_recv_all(fd, buffer, 4));
}

CASE(byte_beside_the_stream)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE send_with_urgent_byte();
    rw_rest();
    B_SIDE {
        show_mark();
        rw_bytes("up to the mark", buffer, T(recv(fd, buffer, 100, 0)));
        show_mark();
        rw_bytes("urgent", buffer, T(recv(fd, buffer, 1, MSG_OOB)));
        T(recv(fd, buffer, 1, MSG_OOB));
        rw_bytes("beyond", buffer, T(recv(fd, buffer, 100, 0)));
        show_mark();
    }
    echo();
}

CASE(byte_in_the_stream)
{
    int on = 1;
    rw_warm(fd, RW_BLOCK);
    B_SIDE T(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
    rw_meet();
    A_SIDE send_with_urgent_byte();
    rw_rest();
    B_SIDE {
        T(recv(fd, buffer, 1, MSG_OOB));
        rw_bytes("up to the mark", buffer, T(recv(fd, buffer, 100, 0)));
        show_mark();
        rw_bytes("with the byte", buffer, T(recv(fd, buffer, 100, 0)));
    }
    echo();
}

/* The urgent byte is the last of three: the mark stands behind two that come after those of another carrier. */
static void send_with_late_mark(void)
{
    T(send(fd, "before", 6, 0));
    T(send(fd, "xy!", 3, MSG_OOB));
    T(send(fd, "after", 5, 0));
}

static void receive_up_to_and_beyond(int flags)
{
    rw_bytes("up to the mark", buffer, T(recv(fd, buffer, 100, flags)));
    show_mark();
    rw_bytes("beyond", buffer, T(recv(fd, buffer, 100, 0)));
    show_mark();
}

CASE(mark_behind_other_bytes)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE send_with_late_mark();
    rw_rest();
    B_SIDE receive_up_to_and_beyond(0);
    echo();
}

CASE(mark_behind_other_bytes_in_the_stream)
{
    int on = 1;
    rw_warm(fd, RW_BLOCK);
    B_SIDE T(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
    rw_meet();
    A_SIDE send_with_late_mark();
    rw_rest();
    B_SIDE receive_up_to_and_beyond(0);
    echo();
}

CASE(mark_behind_other_bytes_for_who_waits_for_all)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE send_with_late_mark();
    rw_rest();
    B_SIDE receive_up_to_and_beyond(MSG_WAITALL);
    echo();
}

/* The urgent byte alone: the stream has no more for the one who waits, but the mark. */
CASE(mark_that_comes_to_who_waits_for_all)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        T(send(fd, "before", 6, 0));
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        T(send(fd, "!", 1, MSG_OOB));
    }
    B_SIDE {
        rw_tell();
        rw_bytes("up to the mark", buffer, T(recv(fd, buffer, 100, MSG_WAITALL)));
        show_mark();
    }
    echo();
}

CASE(mark_behind_other_bytes_that_are_peeked)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE send_with_late_mark();
    rw_rest();
    B_SIDE {
        rw_bytes("peeked", buffer, T(recv(fd, buffer, 100, MSG_PEEK)));
        receive_up_to_and_beyond(0);
    }
    echo();
}

CASE(mark_right_behind_bytes_that_are_peeked)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE send_with_urgent_byte();
    rw_rest();
    B_SIDE {
        rw_bytes("peeked", buffer, T(recv(fd, buffer, 100, MSG_PEEK)));
        receive_up_to_and_beyond(0);
    }
    echo();
}

/* After the first, the sender is on TCP for good; its peer, which has counted all bytes, goes on offering another carrier. */
CASE(second_mark)
{
    int on = 1;
    B_SIDE T(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
    rw_warm(fd, RW_BLOCK);
    A_SIDE send_with_late_mark();
    rw_rest();
    B_SIDE receive_up_to_and_beyond(0);
    rw_meet();
    rw_warm(fd, RW_BLOCK);
    A_SIDE send_with_late_mark();
    rw_rest();
    B_SIDE receive_up_to_and_beyond(0);
    echo();
}

CASE(signal_and_readiness)
{
    struct sigaction action = { .sa_handler = on_sigurg, .sa_flags = SA_RESTART };
    rw_warm(fd, RW_POLL);
    B_SIDE {
        MUST(sigaction(SIGURG, &action, NULL));
        T(fcntl(fd, F_SETOWN, getpid()));
    }
    rw_rest();
    A_SIDE T(send(fd, "abc!", 4, MSG_OOB));
    rw_rest();
    B_SIDE {
        rw_note("%d signals", urgent_signals);
        struct pollfd look = { fd, POLLIN | POLLPRI, 0 };
        T(poll(&look, 1, 1000));
        rw_note("%s", rw_poll_names(look.revents));
        fd_set urgent;
        struct timeval none = { 0, 0 };
        FD_ZERO(&urgent);
        FD_SET(fd, &urgent);
        T(select(fd + 1, NULL, NULL, &urgent, &none));
        int set = (int)MUST(epoll_create1(0));
        struct epoll_event event = { .events = EPOLLPRI };
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
        T(epoll_wait(set, &event, 1, 1000));
        rw_note("%s", rw_poll_names((int)event.events));
        rw_bytes("urgent", buffer, T(recv(fd, buffer, 1, MSG_OOB)));
        rw_bytes("rest", buffer, T(recv(fd, buffer, 100, 0)));
        T(poll(&look, 1, 0));
    }
    echo();
}

/* Small records before and after, both ways, as telnet and ftp do it. */
CASE(between_much_other_traffic)
{
    enum { EACH = 60, SIZE = 50 };
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        char record[SIZE];
        for (int i = 0; i < 2 * EACH; i++) {
            rw_fill(record, SIZE, 1, (size_t)i * SIZE);
            rw_send_all(fd, record, SIZE);
            if (i == EACH)
                T(send(fd, "!", 1, MSG_OOB));
        }
    }
    B_SIDE {
        /* The reader does not ask for the urgent byte: the stream simply goes on without it. */
        rw_recv_stream(fd, 1, 2 * EACH * SIZE);
    }
    echo();
}

RW_MAIN(ENTRY(byte_beside_the_stream), ENTRY(byte_in_the_stream), ENTRY(mark_behind_other_bytes),
    ENTRY(mark_behind_other_bytes_in_the_stream), ENTRY(mark_behind_other_bytes_for_who_waits_for_all),
    ENTRY(mark_that_comes_to_who_waits_for_all),
    ENTRY(mark_behind_other_bytes_that_are_peeked), ENTRY(mark_right_behind_bytes_that_are_peeked), ENTRY(second_mark), ENTRY(signal_and_readiness),
    ENTRY(between_much_other_traffic))
