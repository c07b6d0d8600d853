/* What cdp.h promises, inside one process; the test program of crates/capi/tests/c.rs. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cdp.h>
#include <ropeway.h>

#include "check.h"

#define FAILS(call, number) CHECK((call) < 0 && errno == (number) && strlen(ropeway_error()) > 4)

static const char *interfaces[] = {"lo"};

/* Free on this machine, as far as the test can know. */
static struct cdp_sockaddr server_at(int port)
{
	struct cdp_sockaddr at = {1, port};

	return at;
}

static int listener(int *port)
{
	int s = cdp_socket();

	CHECK(s >= 0);
	for (*port = 20000 + (int)(getpid() % 20000); *port < 65000; ++*port) {
		struct cdp_sockaddr at = server_at(*port);

		if (cdp_bind(s, &at) == 0 && cdp_listen(s, 4) == 0)
			return s;
	}
	CHECK(!"no port is free");
	return -1;
}

/* Whether it was this one that succeeded. */
static void *one_of_several(void *arg)
{
	int failed = cdp_init(1, interfaces, 1, 0) == 0 ? 0 : errno;

	CHECK(failed == 0 || failed == EALREADY);
	return failed ? arg : interfaces;
}

static void before_init(void)
{
	const char *strange[] = {"no-such-interface"}, *dots[] = {"."}, *twice[] = {"lo", "lo"};

	FAILS(cdp_socket(), ENETDOWN);
	FAILS(cdp_send(1, "x", 1), ENETDOWN);
	/* To forward takes two networks, and somebody who says what they are. */
	CHECK(cdp_init(1, interfaces, 1, 1) != 0 && errno == EINVAL && strstr(ropeway_error(), "2 interfaces"));
	CHECK(cdp_init(1, twice, 2, 1) != 0 && errno == EINVAL);
	CHECK(strstr(ropeway_error(), getenv("CDP_OF_CLUSTER") ? "is no gateway" : "ROPEWAY_CLUSTER"));
	/* What fails changes nothing: below this is node 1. */
	CHECK(cdp_init(2, twice, 2, 1) != 0 && errno == EINVAL);
	CHECK(cdp_init(1, interfaces, 0, 0) != 0 && errno == EINVAL);
	CHECK(cdp_init(1, interfaces, -1, 0) != 0 && errno == EINVAL);
	CHECK(cdp_init(1, NULL, 1, 0) != 0 && errno == EFAULT);
	CHECK(cdp_init(1, strange, 1, 0) != 0 && errno == ENODEV);
	CHECK(cdp_init(1, dots, 1, 0) != 0 && errno == ENODEV);
	CHECK(cdp_init(77, interfaces, 1, 0) != 0 && errno == EHOSTUNREACH);
	{
		pthread_t threads[4];
		void *result;
		int t, succeeded = 0;

		for (t = 0; t < 4; t++)
			CHECK(pthread_create(&threads[t], NULL, one_of_several, NULL) == 0);
		for (t = 0; t < 4; t++) {
			CHECK(pthread_join(threads[t], &result) == 0);
			succeeded += result != NULL;
		}
		CHECK(succeeded == 1);
	}
	CHECK(cdp_init(1, interfaces, 1, 0) != 0 && errno == EALREADY);
}

static void misuse(void)
{
	struct cdp_sockaddr elsewhere = {2, 5000}, nowhere = {99, 5000}, zero = {1, 0};
	char byte;
	int s;

	FAILS(cdp_bind(7, &elsewhere), EBADF);
	FAILS(cdp_listen(7, 1), EBADF);
	FAILS(cdp_accept(7, NULL, 1), EBADF);
	FAILS(cdp_connect(7, &elsewhere), EBADF);
	FAILS(cdp_send(7, &byte, 1), EBADF);
	FAILS(cdp_recv(7, &byte, 1, 1), EBADF);
	FAILS(cdp_close(7), EBADF);
	CHECK((s = cdp_socket()) >= 0);
	FAILS(cdp_bind(s, NULL), EFAULT);
	FAILS(cdp_bind(s, &elsewhere), EADDRNOTAVAIL);
	FAILS(cdp_bind(s, &zero), EINVAL);
	FAILS(cdp_connect(s, NULL), EFAULT);
	FAILS(cdp_connect(s, &nowhere), EHOSTUNREACH);
	FAILS(cdp_send(s, &byte, 1), ENOTCONN);
	FAILS(cdp_recv(s, &byte, 1, 0), ENOTCONN);
	FAILS(cdp_accept(s, NULL, 1), EINVAL);
	CHECK(cdp_close(s) == 0);
	FAILS(cdp_close(s), EBADF);
}

static void conversation(void)
{
	struct cdp_sockaddr from = {0, 0}, at, taken;
	char big[5000], buffer[5000];
	int port, l = listener(&port), client, server, other;

	at = server_at(port);
	CHECK((other = cdp_socket()) >= 0);
	taken = at;
	FAILS(cdp_bind(other, &taken), EADDRINUSE);
	FAILS(cdp_accept(l, &from, 1), EAGAIN);
	CHECK((client = cdp_socket()) >= 0);
	CHECK(cdp_connect(client, &at) == 0);
	FAILS(cdp_connect(client, &at), EISCONN);
	CHECK((server = cdp_accept(l, &from, 0)) >= 0 && server != l);
	CHECK(from.node == 1 && from.port >= 49152);
	/* Two connections of a node differ by their ports. */
	CHECK(cdp_connect(other, &at) == 0);
	{
		struct cdp_sockaddr second;
		int s = cdp_accept(l, &second, 0);

		CHECK(s >= 0 && second.node == 1 && second.port != from.port);
		CHECK(cdp_close(s) == 0 && cdp_close(other) == 0);
	}
	/* What one call sends the other receives, whatever its length. */
	memset(big, 'b', sizeof big);
	FAILS(cdp_recv(server, buffer, sizeof buffer, 1), EAGAIN);
	CHECK(cdp_send(client, "one", 3) == 3 && cdp_send(client, "", 0) == 0 && cdp_send(client, big, sizeof big) == sizeof big);
	CHECK(cdp_recv(server, buffer, sizeof buffer, 0) == 3 && memcmp(buffer, "one", 3) == 0);
	CHECK(cdp_rcv(server, buffer, sizeof buffer, 0) == 0);
	FAILS(cdp_recv(server, buffer, 10, 0), EMSGSIZE);
	CHECK(cdp_recv(server, buffer, sizeof buffer, 0) == sizeof big && memcmp(big, buffer, sizeof big) == 0);
	CHECK(cdp_send(server, "back", 4) == 4 && cdp_recv(client, buffer, sizeof buffer, 0) == 4);
	/* A zombie: the peer has closed, and with something unread; what it sent before is still here. */
	CHECK(cdp_send(server, "never read", 10) == 10);
	CHECK(cdp_send(client, "left", 4) == 4 && cdp_send(client, "over", 4) == 4);
	CHECK(cdp_close(client) == 0);
	usleep(50000);
	CHECK(cdp_recv(server, buffer, sizeof buffer, 0) == 4 && memcmp(buffer, "left", 4) == 0);
	CHECK(cdp_recv(server, buffer, sizeof buffer, 1) == 4 && memcmp(buffer, "over", 4) == 0);
	FAILS(cdp_recv(server, buffer, sizeof buffer, 0), ENOTCONN);
	FAILS(cdp_recv(server, buffer, sizeof buffer, 1), ENOTCONN);
	FAILS(cdp_send(server, "x", 1), EPIPE);
	CHECK(cdp_close(server) == 0);
	CHECK(cdp_close(l) == 0);
	CHECK((client = cdp_socket()) >= 0);
	FAILS(cdp_connect(client, &at), ECONNREFUSED);
	CHECK(cdp_close(client) == 0);
}

static void backlog(void)
{
	struct cdp_sockaddr at;
	int port, l = listener(&port), clients[5], i;

	at = server_at(port);
	for (i = 0; i < 5; i++)
		CHECK((clients[i] = cdp_socket()) >= 0);
	for (i = 0; i < 4; i++)
		CHECK(cdp_connect(clients[i], &at) == 0);
	FAILS(cdp_connect(clients[4], &at), ECONNREFUSED);
	CHECK((i = cdp_accept(l, NULL, 0)) >= 0 && cdp_close(i) == 0);
	/* The same socket may try again. */
	CHECK(cdp_connect(clients[4], &at) == 0);
	for (i = 0; i < 5; i++)
		CHECK(cdp_close(clients[i]) == 0);
	CHECK(cdp_close(l) == 0);
}

static void *receive(void *argument)
{
	char byte;

	return (void *)(long)(cdp_recv(*(int *)argument, &byte, 1, 0) < 0 ? -errno : 1);
}

static void closing_wakes(void)
{
	struct cdp_sockaddr at;
	void *result = NULL;
	pthread_t thread;
	int port, l = listener(&port), client = cdp_socket(), server;

	at = server_at(port);
	CHECK(cdp_connect(client, &at) == 0 && (server = cdp_accept(l, NULL, 0)) >= 0);
	CHECK(pthread_create(&thread, NULL, receive, &client) == 0);
	usleep(50000);
	CHECK(cdp_close(client) == 0);
	CHECK(pthread_join(thread, &result) == 0 && (long)result == -EBADF);
	CHECK(cdp_close(server) == 0 && cdp_close(l) == 0);
}

static void *accept_nobody(void *argument)
{
	FAILS(cdp_accept(*(int *)argument, NULL, 0), EBADF);
	return NULL;
}

/* Whether a thread that was waiting with it has woken up yet or not. */
static void closing_frees_the_port(void)
{
	int port, l = listener(&port), round;
	struct cdp_sockaddr at = server_at(port);

	for (round = 0; round < 300; round++) {
		int waited_with = l;
		pthread_t thread;

		CHECK(pthread_create(&thread, NULL, accept_nobody, &waited_with) == 0);
		usleep(round % 2 ? 200 : 2000);
		CHECK(cdp_close(l) == 0);
		CHECK((l = cdp_socket()) >= 0 && cdp_bind(l, &at) == 0 && cdp_listen(l, 4) == 0);
		CHECK(pthread_join(thread, NULL) == 0);
	}
	CHECK(cdp_close(l) == 0);
}

#define LONG_BYTES (32 << 20)
#define REPLY_BYTES (512 << 10)

static void *zeros(size_t bytes)
{
	void *memory = calloc(bytes, 1);

	CHECK(memory != NULL);
	return memory;
}

/* One that sends a long datagram, and then reads what the other end has sent. */
struct long_sender {
	int s, has_begun;
	pthread_t thread;
};

static void *send_long(void *argument)
{
	struct long_sender *sender = argument;
	char *bytes = zeros(LONG_BYTES);
	int sent, number;

	__atomic_store_n(&sender->has_begun, 1, __ATOMIC_RELEASE);
	/* All of it may have gone by then, on a machine that is quick. */
	sent = cdp_send(sender->s, bytes, LONG_BYTES);
	number = errno;
	CHECK(sent == LONG_BYTES || (sent < 0 && number == EPIPE));
	CHECK(cdp_recv(sender->s, bytes, LONG_BYTES, 0) == REPLY_BYTES && bytes[0] == 'r' && bytes[REPLY_BYTES - 1] == 'r');
	FAILS(cdp_recv(sender->s, bytes, LONG_BYTES, 0), ENOTCONN);
	free(bytes);
	return NULL;
}

static void *receive_long(void *argument)
{
	char *bytes = zeros(LONG_BYTES);
	int count = cdp_recv(*(int *)argument, bytes, LONG_BYTES, 0), number = errno;

	CHECK(count == LONG_BYTES || (count < 0 && number == EBADF));
	free(bytes);
	return NULL;
}

/* What was sent before a close arrives, though a datagram from the other end is only half here, or half in another thread's hands. */
static void closing_amid_a_datagram(void)
{
	char *reply = memset(zeros(REPLY_BYTES), 'r', REPLY_BYTES);
	int port, l = listener(&port), round;
	struct cdp_sockaddr at = server_at(port);

	for (round = 0; round < 6; round++) {
		struct long_sender sender = {cdp_socket(), 0, 0};
		pthread_t reader;
		int s;

		CHECK(cdp_connect(sender.s, &at) == 0 && (s = cdp_accept(l, NULL, 0)) >= 0);
		if (round % 2)
			CHECK(pthread_create(&reader, NULL, receive_long, &s) == 0);
		CHECK(pthread_create(&sender.thread, NULL, send_long, &sender) == 0);
		while (!__atomic_load_n(&sender.has_begun, __ATOMIC_ACQUIRE))
			usleep(100);
		usleep(5000);
		CHECK(cdp_send(s, reply, REPLY_BYTES) == REPLY_BYTES);
		CHECK(cdp_close(s) == 0);
		CHECK(pthread_join(sender.thread, NULL) == 0);
		if (round % 2)
			CHECK(pthread_join(reader, NULL) == 0);
		CHECK(cdp_close(sender.s) == 0);
	}
	free(reply);
	CHECK(cdp_close(l) == 0);
}

/* Another node, in a process of its own. */
static void between_nodes(void)
{
	struct cdp_sockaddr from = {0, 0}, at;
	char buffer[100];
	int port, l = listener(&port), s, status = -1;
	pid_t child = fork();

	at = server_at(port);
	CHECK(child >= 0);
	if (child == 0) {
		/* Nobody else has that of node 1. */
		struct cdp_sockaddr own = {2, port};

		FAILS(cdp_socket(), ENETDOWN);
		CHECK(cdp_init(2, interfaces, 1, 0) == 0);
		CHECK((s = cdp_socket()) >= 0 && cdp_bind(s, &own) == 0);
		/* What was its parent's is not its own. */
		FAILS(cdp_close(l), EBADF);
		CHECK(cdp_connect(s, &at) == 0);
		CHECK(cdp_send(s, "from node 2", 11) == 11);
		exit(0);
	}
	CHECK((s = cdp_accept(l, &from, 0)) >= 0 && from.node == 2 && from.port == port);
	CHECK(cdp_recv(s, buffer, sizeof buffer, 0) == 11 && memcmp(buffer, "from node 2", 11) == 0);
	FAILS(cdp_recv(s, buffer, sizeof buffer, 0), ENOTCONN);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(cdp_close(s) == 0 && cdp_close(l) == 0);
}

#define PIECES 40
#define PIECE_BYTES (100 << 10)

/* What was sent before the end of a process arrives, though it has not read everything, and has closed nothing. */
static void exit_with_something_unread(void)
{
	char *piece = zeros(PIECE_BYTES);
	int port, l = listener(&port), s, i, status = -1;
	struct cdp_sockaddr at = server_at(port);
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		CHECK(cdp_init(2, interfaces, 1, 0) == 0 && (s = cdp_socket()) >= 0 && cdp_connect(s, &at) == 0);
		/* It is here, and stays. */
		FAILS(cdp_recv(s, piece, 0, 0), EMSGSIZE);
		for (i = 0; i < PIECES; i++)
			CHECK(cdp_send(s, memset(piece, i, PIECE_BYTES), PIECE_BYTES) == PIECE_BYTES);
		exit(0);
	}
	CHECK((s = cdp_accept(l, NULL, 0)) >= 0 && cdp_send(s, "never read", 10) == 10);
	/* Until the other end has said all, as far as there is room for it, and is about to go. */
	usleep(200000);
	for (i = 0; i < PIECES; i++)
		CHECK(cdp_recv(s, piece, PIECE_BYTES, 0) == PIECE_BYTES && piece[0] == i && piece[PIECE_BYTES - 1] == i);
	FAILS(cdp_recv(s, piece, PIECE_BYTES, 0), ENOTCONN);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(cdp_close(s) == 0 && cdp_close(l) == 0);
	free(piece);
}

int main(void)
{
	before_init();
	/* Its handles are the first of this process, as those of its child are. */
	between_nodes();
	misuse();
	conversation();
	backlog();
	closing_wakes();
	closing_frees_the_port();
	if (!getenv("ROPEWAY_CDP_LIMIT")) {
		closing_amid_a_datagram();
		exit_with_something_unread();
	}
	if (getenv("ROPEWAY_CDP_LIMIT")) {
		struct cdp_sockaddr at;
		char big[1473];
		int port, l = listener(&port), s = cdp_socket();

		at = server_at(port);
		CHECK(cdp_connect(s, &at) == 0);
		memset(big, 0, sizeof big);
		FAILS(cdp_send(s, big, 1473), EMSGSIZE);
		CHECK(cdp_send(s, big, 1472) == 1472);
		CHECK(cdp_close(s) == 0 && cdp_close(l) == 0);
	}
	printf("all nine calls keep their word\n");
	return 0;
}
