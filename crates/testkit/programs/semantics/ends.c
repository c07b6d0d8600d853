/* How a connection ends: half-close, end of file, reset, errors after the peer is gone, in the order TCP gives them. */
#include "rw_test.h"

#include <sys/sendfile.h>

static char buffer[1 << 16];
static volatile int pipe_signals;

static void on_sigpipe(int number)
{
    (void)number;
    pipe_signals++;
}

static void count_sigpipe(void)
{
    struct sigaction action = { .sa_handler = on_sigpipe };
    MUST(sigaction(SIGPIPE, &action, NULL));
}

static void show_events(void)
{
    struct pollfd look = { fd, POLLIN | POLLOUT | POLLRDHUP, 0 };
    poll(&look, 1, 0);
    rw_note("events: %s", rw_poll_names(look.revents));
}

static void show_error(void)
{
    int error = -1;
    socklen_t length = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    rw_note("SO_ERROR: %s", error ? rw_errno_name(error) : "none");
}

static void abort_connection(void)
{
    struct linger now = { 1, 0 };
    T(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    T(close(fd));
}

CASE(half_close)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        T(send(fd, "question", 8, 0));
        T(shutdown(fd, SHUT_WR));
    }
    rw_rest();
    B_SIDE {
        show_events();
        rw_bytes("got", buffer, T(recv(fd, buffer, 100, 0)));
        T(recv(fd, buffer, 100, 0));
        T(recv(fd, buffer, 100, MSG_DONTWAIT));
        show_events();
        /* Fewer than the ten segments that a young connection may send before the first acknowledgment: the end follows at once. */
        for (int i = 0; i < 8; i++)
            rw_send_all(fd, "answer ", 7);
        T(shutdown(fd, SHUT_WR));
    }
    rw_rest();
    A_SIDE {
        show_events();
        rw_bytes("got", buffer, T(recv(fd, buffer, 1000, MSG_WAITALL)));
        T(recv(fd, buffer, 100, 0));
        show_events();
    }
}

/* A large answer after the question's end: the one-way connection lives on and is as good as before. */
CASE(much_after_half_close)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE T(shutdown(fd, SHUT_WR));
    rw_rest();
    B_SIDE {
        T(recv(fd, buffer, 1, 0));
        rw_send_stream(fd, 1, 2 << 20);
        T(close(fd));
    }
    A_SIDE {
        rw_recv_stream(fd, 1, 2 << 20);
        T(recv(fd, buffer, 1, 0));
    }
}

CASE(end_after_all_was_read)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        rw_fill(buffer, 500, 2, 0);
        rw_send_all(fd, buffer, 500);
        T(close(fd));
    }
    rw_rest();
    B_SIDE {
        show_events();
        rw_bytes("got", buffer, T(recv(fd, buffer, 200, 0)));
        rw_bytes("got", buffer, T(recv(fd, buffer, 1000, 0)));
        T(recv(fd, buffer, 1000, 0));
        T(read(fd, buffer, 1000));
        show_events();
        show_error();
    }
}

/* Who reads without waiting, and has done so a moment before, finds the end as soon as the peer has closed. */
CASE(end_found_without_waiting)
{
    uint16_t port;
    int listener = rw_listen(&port), late = 0;
    for (int i = 0; i < 8; i++) {
        int client = rw_connect(port);
        int server = (int)MUST(accept(listener, NULL, NULL));
        rw_nodelay(client);
        rw_nodelay(server);
        rw_warm_pair(client, server);
        usleep(2000);
        late += recv(client, buffer, 1, MSG_DONTWAIT) != -1;
        MUST(close(server));
        late += recv(client, buffer, 1, MSG_DONTWAIT | (i % 2 ? MSG_PEEK : 0)) != 0;
        MUST(close(client));
    }
    rw_note("%d too late", late);
}

/* The same where the peer is a forked child that exits and closes nothing itself. */
CASE(exit_found_without_waiting)
{
    uint16_t port;
    int listener = rw_listen(&port), late = 0, word[2];
    for (int i = 0; i < 16; i++) {
        int client = rw_connect(port);
        int server = (int)MUST(accept(listener, NULL, NULL));
        rw_nodelay(client);
        rw_nodelay(server);
        rw_warm_pair(client, server);
        MUST(pipe(word));
        pid_t child = rw_fork();
        if (child == 0) {
            MUST(close(client));
            MUST(read(word[0], buffer, 1));
            exit(0);
        }
        MUST(close(server));
        usleep(2000);
        MUST(write(word[1], "", 1));
        ssize_t got;
        do
            got = recv(client, buffer, 1, MSG_DONTWAIT);
        while (got < 0 && waitpid(child, NULL, WNOHANG) != child);
        if (got < 0)
            late += recv(client, buffer, 1, MSG_DONTWAIT) != 0;
        else
            MUST(waitpid(child, NULL, 0));
        MUST(close(client));
        MUST(close(word[0]));
        MUST(close(word[1]));
    }
    rw_note("%d too late", late);
}

CASE(end_while_the_peer_waits)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        T(close(fd));
    }
    B_SIDE {
        rw_tell();
        T(recv(fd, buffer, 10, 0));
    }
}

CASE(send_after_own_shutdown)
{
    struct iovec part = { buffer, 10 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        FILE *file = tmpfile();
        fputs("content", file);
        fflush(file);
        off_t from = 0;
        count_sigpipe();
        T(shutdown(fd, SHUT_WR));
        T(send(fd, "x", 1, 0));
        rw_note("%d signals", pipe_signals);
        T(send(fd, "x", 1, MSG_NOSIGNAL));
        rw_note("%d signals", pipe_signals);
        T(write(fd, "x", 1));
        T(writev(fd, &part, 1));
        T(sendmsg(fd, &message, 0));
        T(sendto(fd, "x", 1, 0, NULL, 0));
        rw_note("%d signals", pipe_signals);
        T(sendfile(fd, fileno(file), &from, 5));
        T(send(fd, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL));
        show_error();
        T(shutdown(fd, SHUT_WR));
    }
    rw_rest();
    B_SIDE {
        T(recv(fd, buffer, 10, 0));
        T(send(fd, "y", 1, 0));
    }
    rw_rest();
    A_SIDE rw_bytes("got", buffer, T(recv(fd, buffer, 10, 0)));
}

/* The default action of SIGPIPE ends the process. */
CASE(sigpipe_kills)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        pid_t child = rw_fork();
        if (child == 0) {
            shutdown(fd, SHUT_WR);
            rw_note("before");
            send(fd, "x", 1, 0);
            rw_note("never here");
            _exit(0);
        }
        rw_reap(child);
    }
    rw_rest();
    B_SIDE T(recv(fd, buffer, 10, 0));
}

CASE(send_after_the_peer_closed)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE T(close(fd));
    rw_rest();
    A_SIDE {
        count_sigpipe();
        show_events();
        T(send(fd, "first", 5, 0));
        rw_sleep_ms(15);
        show_events();
        T(send(fd, "second", 6, 0));
        rw_note("%d signals", pipe_signals);
        T(send(fd, "third", 5, MSG_NOSIGNAL));
        rw_note("%d signals", pipe_signals);
        T(recv(fd, buffer, 10, 0));
        show_error();
        show_events();
    }
}

CASE(close_with_unread_data)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE T(send(fd, "never read", 10, 0));
    rw_rest();
    B_SIDE T(close(fd));
    rw_rest();
    A_SIDE {
        count_sigpipe();
        show_events();
        T(recv(fd, buffer, 10, 0));
        show_events();
        T(recv(fd, buffer, 10, 0));
        T(send(fd, "x", 1, 0));
        rw_note("%d signals", pipe_signals);
        show_error();
    }
}

CASE(close_with_partly_read_data)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE T(send(fd, "0123456789", 10, 0));
    rw_rest();
    B_SIDE {
        rw_bytes("got", buffer, T(recv(fd, buffer, 4, 0)));
        T(close(fd));
    }
    rw_rest();
    A_SIDE {
        show_error();
        T(recv(fd, buffer, 10, 0));
    }
}

/* The data that had arrived before the reset is still there. */
CASE(reset_after_data)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE T(send(fd, "unread", 6, 0));
    rw_rest();
    B_SIDE {
        T(send(fd, "last words", 10, 0));
        rw_sleep_ms(12);
        T(close(fd));
    }
    rw_rest();
    A_SIDE {
        show_events();
        rw_bytes("got", buffer, T(recv(fd, buffer, 4, 0)));
        rw_bytes("got", buffer, T(recv(fd, buffer, 100, 0)));
        T(recv(fd, buffer, 100, 0));
        T(recv(fd, buffer, 100, 0));
    }
}

/* What the kernel holds back until an acknowledgment comes (Nagle's algorithm) arrives, too: what is left unread brought one. */
CASE(last_words_before_a_close_with_unread_data)
{
    int off = 0;
    rw_warm_one_way(fd);
    A_SIDE MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &off, sizeof off));
    /* From now on B's acknowledgments come late, unless something that it sends carries them. */
    B_SIDE MUST(setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &off, sizeof off));
    rw_meet();
    A_SIDE T(send(fd, "last ", 5, 0));
    rw_meet();
    B_SIDE T(send(fd, "unread", 6, 0));
    rw_meet();
    A_SIDE {
        T(send(fd, "words", 5, 0));
        T(close(fd));
    }
    rw_rest();
    B_SIDE {
        rw_bytes("got", buffer, T(recv(fd, buffer, 100, 0)));
        T(recv(fd, buffer, 100, 0));
    }
}

/* An answer acknowledges the question, also where it is the first that does not go over TCP: the next question would wait (Nagle's algorithm). */
CASE(answers_acknowledge_questions)
{
    uint16_t port;
    int listener = rw_listen(&port), off = 0, late = 0;
    int client = rw_connect(port);
    /* It never waits, so what it reads stays on TCP. */
    int server = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
    for (int i = 0; i < 64; i++) {
        MUST(setsockopt(server, IPPROTO_TCP, TCP_QUICKACK, &off, sizeof off));
        MUST(send(client, "question", 8, 0));
        double sent = rw_now_ms();
        while (recv(server, buffer, 8, 0) != 8)
            rw_sleep_ms(1);
        /* Acknowledgments of their own come after 40 ms. */
        late += rw_now_ms() - sent > 30;
        MUST(send(server, "answer", 6, 0));
        MUST(recv(client, buffer, 6, MSG_WAITALL));
        usleep(300);
    }
    YES(late < 1);
}

CASE(close_with_unread_data_while_the_peer_waits)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        T(send(fd, "unread", 6, 0));
        rw_tell();
        T(recv(fd, buffer, 10, 0));
    }
    B_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(true));
        T(close(fd));
    }
}

CASE(reset_by_linger)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE abort_connection();
    rw_rest();
    B_SIDE {
        show_events();
        show_error();
        show_error();
        T(recv(fd, buffer, 10, 0));
        T(send(fd, "x", 1, MSG_NOSIGNAL));
        show_events();
    }
}

CASE(reset_while_the_peer_has_some_of_what_it_waits_for)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        T(send(fd, "some", 4, 0));
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        abort_connection();
    }
    B_SIDE {
        rw_tell();
        rw_bytes("got", buffer, T(recv(fd, buffer, 100, MSG_WAITALL)));
        T(recv(fd, buffer, 100, 0));
        T(recv(fd, buffer, 100, 0));
    }
}

CASE(reset_while_the_peer_waits)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        abort_connection();
    }
    B_SIDE {
        rw_tell();
        T(recv(fd, buffer, 10, 0));
        T(recv(fd, buffer, 10, 0));
    }
}

CASE(reset_while_the_peer_sends)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        char *large = calloc(1, 64 << 20);
        count_sigpipe();
        rw_tell();
        ssize_t n = send(fd, large, 64 << 20, 0);
        YES(n > 0 && n < 64 << 20);
        T(send(fd, "x", 1, 0));
        T(send(fd, "x", 1, 0));
        rw_note("%d signals", pipe_signals);
        free(large);
    }
    B_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(true));
        T(recv(fd, buffer, 1000, MSG_WAITALL));
        T(close(fd));
    }
}

CASE(linger_waits_for_delivery)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        struct linger some = { 1, 5 };
        rw_fill(buffer, 20000, 3, 0);
        T(setsockopt(fd, SOL_SOCKET, SO_LINGER, &some, sizeof some));
        rw_send_all(fd, buffer, 20000);
        double start = rw_now_ms();
        T(close(fd));
        YES(rw_now_ms() - start < 3000);
    }
    rw_rest();
    B_SIDE {
        rw_recv_stream(fd, 3, 20000);
        T(recv(fd, buffer, 10, 0));
    }
}

/* The sender is gone before the receiver looks at all: nothing may be lost with it. */
CASE(exit_right_after_sending)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        pid_t child = rw_fork();
        if (child == 0) {
            rw_send_stream(fd, 4, 50000);
            exit(0);
        }
        MUST(close(fd));
        rw_reap(child);
    }
    rw_rest();
    B_SIDE {
        rw_recv_stream(fd, 4, 50000);
        T(recv(fd, buffer, 10, 0));
    }
}

CASE(shutdown_in_all_orders)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        T(shutdown(fd, 7));
        T(shutdown(fd, SHUT_WR));
        T(shutdown(fd, SHUT_WR));
        T(shutdown(fd, SHUT_RDWR));
    }
    rw_rest();
    B_SIDE {
        T(recv(fd, buffer, 10, 0));
        T(shutdown(fd, SHUT_RDWR));
    }
    rw_rest();
    A_SIDE {
        T(recv(fd, buffer, 10, 0));
        T(shutdown(fd, SHUT_WR));
        T(shutdown(fd, SHUT_RD));
        show_events();
        T(close(fd));
        T(close(fd));
    }
    B_SIDE {
        T(shutdown(fd, SHUT_RDWR));
        T(send(fd, "x", 1, MSG_NOSIGNAL));
        show_events();
    }
}

CASE(shutdown_of_reading)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE T(send(fd, "before", 6, 0));
    rw_rest();
    B_SIDE {
        T(shutdown(fd, SHUT_RD));
        show_events();
        rw_bytes("got", buffer, T(recv(fd, buffer, 10, 0)));
        T(recv(fd, buffer, 10, 0));
    }
    rw_rest();
    A_SIDE T(send(fd, "after", 5, 0));
    rw_rest();
    B_SIDE {
        rw_bytes("got", buffer, T(recv(fd, buffer, 10, 0)));
        T(recv(fd, buffer, 10, 0));
        T(send(fd, "answer", 6, 0));
    }
    rw_rest();
    A_SIDE rw_bytes("got", buffer, T(recv(fd, buffer, 10, 0)));
}

/* Who has shut down reading still sends, whether the peer has read what came before or not. */
CASE(sending_after_shutdown_of_reading)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        rw_send_stream(fd, 4, 1000);
        T(shutdown(fd, SHUT_RD));
        for (int i = 0; i < 4; i++) {
            rw_sleep_ms(5);
            T(send(fd, "more", 4, 0));
        }
        show_error();
    }
    rw_rest();
    B_SIDE {
        rw_recv_stream(fd, 4, 1000);
        rw_expect(fd, 16);
        rw_say(fd, "answer");
    }
    rw_rest();
    A_SIDE {
        rw_expect(fd, 6);
        T(send(fd, "last", 4, 0));
    }
    rw_rest();
    B_SIDE rw_expect(fd, 4);
}

CASE(more_than_fits_after_shutdown_of_reading)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        T(shutdown(fd, SHUT_RD));
        rw_send_stream(fd, 5, 8 << 20);
        show_error();
        T(close(fd));
    }
    B_SIDE {
        rw_sleep_ms(30);
        rw_recv_stream(fd, 5, 8 << 20);
        T(recv(fd, buffer, 1, 0));
    }
}

/* The end that the kernel shows to who has shut down reading is not the peer's, who has not read everything yet. */
CASE(end_of_own_reading_beside_unread_bytes)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        rw_shared[0] = (long)rw_stuff_for_good(fd, 6);
        rw_tell();
    }
    A_SIDE {
        rw_hear();
        YES(rw_take_stream(fd, 6, (size_t)rw_shared[0]));
        rw_send_stream(fd, 7, 1000);
        T(shutdown(fd, SHUT_RD));
        T(recv(fd, buffer, 1, 0));
        rw_sleep_ms(5);
        T(send(fd, "more", 4, 0));
        T(recv(fd, buffer, 1, 0));
        show_error();
    }
    rw_rest();
    B_SIDE {
        rw_recv_stream(fd, 7, 1000);
        rw_expect(fd, 4);
    }
}

CASE(both_close_at_once)
{
    rw_warm(fd, RW_BLOCK);
    T(send(fd, "bye", 3, 0));
    rw_rest();
    T(shutdown(fd, SHUT_WR));
    rw_rest();
    rw_bytes("got", buffer, T(recv(fd, buffer, 10, 0)));
    T(recv(fd, buffer, 10, 0));
    show_events();
    rw_rest();
    T(close(fd));
}

static void kill_b(void)
{
    MUST(kill(rw_pid_of(false), SIGKILL));
    rw_sleep_ms(25);
}

static void observe_the_dead(void)
{
    count_sigpipe();
    show_events();
    rw_bytes("got", buffer, T(recv(fd, buffer, 100, 0)));
    T(recv(fd, buffer, 100, 0));
    T(send(fd, "first", 5, 0));
    rw_sleep_ms(15);
    T(send(fd, "second", 6, 0));
    T(recv(fd, buffer, 100, 0));
    rw_note("%d signals", pipe_signals);
    show_events();
}

CASE(killed_peer)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        T(send(fd, "last words", 10, 0));
        rw_tell();
        pause();
    }
    rw_hear();
    kill_b();
    observe_the_dead();
}

CASE(killed_peer_with_unread_data)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        T(send(fd, "last words", 10, 0));
        rw_tell();
        pause();
    }
    rw_hear();
    T(send(fd, "never read", 10, 0));
    kill_b();
    observe_the_dead();
}

CASE(killed_peer_after_its_half_close)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        T(send(fd, "last words", 10, 0));
        T(shutdown(fd, SHUT_WR));
        rw_tell();
        pause();
    }
    rw_hear();
    T(send(fd, "never read", 10, 0));
    kill_b();
    observe_the_dead();
}

/* The request was never read: the end that comes is that of the process alone, and no answer. */
static void send_a_request_and_end(void)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        rw_tell();
        pause();
    }
    rw_hear();
    T(send(fd, "request", 7, 0));
    T(shutdown(fd, SHUT_WR));
}

CASE(killed_peer_after_own_half_close)
{
    send_a_request_and_end();
    kill_b();
    T(recv(fd, buffer, 100, 0));
    T(recv(fd, buffer, 100, 0));
    show_events();
}

CASE(killed_peer_after_own_half_close_seen_by_poll)
{
    send_a_request_and_end();
    kill_b();
    show_events();
    show_error();
    T(recv(fd, buffer, 100, 0));
    show_events();
}

CASE(killed_peer_after_own_half_close_seen_by_epoll)
{
    struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP };
    int set = (int)MUST(epoll_create1(0));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    send_a_request_and_end();
    kill_b();
    T(epoll_wait(set, &event, 1, 1000));
    rw_note("events: %s", rw_poll_names((int)event.events));
    T(recv(fd, buffer, 100, 0));
    T(recv(fd, buffer, 100, 0));
}

CASE(killed_peer_while_waiting_for_it)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(true));
        rw_note("end of B");
        kill(getpid(), SIGKILL);
    }
    rw_tell();
    T(recv(fd, buffer, 10, 0));
}

CASE(killed_peer_while_sending_to_it)
{
    rw_warm(fd, RW_BLOCK);
    B_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(true));
        kill(getpid(), SIGKILL);
    }
    char *large = calloc(1, 64 << 20);
    signal(SIGPIPE, SIG_IGN);
    rw_tell();
    ssize_t n = send(fd, large, 64 << 20, 0);
    YES(n > 0 && n < 64 << 20);
    T(send(fd, "x", 1, 0));
    T(send(fd, "x", 1, 0));
    T(recv(fd, buffer, 10, 0));
}

RW_MAIN(ENTRY(half_close), ENTRY(much_after_half_close), ENTRY(end_after_all_was_read),
    ENTRY_WITH(end_found_without_waiting, RW_ALONE), ENTRY_WITH(exit_found_without_waiting, RW_ALONE),
    ENTRY(end_while_the_peer_waits), ENTRY(send_after_own_shutdown),
    ENTRY(sigpipe_kills), ENTRY(send_after_the_peer_closed), ENTRY(close_with_unread_data), ENTRY(close_with_partly_read_data),
    ENTRY(reset_after_data), ENTRY(last_words_before_a_close_with_unread_data), ENTRY_WITH(answers_acknowledge_questions, RW_ALONE),
    ENTRY(close_with_unread_data_while_the_peer_waits), ENTRY(reset_by_linger),
    ENTRY(reset_while_the_peer_has_some_of_what_it_waits_for), ENTRY(reset_while_the_peer_waits),
    ENTRY(reset_while_the_peer_sends), ENTRY(linger_waits_for_delivery),
    ENTRY(exit_right_after_sending), ENTRY(shutdown_in_all_orders), ENTRY(shutdown_of_reading),
    ENTRY(sending_after_shutdown_of_reading), ENTRY(more_than_fits_after_shutdown_of_reading),
    ENTRY(end_of_own_reading_beside_unread_bytes), ENTRY(both_close_at_once),
    ENTRY(killed_peer), ENTRY(killed_peer_with_unread_data), ENTRY(killed_peer_after_its_half_close),
    ENTRY(killed_peer_after_own_half_close), ENTRY(killed_peer_after_own_half_close_seen_by_poll),
    ENTRY(killed_peer_after_own_half_close_seen_by_epoll),
    ENTRY(killed_peer_while_waiting_for_it), ENTRY(killed_peer_while_sending_to_it))
