/* How connections begin: non-blocking connect and its errors, families, many at once, unusual pairs. */
#include "rw_test.h"

#include <netdb.h>

static char buffer[4096];

static struct sockaddr_in local(uint16_t port)
{
    return (struct sockaddr_in) { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static void show_error(int socket)
{
    int error = -1;
    socklen_t length = sizeof error;
    getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length);
    rw_note("SO_ERROR: %s", error ? rw_errno_name(error) : "none");
}

static void show_events(int socket, int timeout)
{
    struct pollfd look = { socket, POLLIN | POLLOUT | POLLRDHUP, 0 };
    rw_note("poll: %d", poll(&look, 1, timeout));
    rw_note("events: %s", rw_poll_names(look.revents));
}

/* A port on which nobody listens: bound by a socket that does not listen. */
static uint16_t closed_port(void)
{
    struct sockaddr_in address = local(0);
    socklen_t length = sizeof address;
    int holder = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(bind(holder, (struct sockaddr *)&address, sizeof address));
    MUST(getsockname(holder, (struct sockaddr *)&address, &length));
    return ntohs(address.sin_port);
}

/* One question and its answer on this side's end of a connection. */
static void talk(int socket, const char *question, const char *answer)
{
    A_SIDE {
        rw_bytes("asked", buffer, (long)rw_recv_all(socket, buffer, strlen(question)));
        rw_send_all(socket, answer, strlen(answer));
    }
    B_SIDE {
        rw_send_all(socket, question, strlen(question));
        rw_bytes("answered", buffer, (long)rw_recv_all(socket, buffer, strlen(answer)));
    }
    rw_meet();
}

CASE(nonblocking_connect)
{
    uint16_t port;
    A_SIDE {
        int listener = rw_listen(&port);
        rw_shared[0] = port;
        rw_meet();
        rw_meet();
        fd = (int)T(accept(listener, NULL, NULL));
    }
    B_SIDE {
        rw_meet();
        struct sockaddr_in to = local((uint16_t)rw_shared[0]);
        fd = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
        T(send(fd, "early", 5, MSG_NOSIGNAL));
        T(recv(fd, buffer, 10, 0));
        show_events(fd, 0);
        T(connect(fd, (struct sockaddr *)&to, sizeof to));
        show_events(fd, 3000);
        show_error(fd);
        T(connect(fd, (struct sockaddr *)&to, sizeof to));
        T(connect(fd, (struct sockaddr *)&to, sizeof to));
        rw_meet();
    }
    rw_nodelay(fd);
    rw_warm(fd, RW_POLL);
    talk(fd, "question", "answer");
}

CASE(refused)
{
    struct sockaddr_in to = local(closed_port());
    int blocking = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
    T(connect(blocking, (struct sockaddr *)&to, sizeof to));
    T(send(blocking, "x", 1, MSG_NOSIGNAL));
    T(recv(blocking, buffer, 1, 0));
    show_events(blocking, 0);
    int other = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    T(connect(other, (struct sockaddr *)&to, sizeof to));
    show_events(other, 3000);
    show_error(other);
    show_error(other);
    show_events(other, 0);
}

/* A socket that failed to connect is used again, for a connection that works. */
CASE(refused_then_accepted)
{
    uint16_t port;
    A_SIDE {
        int listener = rw_listen(&port);
        rw_shared[0] = port;
        rw_meet();
        fd = (int)MUST(accept(listener, NULL, NULL));
    }
    B_SIDE {
        struct sockaddr_in to = local(closed_port());
        fd = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
        T(connect(fd, (struct sockaddr *)&to, sizeof to));
        rw_meet();
        to = local((uint16_t)rw_shared[0]);
        T(connect(fd, (struct sockaddr *)&to, sizeof to));
    }
    rw_nodelay(fd);
    rw_warm(fd, RW_BLOCK);
    talk(fd, "question", "answer");
}

CASE(unconnected)
{
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    int lone = (int)MUST(socket(AF_INET, SOCK_STREAM, 0)), listener = -1;
    uint16_t port;
    signal(SIGPIPE, SIG_IGN);
    T(recv(lone, buffer, 1, 0));
    T(send(lone, "x", 1, 0));
    T(write(lone, "x", 1));
    T(shutdown(lone, SHUT_WR));
    T(getpeername(lone, (struct sockaddr *)&address, &length));
    T(accept(lone, NULL, NULL));
    int waiting = -1;
    T(ioctl(lone, FIONREAD, &waiting));
    listener = rw_listen(&port);
    T(recv(listener, buffer, 1, 0));
    T(send(listener, "x", 1, 0));
    T(ioctl(listener, FIONREAD, &waiting));
    show_events(listener, 0);
}

/* Listener and client of IPv6, and an IPv4 client at a listener of both families: the names are written in two ways. */
static void over_family(int listener_family, int client_family)
{
    struct sockaddr_in6 address6 = { .sin6_family = AF_INET6 };
    socklen_t length = sizeof address6;
    int off = 0;
    A_SIDE {
        int listener = (int)MUST(socket(listener_family, SOCK_STREAM, 0));
        MUST(setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off));
        MUST(bind(listener, (struct sockaddr *)&address6, sizeof address6));
        MUST(listen(listener, 5));
        MUST(getsockname(listener, (struct sockaddr *)&address6, &length));
        rw_shared[0] = ntohs(address6.sin6_port);
        rw_meet();
        length = sizeof address6;
        fd = (int)MUST(accept(listener, (struct sockaddr *)&address6, &length));
        char text[INET6_ADDRSTRLEN];
        rw_note("from %s", inet_ntop(AF_INET6, &address6.sin6_addr, text, sizeof text));
    }
    B_SIDE {
        rw_meet();
        if (client_family == AF_INET) {
            fd = rw_connect((uint16_t)rw_shared[0]);
        } else {
            address6.sin6_port = htons((uint16_t)rw_shared[0]);
            address6.sin6_addr = in6addr_loopback;
            fd = (int)MUST(socket(AF_INET6, SOCK_STREAM, 0));
            MUST(connect(fd, (struct sockaddr *)&address6, sizeof address6));
        }
    }
    rw_nodelay(fd);
    rw_warm(fd, RW_BLOCK);
    talk(fd, "question", "answer");
}

CASE(ipv6)
{
    over_family(AF_INET6, AF_INET6);
}

CASE(ipv4_mapped)
{
    over_family(AF_INET6, AF_INET);
}

CASE(many_short_connections)
{
    enum { ROUNDS = 60 };
    int wrong = 0;
    uint16_t port;
    int listener = -1;
    A_SIDE {
        listener = rw_listen(&port);
        rw_shared[0] = port;
    }
    rw_meet();
    for (int i = 0; i < ROUNDS; i++) {
        char mine[16];
        int size = snprintf(mine, sizeof mine, "message %4d", i);
        A_SIDE {
            int peer = (int)MUST(accept(listener, NULL, NULL));
            wrong += rw_recv_all(peer, buffer, (size_t)size) != (size_t)size || memcmp(buffer, mine, (size_t)size) != 0;
            rw_send_all(peer, buffer, (size_t)size);
            wrong += close(peer) != 0;
        }
        B_SIDE {
            int peer = rw_connect((uint16_t)rw_shared[0]);
            rw_send_all(peer, mine, (size_t)size);
            wrong += rw_recv_all(peer, buffer, (size_t)size + 1) != (size_t)size || memcmp(buffer, mine, (size_t)size) != 0;
            wrong += close(peer) != 0;
        }
    }
    rw_note("%d wrong", wrong);
}

CASE(many_connections_at_once)
{
    enum { CONNECTIONS = 24 };
    int all[CONNECTIONS], wrong = 0;
    for (int i = 0; i < CONNECTIONS; i++) {
        all[i] = rw_another();
        rw_nodelay(all[i]);
    }
    for (int round = 0; round < 40; round++) {
        for (int i = 0; i < CONNECTIONS; i++) {
            char text[24], got[24];
            int size = snprintf(text, sizeof text, "%d on %d", round, i);
            B_SIDE rw_send_all(all[i], text, (size_t)size);
            wrong += rw_recv_all(all[i], got, (size_t)size) != (size_t)size || memcmp(got, text, (size_t)size) != 0;
            A_SIDE rw_send_all(all[i], got, (size_t)size);
        }
    }
    for (int i = 0; i < CONNECTIONS; i++)
        wrong += close(all[i]) != 0;
    rw_note("%d wrong", wrong);
}

/* A socket connected to itself: what it sends is what it receives. */
CASE(self_connect)
{
    struct sockaddr_in address = local(0);
    socklen_t length = sizeof address;
    fd = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(bind(fd, (struct sockaddr *)&address, sizeof address));
    MUST(getsockname(fd, (struct sockaddr *)&address, &length));
    T(connect(fd, (struct sockaddr *)&address, sizeof address));
    rw_nodelay(fd);
    int wrong = 0;
    for (int i = 0; i < 60; i++) {
        char text[24];
        int size = snprintf(text, sizeof text, "to myself %d", i);
        wrong += send(fd, text, (size_t)size, 0) != size;
        wrong += recv(fd, buffer, sizeof buffer, 0) != size || memcmp(buffer, text, (size_t)size) != 0;
    }
    rw_note("%d wrong", wrong);
    T(shutdown(fd, SHUT_WR));
    T(recv(fd, buffer, 10, 0));
}

CASE(both_ends_in_one_process)
{
    uint16_t port;
    int listener = rw_listen(&port);
    int client = rw_connect(port);
    int server = (int)MUST(accept(listener, NULL, NULL));
    rw_nodelay(client);
    rw_nodelay(server);
    rw_warm_pair(client, server);
    T(send(client, "to the server", 13, 0));
    T(send(server, "to the client", 13, 0));
    rw_bytes("server got", buffer, T(recv(server, buffer, 100, 0)));
    rw_bytes("client got", buffer, T(recv(client, buffer, 100, 0)));
    T(close(server));
    T(recv(client, buffer, 100, 0));
}

/* Four times the same pair of addresses, ports included: no byte of one connection may show up in the next. */
CASE(same_addresses_again)
{
    uint16_t port, own;
    int listener = -1, on = 1;
    A_SIDE {
        listener = rw_listen(&port);
        rw_shared[0] = port;
    }
    B_SIDE {
        own = closed_port(); /* its holder closes nothing: SO_REUSEADDR lets us bind beside it */
        rw_shared[1] = own;
    }
    rw_meet();
    for (int i = 0; i < 4; i++) {
        A_SIDE fd = (int)MUST(accept(listener, NULL, NULL));
        B_SIDE {
            struct sockaddr_in from = local((uint16_t)rw_shared[1]), to = local((uint16_t)rw_shared[0]);
            from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
            fd = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
            MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
            MUST(bind(fd, (struct sockaddr *)&from, sizeof from));
            MUST(connect(fd, (struct sockaddr *)&to, sizeof to));
        }
        rw_nodelay(fd);
        rw_warm(fd, RW_BLOCK);
        char text[24];
        snprintf(text, sizeof text, "connection %d", i);
        talk(fd, text, "yes");
        B_SIDE T(send(fd, "left unread", 11, 0));
        rw_rest();
        struct linger now = { 1, 0 };
        B_SIDE MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now));
        B_SIDE T(close(fd));
        rw_rest();
        A_SIDE T(close(fd));
    }
}

/* connect with AF_UNSPEC cuts a connection; the socket can then be connected elsewhere. */
CASE(disconnect_and_connect_again)
{
    struct sockaddr unspecified = { .sa_family = AF_UNSPEC };
    rw_warm(fd, RW_BLOCK);
    talk(fd, "one", "two");
    B_SIDE {
        T(connect(fd, &unspecified, sizeof unspecified));
        T(recv(fd, buffer, 10, 0));
        T(send(fd, "x", 1, MSG_NOSIGNAL));
    }
    rw_rest();
    A_SIDE {
        T(recv(fd, buffer, 10, 0));
        uint16_t port;
        int listener = rw_listen(&port);
        rw_shared[0] = port;
        rw_meet();
        T(close(fd));
        fd = (int)MUST(accept(listener, NULL, NULL));
    }
    B_SIDE {
        rw_meet();
        struct sockaddr_in to = local((uint16_t)rw_shared[0]);
        T(connect(fd, (struct sockaddr *)&to, sizeof to));
    }
    rw_nodelay(fd);
    rw_warm(fd, RW_BLOCK);
    talk(fd, "three", "four");
}

/* The first bytes travel with the connecting call. */
CASE(send_that_connects)
{
    uint16_t port;
    A_SIDE {
        int listener = rw_listen(&port);
        rw_shared[0] = port;
        rw_meet();
        fd = (int)MUST(accept(listener, NULL, NULL));
        rw_bytes("early", buffer, (long)rw_recv_all(fd, buffer, 5));
    }
    B_SIDE {
        rw_meet();
        struct sockaddr_in to = local((uint16_t)rw_shared[0]);
        fd = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
        T(sendto(fd, "early", 5, MSG_FASTOPEN, (struct sockaddr *)&to, sizeof to));
    }
    rw_nodelay(fd);
    rw_warm(fd, RW_BLOCK);
    talk(fd, "question", "answer");
}

RW_MAIN(ENTRY_WITH(nonblocking_connect, RW_ALONE), ENTRY_WITH(refused, RW_ALONE), ENTRY_WITH(refused_then_accepted, RW_ALONE),
    ENTRY_WITH(unconnected, RW_ALONE), ENTRY_WITH(ipv6, RW_ALONE), ENTRY_WITH(ipv4_mapped, RW_ALONE),
    ENTRY_WITH(many_short_connections, RW_ALONE), ENTRY_WITH(many_connections_at_once, RW_ALONE), ENTRY_WITH(self_connect, RW_ALONE),
    ENTRY_WITH(both_ends_in_one_process, RW_ALONE), ENTRY_WITH(same_addresses_again, RW_ALONE), ENTRY(disconnect_and_connect_again),
    ENTRY_WITH(send_that_connects, RW_ALONE))
