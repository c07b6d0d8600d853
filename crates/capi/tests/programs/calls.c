/* What ropeway.h promises, call by call, inside one process; the test program of crates/capi/tests/c.rs. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <ropeway.h>

#include "check.h"

/* The call fails with this number, and has something to say about it. */
#define FAILS(call, number) CHECK((call) == -1 && errno == (number) && strlen(ropeway_error()) > 4)

static struct sockaddr *as_any(void *address)
{
	return address;
}

static struct sockaddr_in loopback(int port)
{
	struct sockaddr_in address;

	memset(&address, 0, sizeof address);
	address.sin_family = AF_INET;
	address.sin_port = htons((uint16_t)port);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return address;
}

static int listener(int type, struct sockaddr_in *at)
{
	socklen_t length = sizeof *at;
	int s = ropeway_socket(type);

	*at = loopback(0);
	CHECK(s > 0);
	CHECK(ropeway_bind(s, as_any(at), sizeof *at) == 0);
	CHECK(ropeway_listen(s, 16) == 0);
	CHECK(ropeway_getsockname(s, as_any(at), &length) == 0);
	CHECK(length == sizeof *at && ntohs(at->sin_port) != 0);
	return s;
}

static void pair(int type, int *client, int *server)
{
	struct sockaddr_in at;
	int l = listener(type, &at);

	CHECK((*client = ropeway_socket(type)) > 0);
	CHECK(ropeway_connect(*client, as_any(&at), sizeof at) == 0);
	CHECK((*server = ropeway_accept(l, NULL, NULL)) > 0);
	CHECK(ropeway_close(l) == 0);
}

static void misuse(void)
{
	struct sockaddr_in at = loopback(7), six = loopback(7);
	char byte = 0, crooked[sizeof at + 1];
	int strange[] = {-1, 0, 1, 3, 1 << 30, 0x7fffffff}, s, l, one = 1, off = 0;
	socklen_t length = sizeof at;
	size_t i;

	for (i = 0; i < sizeof strange / sizeof *strange; i++) {
		int h = strange[i];

		FAILS(ropeway_bind(h, as_any(&at), sizeof at), EBADF);
		FAILS(ropeway_listen(h, 1), EBADF);
		FAILS(ropeway_accept(h, NULL, NULL), EBADF);
		FAILS(ropeway_connect(h, as_any(&at), sizeof at), EBADF);
		FAILS(ropeway_send(h, &byte, 1, 0), EBADF);
		FAILS(ropeway_recv(h, &byte, 1, 0), EBADF);
		FAILS(ropeway_shutdown(h, SHUT_RDWR), EBADF);
		FAILS(ropeway_drain(h, 0), EBADF);
		FAILS(ropeway_close(h), EBADF);
		FAILS(ropeway_getsockname(h, as_any(&at), &length), EBADF);
		FAILS(ropeway_getpeername(h, as_any(&at), &length), EBADF);
		FAILS(ropeway_getsockopt(h, SOL_SOCKET, SO_ERROR, &one, &length), EBADF);
		FAILS(ropeway_setsockopt(h, SOL_SOCKET, SO_ERROR, &one, sizeof one), EBADF);
		FAILS(ropeway_descriptor(h), EBADF);
	}
	FAILS(ropeway_socket(77), EPROTOTYPE);
	CHECK((s = ropeway_socket(ROPEWAY_STREAM)) > 0);
	FAILS(ropeway_send(s, &byte, 1, 0), ENOTCONN);
	FAILS(ropeway_recv(s, &byte, 1, 0), ENOTCONN);
	FAILS(ropeway_shutdown(s, SHUT_WR), ENOTCONN);
	FAILS(ropeway_descriptor(s), ENOTCONN);
	FAILS(ropeway_accept(s, NULL, NULL), EINVAL);
	FAILS(ropeway_listen(s, 1), EDESTADDRREQ);
	FAILS(ropeway_getsockname(s, as_any(&at), &length), EINVAL);
	FAILS(ropeway_bind(s, NULL, sizeof at), EFAULT);
	FAILS(ropeway_bind(s, as_any(&at), 1), EINVAL);
	FAILS(ropeway_bind(s, as_any(&at), sizeof at - 1), EINVAL);
	six.sin_family = AF_INET6;
	FAILS(ropeway_bind(s, as_any(&six), sizeof six), EINVAL);
	six.sin_family = 99;
	FAILS(ropeway_bind(s, as_any(&six), sizeof six), EAFNOSUPPORT);
	FAILS(ropeway_connect(s, NULL, 0), EINVAL);
	FAILS(ropeway_setsockopt(s, 1234, 5678, &one, sizeof one), ENOPROTOOPT);
	CHECK(ropeway_setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one) == 0);
	FAILS(ropeway_setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &off, sizeof off), EOPNOTSUPP);
	FAILS(ropeway_getsockopt(s, 1234, 5678, &one, &length), ENOPROTOOPT);
	FAILS(ropeway_setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &one, sizeof one), EINVAL);
	FAILS(ropeway_setsockopt(s, IPPROTO_TCP, TCP_NODELAY, NULL, sizeof one), EFAULT);
	FAILS(ropeway_setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, 1), EINVAL);
	FAILS(ropeway_getsockopt(s, SOL_SOCKET, SO_TYPE, &one, NULL), EFAULT);
	FAILS(ropeway_getsockopt(s, SOL_SOCKET, SO_TYPE, NULL, &length), EFAULT);
	FAILS(ropeway_resolve(NULL, as_any(&at), &length), EFAULT);
	FAILS(ropeway_resolve("nonsense", as_any(&at), &length), EINVAL);
	FAILS(ropeway_dial("\xff\xfe", ROPEWAY_STREAM), EINVAL);
	CHECK(ropeway_close(s) == 0);
	FAILS(ropeway_close(s), EBADF);
	/* Addresses lie where they lie. */
	memcpy(crooked + 1, &at, sizeof at);
	CHECK((s = ropeway_socket(ROPEWAY_MESSAGES)) > 0);
	FAILS(ropeway_connect(s, as_any(crooked + 1), sizeof at), ECONNREFUSED);
	CHECK(ropeway_getsockopt(s, SOL_SOCKET, SO_TYPE, crooked + 1, memcpy(crooked + 9, &length, sizeof length)) == 0);
	FAILS(ropeway_bind(s, as_any(memset(crooked, 0xff, sizeof crooked)), sizeof crooked), EAFNOSUPPORT);
	CHECK(ropeway_close(s) == 0);
	/* The handle is not given again. */
	CHECK((l = ropeway_socket(ROPEWAY_STREAM)) > 0 && l != s);
	FAILS(ropeway_listen(s, 1), EBADF);
	CHECK(ropeway_close(l) == 0);
	l = listener(ROPEWAY_STREAM, &at);
	CHECK((s = ropeway_socket(ROPEWAY_STREAM)) > 0);
	FAILS(ropeway_bind(s, as_any(&at), sizeof at), EADDRINUSE);
	FAILS(ropeway_connect(l, as_any(&at), sizeof at), EOPNOTSUPP);
	FAILS(ropeway_send(l, &byte, 1, 0), ENOTCONN);
	CHECK(ropeway_close(l) == 0);
	FAILS(ropeway_connect(s, as_any(&at), sizeof at), ECONNREFUSED);
	CHECK(ropeway_bind(s, as_any(&at), sizeof at) == 0);
	FAILS(ropeway_bind(s, as_any(&at), sizeof at), EINVAL);
	CHECK(ropeway_close(s) == 0);
}

static void streams(void)
{
	struct sockaddr_in at, from;
	socklen_t length = sizeof from;
	char buffer[64];
	int l = listener(ROPEWAY_STREAM, &at), client, server, type = 0, yes = 0, ports[2] = {0, 0};
	socklen_t size = sizeof type;

	CHECK(ropeway_getsockopt(l, SOL_SOCKET, SO_ACCEPTCONN, &yes, &size) == 0 && yes == 1);
	CHECK((client = ropeway_socket(ROPEWAY_STREAM)) > 0);
	CHECK(ropeway_connect(client, as_any(&at), sizeof at) == 0);
	/* Nothing is taken that nobody could be told of. */
	FAILS(ropeway_accept(l, as_any(&from), NULL), EFAULT);
	CHECK((server = ropeway_accept(l, as_any(&from), &length)) > 0);
	CHECK(length == sizeof from && from.sin_family == AF_INET && from.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	CHECK(ropeway_getsockname(client, as_any(&at), &length) == 0 && memcmp(&at, &from, sizeof at) == 0);
	FAILS(ropeway_connect(client, as_any(&at), sizeof at), EISCONN);
	CHECK(ropeway_getsockopt(client, SOL_ROPEWAY, ROPEWAY_SO_LOCAL_PORT, &ports[0], &size) == 0 && ports[0] > 0);
	CHECK(ropeway_getsockopt(server, SOL_ROPEWAY, ROPEWAY_SO_PEER_PORT, &ports[1], &size) == 0 && ports[0] == ports[1]);
	CHECK(ropeway_getsockopt(client, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == ROPEWAY_STREAM && size == sizeof type);
	size = 2;
	CHECK(ropeway_getsockopt(client, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && size == 2);
	size = sizeof type;

	CHECK(ropeway_send(client, "hello", 5, MSG_NOSIGNAL) == 5);
	CHECK(ropeway_recv(server, buffer, 2, MSG_WAITALL) == 2 && memcmp(buffer, "he", 2) == 0);
	CHECK(ropeway_recv(server, buffer, 3, MSG_PEEK) == 3 && memcmp(buffer, "llo", 3) == 0);
	CHECK(ropeway_recv(server, buffer, sizeof buffer, 0) == 3 && memcmp(buffer, "llo", 3) == 0);
	FAILS(ropeway_recv(server, buffer, sizeof buffer, MSG_DONTWAIT), EAGAIN);
	FAILS(ropeway_recv(server, buffer, sizeof buffer, MSG_DONTWAIT | MSG_PEEK), EAGAIN);
	FAILS(ropeway_recv(server, buffer, sizeof buffer, MSG_OOB), EOPNOTSUPP);
	FAILS(ropeway_send(server, buffer, 1, MSG_OOB), EOPNOTSUPP);
	FAILS(ropeway_recv(server, NULL, 1, 0), EFAULT);
	FAILS(ropeway_send(server, NULL, 1, 0), EFAULT);
	FAILS(ropeway_recv(server, buffer, SIZE_MAX, MSG_DONTWAIT), EINVAL);
	FAILS(ropeway_send(server, buffer, SIZE_MAX, 0), EINVAL);
	FAILS(ropeway_recv(server, buffer, (size_t)-1, 0), EINVAL);
	CHECK(ropeway_recv(server, NULL, 0, 0) == 0 && ropeway_send(server, NULL, 0, 0) == 0);
	CHECK(ropeway_recv(server, NULL, 0, MSG_PEEK) == 0);

	CHECK(ropeway_send(client, "the rest", 8, 0) == 8);
	CHECK(ropeway_drain(client, 20000) == 0);
	FAILS(ropeway_shutdown(client, 77), EINVAL);
	CHECK(ropeway_shutdown(client, SHUT_WR) == 0);
	FAILS(ropeway_send(client, "x", 1, 0), EPIPE);
	CHECK(ropeway_recv(server, buffer, sizeof buffer, MSG_WAITALL) == 8);
	CHECK(ropeway_recv(server, buffer, sizeof buffer, 0) == 0);
	CHECK(ropeway_getsockopt(server, SOL_ROPEWAY, ROPEWAY_SO_ENDED, &yes, &size) == 0 && yes == 1);
	CHECK(ropeway_send(server, "bye", 3, 0) == 3);
	CHECK(ropeway_close(server) == 0);
	CHECK(ropeway_recv(client, buffer, sizeof buffer, MSG_WAITALL) == 3);
	CHECK(ropeway_close(client) == 0 && ropeway_close(l) == 0);
	/* Nobody is left at the other end, in order: that is no error. After a reset there is no connection. */
	for (yes = 0; yes < 2; yes++) {
		struct linger none = {yes, 0};

		pair(ROPEWAY_STREAM, &client, &server);
		CHECK(ropeway_setsockopt(server, SOL_SOCKET, SO_LINGER, &none, sizeof none) == 0);
		CHECK(ropeway_close(server) == 0);
		while (ropeway_send(client, "", 0, 0) == 0)
			usleep(1000);
		size = sizeof type;
		CHECK(ropeway_getsockopt(client, SOL_SOCKET, SO_ERROR, &type, &size) == 0 && type == (yes ? ECONNRESET : 0));
		if (yes)
			FAILS(ropeway_shutdown(client, SHUT_WR), ENOTCONN);
		else
			CHECK(ropeway_shutdown(client, SHUT_WR) == 0 && ropeway_drain(client, -1) == 0);
		CHECK(ropeway_close(client) == 0);
	}
}

/* The last call says how many may wait, and less than none is as many as can be. */
static void backlogs(void)
{
	struct sockaddr_in at;
	int l = listener(ROPEWAY_STREAM, &at), clients[8], i, count = 0, most;

	for (i = 0; i < 8; i++)
		CHECK((clients[i] = ropeway_socket(ROPEWAY_STREAM)) > 0);
	for (most = 1; most <= 3; most += 2) {
		CHECK(ropeway_listen(l, most) == 0);
		while (count < most)
			CHECK(ropeway_connect(clients[count++], as_any(&at), sizeof at) == 0);
		FAILS(ropeway_connect(clients[7], as_any(&at), sizeof at), ECONNREFUSED);
	}
	CHECK(ropeway_listen(l, -1) == 0);
	while (count < 8)
		CHECK(ropeway_connect(clients[count++], as_any(&at), sizeof at) == 0);
	for (i = 0; i < 8; i++)
		CHECK(ropeway_close(clients[i]) == 0);
	CHECK(ropeway_close(l) == 0);
}

static void messages(void)
{
	char *big = malloc(300000), *copy = malloc(300000), buffer[100];
	int client, server, ended = 7;
	ssize_t count = 0, cancelled;
	socklen_t size;
	uint64_t bytes = 0;

	CHECK(big && copy);
	memset(big, 'x', 300000);
	pair(ROPEWAY_MESSAGES, &client, &server);
	size = sizeof bytes;
	CHECK(ropeway_getsockopt(client, SOL_ROPEWAY, ROPEWAY_SO_MAX_MESSAGE, &bytes, &size) == 0 && bytes >= 300000);
	FAILS(ropeway_getsockopt(server, SOL_ROPEWAY, ROPEWAY_SO_NEXT_MESSAGE, &bytes, &size), EAGAIN);
	CHECK(ropeway_send(client, big, 300000, 0) == 300000);
	CHECK(ropeway_send(client, "", 0, 0) == 0);
	CHECK(ropeway_send(client, "last", 4, MSG_EOR) == 4);
	FAILS(ropeway_recv(server, buffer, sizeof buffer, 0), EMSGSIZE);
	CHECK(ropeway_getsockopt(server, SOL_ROPEWAY, ROPEWAY_SO_NEXT_MESSAGE, &bytes, &size) == 0 && bytes == 300000);
	CHECK(ropeway_recv(server, copy, 300000, 0) == 300000 && memcmp(big, copy, 300000) == 0);
	FAILS(ropeway_recv(server, buffer, sizeof buffer, MSG_PEEK), EOPNOTSUPP);
	CHECK(ropeway_recv(server, buffer, sizeof buffer, 0) == 0);
	size = sizeof ended;
	CHECK(ropeway_getsockopt(server, SOL_ROPEWAY, ROPEWAY_SO_ENDED, &ended, &size) == 0 && ended == 0);
	CHECK(ropeway_recv(server, buffer, sizeof buffer, 0) == 4 && memcmp(buffer, "last", 4) == 0);
	/* All of it may be under way, until the receiver lets no more in. */
	do {
		while (ropeway_send_within(client, big, 100000, MSG_DONTWAIT | MSG_MORE, 1000) == 100000)
			count++;
		size = sizeof bytes;
		while (ropeway_getsockopt(server, SOL_ROPEWAY, ROPEWAY_SO_NEXT_MESSAGE, &bytes, &size) != 0)
			poll(NULL, 0, 1);
		cancelled = ropeway_cancel(client);
		size = sizeof bytes;
		CHECK(ropeway_getsockopt(client, SOL_ROPEWAY, ROPEWAY_SO_EXPIRED, &bytes, &size) == 0);
	} while (cancelled + bytes == 0);
	CHECK(cancelled >= 0 && cancelled + bytes < (uint64_t)count);
	for (count -= cancelled + bytes; count > 0; count--)
		CHECK(ropeway_recv(server, copy, 300000, 0) == 100000);
	CHECK(ropeway_close(client) == 0);
	CHECK(ropeway_recv(server, buffer, sizeof buffer, 0) == 0);
	size = sizeof ended;
	CHECK(ropeway_getsockopt(server, SOL_ROPEWAY, ROPEWAY_SO_ENDED, &ended, &size) == 0 && ended == 1);
	size = sizeof bytes;
	FAILS(ropeway_getsockopt(server, SOL_ROPEWAY, ROPEWAY_SO_NEXT_MESSAGE, &bytes, &size), ENODATA);
	CHECK(ropeway_close(server) == 0);
	free(big);
	free(copy);
}

static struct iovec part(void *at, size_t length)
{
	struct iovec part;

	part.iov_base = at;
	part.iov_len = length;
	return part;
}

/* From and into several buffers. */
/* More than any machine has. */
#define HUGE_BYTES ((size_t)1 << 42)

static void scattered(void)
{
	static char big[300000], copy[300000];
	char head[3], middle[2], tail[100];
	struct iovec out[3], in[4], many[1025];
	int types[] = {ROPEWAY_STREAM, ROPEWAY_MESSAGES}, client, server;
	socklen_t size;
	uint64_t bytes;
	size_t i;

	char *huge = mmap(NULL, HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(huge != MAP_FAILED);
	for (i = 0; i < sizeof big; i++)
		big[i] = (char)(i ^ (i >> 8));
	in[0] = part(head, sizeof head);
	in[1] = part(NULL, 0);
	in[2] = part(middle, sizeof middle);
	in[3] = part(tail, sizeof tail);
	for (i = 0; i < 2; i++) {
		pair(types[i], &client, &server);
		out[0] = part("he", 2);
		out[1] = part(NULL, 0);
		out[2] = part("llo all", 7);
		FAILS(ropeway_recvv(server, in, 4, MSG_DONTWAIT), EAGAIN);
		CHECK(ropeway_sendv(client, out, 3, MSG_NOSIGNAL) == 9);
		CHECK(ropeway_drain(client, 20000) == 0);
		CHECK(ropeway_recvv(server, in, 4, 0) == 9);
		CHECK(memcmp(head, "hel", 3) == 0 && memcmp(middle, "lo", 2) == 0 && memcmp(tail, " all", 4) == 0);
		/* A header and what it is about; it needs several packets, and more room than there may be at once. */
		out[0] = part("hdr", 3);
		out[1] = part(big, sizeof big);
		out[2] = part("end", 3);
		CHECK(ropeway_sendv(client, out, 3, 0) == (ssize_t)sizeof big + 6);
		size = sizeof bytes;
		if (types[i] == ROPEWAY_MESSAGES) {
			while (ropeway_getsockopt(server, SOL_ROPEWAY, ROPEWAY_SO_NEXT_MESSAGE, &bytes, &size) != 0)
				poll(NULL, 0, 1);
			CHECK(bytes == sizeof big + 6);
			FAILS(ropeway_recvv(server, in, 4, 0), EMSGSIZE);
		}
		memset(copy, 0, sizeof copy);
		in[1] = part(copy, sizeof copy);
		if (types[i] == ROPEWAY_STREAM)
			CHECK(ropeway_recvv(server, in, 3, MSG_WAITALL | MSG_PEEK) == (ssize_t)sizeof big + 5);
		else
			CHECK(ropeway_recvv(server, in, 4, MSG_WAITALL) == (ssize_t)sizeof big + 6);
		CHECK(memcmp(head, "hdr", 3) == 0 && copy[1] == big[1]);
		if (types[i] == ROPEWAY_STREAM)
			CHECK(ropeway_recvv(server, in, 3, MSG_WAITALL) == (ssize_t)sizeof big + 5);
		CHECK(memcmp(copy, big, sizeof big) == 0 && memcmp(middle, "en", 2) == 0);
		if (types[i] == ROPEWAY_STREAM)
			CHECK(ropeway_recvv(server, in, 2, 0) == 1 && head[0] == 'd');
		else
			CHECK(tail[0] == 'd');
		in[1] = part(NULL, 0);
		/* Room that is never needed costs nothing, and what is too long is not gathered first. */
		many[0] = part(head, sizeof head);
		many[1] = part(huge, HUGE_BYTES);
		CHECK(ropeway_send(client, "hello", 5, 0) == 5);
		CHECK(ropeway_recvv(server, many, 2, 0) == 5 && memcmp(huge, "lo", 2) == 0);
		if (types[i] == ROPEWAY_MESSAGES) {
			many[0] = many[1];
			FAILS(ropeway_sendv(client, many, 2, 0), EMSGSIZE);
		}
		CHECK(ropeway_sendv(client, NULL, 0, 0) == 0);
		FAILS(ropeway_sendv(client, NULL, 1, 0), EFAULT);
		FAILS(ropeway_sendv(client, out, -1, 0), EINVAL);
		FAILS(ropeway_sendv(client, many, 1025, 0), EINVAL);
		FAILS(ropeway_sendv(client, out, 3, MSG_OOB), EOPNOTSUPP);
		FAILS(ropeway_recvv(server, in, 4, MSG_OOB), EOPNOTSUPP);
		FAILS(ropeway_recvv(server, NULL, 2, 0), EFAULT);
		many[0] = many[1] = part(tail, (size_t)-1 / 2);
		FAILS(ropeway_recvv(server, many, 2, 0), EINVAL);
		many[0] = part(NULL, 1);
		FAILS(ropeway_sendv(client, many, 1, 0), EFAULT);
		if (types[i] == ROPEWAY_MESSAGES)
			/* The one of no buffers was a message, too. */
			CHECK(ropeway_recvv(server, in, 4, 0) == 0);
		CHECK(ropeway_close(client) == 0);
		CHECK(ropeway_recvv(server, in, 4, 0) == 0);
		CHECK(ropeway_close(server) == 0);
		FAILS(ropeway_sendv(client, out, 3, 0), EBADF);
		FAILS(ropeway_recvv(server, in, 4, 0), EBADF);
	}
	CHECK(munmap(huge, HUGE_BYTES) == 0);
}

static void limits_and_options(void)
{
	struct timeval limit = {0, 30000}, shown = {0, 0};
	struct linger linger = {1, 0}, lingers = {0, 0};
	struct timespec begin, end;
	char byte = 0;
	int client, server, on = 1, is = 0, l;
	socklen_t size = sizeof shown;
	struct sockaddr_in at;

	pair(ROPEWAY_STREAM, &client, &server);
	CHECK(ropeway_setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
	CHECK(ropeway_getsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &shown, &size) == 0 && shown.tv_usec == 30000);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	FAILS(ropeway_recv(client, &byte, 1, 0), EAGAIN);
	clock_gettime(CLOCK_MONOTONIC, &end);
	CHECK((end.tv_sec - begin.tv_sec) * 1000000000L + (end.tv_nsec - begin.tv_nsec) >= 30000000L);
	limit.tv_usec = 1000000;
	FAILS(ropeway_setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), EDOM);
	limit.tv_usec = 0;
	CHECK(ropeway_setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
	size = sizeof is;
	CHECK(ropeway_setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
	CHECK(ropeway_getsockopt(client, SOL_ROPEWAY, ROPEWAY_SO_NODELAY, &is, &size) == 0 && is == 1);
	CHECK(ropeway_setsockopt(client, SOL_ROPEWAY, ROPEWAY_SO_NONBLOCK, &on, sizeof on) == 0);
	CHECK(ropeway_getsockopt(client, SOL_ROPEWAY, ROPEWAY_SO_NONBLOCK, &is, &size) == 0 && is == 1);
	FAILS(ropeway_recv(client, &byte, 1, 0), EAGAIN);
	CHECK(ropeway_getsockopt(client, SOL_SOCKET, SO_ERROR, &is, &size) == 0 && is == 0);
	CHECK(ropeway_setsockopt(server, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
	size = sizeof lingers;
	CHECK(ropeway_getsockopt(server, SOL_SOCKET, SO_LINGER, &lingers, &size) == 0 && lingers.l_onoff == 1 && lingers.l_linger == 0);
	/* No time to linger: the peer sees a reset. */
	CHECK(ropeway_close(server) == 0);
	on = 0;
	CHECK(ropeway_setsockopt(client, SOL_ROPEWAY, ROPEWAY_SO_NONBLOCK, &on, sizeof on) == 0);
	FAILS(ropeway_recv(client, &byte, 1, 0), ECONNRESET);
	size = sizeof is;
	CHECK(ropeway_getsockopt(client, SOL_SOCKET, SO_ERROR, &is, &size) == 0 && is == ECONNRESET);
	CHECK(ropeway_close(client) == 0);
	l = listener(ROPEWAY_STREAM, &at);
	limit.tv_usec = 30000;
	CHECK(ropeway_setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
	FAILS(ropeway_accept(l, NULL, NULL), EAGAIN);
	CHECK(ropeway_close(l) == 0);
}

static struct sockaddr_in silent;

static ssize_t to_nobody(int s)
{
	return ropeway_connect(s, as_any(&silent), sizeof silent);
}

/* Somebody who does not speak the protocol: connecting there takes its time. */
static int bind_silent(void)
{
	socklen_t length = sizeof silent;
	int udp = socket(AF_INET, SOCK_DGRAM, 0);

	silent = loopback(0);
	CHECK(udp >= 0 && bind(udp, as_any(&silent), sizeof silent) == 0);
	CHECK(getsockname(udp, as_any(&silent), &length) == 0);
	return udp;
}

static void wait_for(int s, short events)
{
	struct pollfd fd = {ropeway_descriptor(s), events, 0};

	CHECK(fd.fd >= 0);
	CHECK(poll(&fd, 1, 20000) == 1 && (fd.revents & events));
}

static void descriptors(void)
{
	struct sockaddr_in at;
	struct pollfd fd;
	char byte;
	int l = listener(ROPEWAY_STREAM, &at), client, server, udp, error = 7;
	socklen_t size = sizeof error, length = sizeof at;

	CHECK((client = ropeway_socket(ROPEWAY_STREAM | ROPEWAY_NONBLOCK)) > 0);
	FAILS(ropeway_connect(client, as_any(&at), sizeof at), EINPROGRESS);
	wait_for(client, POLLOUT);
	CHECK(ropeway_getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0);
	FAILS(ropeway_connect(client, as_any(&at), sizeof at), EISCONN);
	wait_for(l, POLLIN);
	CHECK((server = ropeway_accept(l, NULL, NULL)) > 0);
	fd.fd = ropeway_descriptor(client);
	fd.events = POLLIN | POLLOUT;
	CHECK(poll(&fd, 1, 20000) == 1 && fd.revents == POLLOUT);
	CHECK(ropeway_send(server, "x", 1, 0) == 1);
	wait_for(client, POLLIN);
	CHECK(ropeway_recv(client, &byte, 1, 0) == 1);
	CHECK(poll(&fd, 1, 0) == 1 && fd.revents == POLLOUT);
	CHECK(ropeway_close(server) == 0);
	wait_for(client, POLLIN);
	CHECK(ropeway_recv(client, &byte, 1, 0) == 0);
	CHECK(ropeway_close(client) == 0 && ropeway_close(l) == 0);
	/* Now nobody listens there. */
	CHECK((client = ropeway_socket(ROPEWAY_STREAM | ROPEWAY_NONBLOCK)) > 0);
	FAILS(ropeway_connect(client, as_any(&at), sizeof at), EINPROGRESS);
	wait_for(client, POLLOUT);
	CHECK(ropeway_getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == ECONNREFUSED);
	FAILS(ropeway_send(client, "x", 1, 0), ECONNREFUSED);
	FAILS(ropeway_getpeername(client, as_any(&at), &length), ENOTCONN);
	CHECK(ropeway_close(client) == 0);
	/* Nor is there a peer before it has answered. */
	udp = bind_silent();
	CHECK((client = ropeway_socket(ROPEWAY_STREAM | ROPEWAY_NONBLOCK)) > 0);
	FAILS(to_nobody(client), EINPROGRESS);
	FAILS(ropeway_getpeername(client, as_any(&at), &length), ENOTCONN);
	CHECK(ropeway_close(client) == 0 && close(udp) == 0);
}

/* What this host says of a destination is an error of the call, also of one that does not wait; then another one can be tried. */
static void destinations(void)
{
	int kinds[] = {ROPEWAY_STREAM, ROPEWAY_MESSAGES | ROPEWAY_NONBLOCK}, s, l, i;
	struct sockaddr_in broadcast = loopback(9), no_port = loopback(0), at;

	broadcast.sin_addr.s_addr = inet_addr("127.255.255.255");
	for (i = 0; i < 2; i++) {
		l = listener(kinds[i] & ~ROPEWAY_NONBLOCK, &at);
		CHECK((s = ropeway_socket(kinds[i])) > 0);
		FAILS(ropeway_connect(s, as_any(&broadcast), sizeof broadcast), EACCES);
		FAILS(ropeway_connect(s, as_any(&no_port), sizeof no_port), EINVAL);
		FAILS(ropeway_dial("127.255.255.255:9", kinds[i]), EACCES);
		if (i == 0)
			CHECK(ropeway_connect(s, as_any(&at), sizeof at) == 0);
		else
			FAILS(ropeway_connect(s, as_any(&at), sizeof at), EINPROGRESS);
		CHECK(ropeway_close(s) == 0 && ropeway_close(l) == 0);
	}
}

static void texts(void)
{
	struct sockaddr_storage address;
	struct sockaddr_ropeway *ether = (struct sockaddr_ropeway *)&address;
	struct sockaddr_ropeway_node *node = (struct sockaddr_ropeway_node *)&address;
	socklen_t length = sizeof address;
	char text[64];

	CHECK(ropeway_resolve("eth0/02:00:00:00:00:07:7000", as_any(&address), &length) == 0);
	CHECK(length == sizeof *ether && ether->sr_family == ROPEWAY_AF_ETHER && ntohs(ether->sr_port) == 7000);
	CHECK(memcmp(ether->sr_mac, "\x02\0\0\0\0\x07", 6) == 0 && strcmp(ether->sr_device, "eth0") == 0);
	CHECK(ropeway_format(as_any(&address), length, text, sizeof text) == 0);
	CHECK(strcmp(text, "eth0/02:00:00:00:00:07:7000") == 0);
	FAILS(ropeway_format(as_any(&address), length, text, 10), ENOSPC);
	length = sizeof address;
	CHECK(ropeway_resolve("@3:7000", as_any(&address), &length) == 0 && length == sizeof *node);
	CHECK(node->sn_family == ROPEWAY_AF_NODE && ntohs(node->sn_port) == 7000 && node->sn_node == 3);
	CHECK(ropeway_format(as_any(&address), length, text, sizeof text) == 0 && strcmp(text, "@3:7000") == 0);
	length = sizeof address;
	CHECK(ropeway_resolve("[::1]:80", as_any(&address), &length) == 0 && length == sizeof(struct sockaddr_in6));
	/* As with the socket calls: what there is room for, and how much it would be. */
	length = 4;
	memset(&address, 0x55, sizeof address);
	CHECK(ropeway_resolve("1.2.3.4:5", as_any(&address), &length) == 0 && length == sizeof(struct sockaddr_in));
	CHECK(((unsigned char *)&address)[4] == 0x55);
}

static void by_text(const struct sockaddr_in *at, char *text, size_t room)
{
	struct sockaddr_in copy = *at;

	CHECK(ropeway_format(as_any(&copy), sizeof copy, text, room) == 0);
}

/* Whole beginnings that do not wait. */
static void dialling_without_waiting(void)
{
	struct sockaddr_in at;
	char text[64], byte;
	int l = ropeway_serve("127.0.0.1:0", ROPEWAY_STREAM | ROPEWAY_NONBLOCK, 8), client, server, error = 7;
	socklen_t length = sizeof at, size = sizeof error;

	CHECK(l > 0 && ropeway_getsockname(l, as_any(&at), &length) == 0);
	FAILS(ropeway_accept(l, NULL, NULL), EAGAIN);
	by_text(&at, text, sizeof text);
	CHECK((client = ropeway_dial(text, ROPEWAY_STREAM | ROPEWAY_NONBLOCK)) > 0);
	wait_for(client, POLLOUT);
	CHECK(ropeway_getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0);
	FAILS(ropeway_recv(client, &byte, 1, 0), EAGAIN);
	wait_for(l, POLLIN);
	CHECK((server = ropeway_accept(l, NULL, NULL)) > 0);
	/* What is accepted waits, whatever the listener does. */
	CHECK(ropeway_getsockopt(server, SOL_ROPEWAY, ROPEWAY_SO_NONBLOCK, &error, &size) == 0 && error == 0);
	CHECK(ropeway_send(client, "x", 1, 0) == 1 && ropeway_recv(server, &byte, 1, 0) == 1 && byte == 'x');
	CHECK(ropeway_close(client) == 0 && ropeway_close(server) == 0 && ropeway_close(l) == 0);
	/* Nobody listens there now, which comes to light later. */
	CHECK((client = ropeway_dial(text, ROPEWAY_MESSAGES | ROPEWAY_NONBLOCK)) > 0);
	wait_for(client, POLLOUT);
	CHECK(ropeway_getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == ECONNREFUSED);
	CHECK(ropeway_close(client) == 0);
}

/* Connecting by text, with a socket that has its options already. */
static void connecting_by_text(void)
{
	struct sockaddr_in at;
	char text[64];
	int l = listener(ROPEWAY_MESSAGES, &at), client, server;

	CHECK(ropeway_format(as_any(&at), sizeof at, text, sizeof text) == 0);
	FAILS(ropeway_connect_to(7, text), EBADF);
	CHECK((client = ropeway_socket(ROPEWAY_MESSAGES)) > 0);
	FAILS(ropeway_connect_to(client, NULL), EFAULT);
	FAILS(ropeway_connect_to(client, "nonsense"), EINVAL);
	/* There is no description of a cluster here. */
	FAILS(ropeway_connect_to(client, "@3:7000"), EINVAL);
	CHECK(strstr(ropeway_error(), "ROPEWAY_CLUSTER"));
	CHECK(ropeway_connect_to(client, text) == 0);
	FAILS(ropeway_connect_to(client, text), EISCONN);
	CHECK((server = ropeway_accept(l, NULL, NULL)) > 0);
	CHECK(ropeway_send(client, "hello", 5, 0) == 5 && ropeway_recv(server, text, sizeof text, 0) == 5);
	CHECK(ropeway_close(client) == 0 && ropeway_close(server) == 0);
	CHECK((client = ropeway_socket(ROPEWAY_MESSAGES | ROPEWAY_NONBLOCK)) > 0);
	CHECK(ropeway_format(as_any(&at), sizeof at, text, sizeof text) == 0);
	FAILS(ropeway_connect_to(client, text), EINPROGRESS);
	wait_for(client, POLLOUT);
	CHECK(ropeway_close(client) == 0 && ropeway_close(l) == 0);
}

/* A call that waits in a thread of its own, and what it came to. */
struct waiting {
	ssize_t (*call)(int s);
	int s, number;
	ssize_t result;
	pthread_t thread;
};

static ssize_t one_byte(int s)
{
	char byte;

	return ropeway_recv(s, &byte, 1, 0);
}

static ssize_t eight_bytes(int s)
{
	char bytes[8];

	return ropeway_recv(s, bytes, sizeof bytes, MSG_WAITALL);
}

static ssize_t bytes_in_parts(int s)
{
	char bytes[8];
	struct iovec parts[] = {{bytes, 4}, {bytes + 4, 4}};

	return ropeway_recvv(s, parts, 2, 0);
}

static ssize_t one_connection(int s)
{
	return ropeway_accept(s, NULL, NULL);
}

static ssize_t what_nobody_reads(int s)
{
	static char block[1 << 20];
	ssize_t count;

	do {
		count = ropeway_send(s, block, sizeof block, 0);
	} while (count > 0);
	return count;
}

static ssize_t the_rest(int s)
{
	return ropeway_drain(s, -1);
}

static void *wait_there(void *argument)
{
	struct waiting *waiting = argument;

	errno = 0;
	waiting->result = waiting->call(waiting->s);
	waiting->number = errno;
	return NULL;
}

static int interruptions;

static void interrupt(int number)
{
	(void)number;
	__atomic_fetch_add(&interruptions, 1, __ATOMIC_RELAXED);
}

/* Signals with a handler, after which the kernel's calls would not go on by themselves. */
static void handle_signals(void)
{
	struct sigaction action;

	memset(&action, 0, sizeof action);
	action.sa_handler = interrupt;
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
}

/* A thread that is sent such signals for as long as it likes. */
struct troubled {
	pthread_t thread, by;
	volatile int is_over;
};

static void *trouble(void *argument)
{
	struct troubled *troubled = argument;

	while (!troubled->is_over) {
		pthread_kill(troubled->thread, SIGUSR1);
		usleep(3000);
	}
	return NULL;
}

static struct timespec begin_timed(struct troubled *troubled)
{
	struct timespec now;

	troubled->thread = pthread_self();
	troubled->is_over = 0;
	CHECK(pthread_create(&troubled->by, NULL, trouble, troubled) == 0);
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now;
}

static long milliseconds_since(struct timespec since)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (now.tv_sec - since.tv_sec) * 1000 + (now.tv_nsec - since.tv_nsec) / 1000000;
}

/* Says how many milliseconds it took, and that there were signals. */
static long end_timed(struct troubled *troubled, struct timespec since)
{
	long took = milliseconds_since(since);

	troubled->is_over = 1;
	CHECK(pthread_join(troubled->by, NULL) == 0);
	CHECK(__atomic_exchange_n(&interruptions, 0, __ATOMIC_RELAXED) > 0);
	return took;
}

/* The call takes at least so long, fails with this number, and no signal interrupts it. */
#define FAILS_AFTER(milliseconds, call, number)                         \
	do {                                                            \
		struct troubled troubled;                               \
		struct timespec since = begin_timed(&troubled);         \
                                                                        \
		FAILS(call, number);                                    \
		CHECK(end_timed(&troubled, since) >= (milliseconds) - 1); \
	} while (0)

/* Fills a connection until the peer, who does not read, acknowledges no more. Says how many bytes that took. */
static size_t fill(int s)
{
	static char block[1 << 16];
	size_t total = 0;

	do {
		ssize_t count;
		int number;

		while ((count = ropeway_send(s, block, sizeof block, MSG_DONTWAIT)) > 0)
			total += (size_t)count;
		number = errno;
		CHECK(count == -1 && number == EAGAIN);
	} while (ropeway_drain(s, 100) == 0);
	return total;
}

static void limits_of_sending(void)
{
	struct timeval limit = {0, 60000};
	int udp = bind_silent(), types[] = {ROPEWAY_STREAM, ROPEWAY_MESSAGES}, client, server;
	size_t i;

	for (i = 0; i < 2; i++) {
		CHECK((client = ropeway_socket(types[i])) > 0);
		CHECK(ropeway_setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0);
		FAILS_AFTER(60, to_nobody(client), ETIMEDOUT);
		/* It can be tried again with the same socket. */
		FAILS_AFTER(60, to_nobody(client), ETIMEDOUT);
		CHECK(ropeway_close(client) == 0);
		pair(types[i], &client, &server);
		CHECK(ropeway_setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0);
		fill(client);
		FAILS_AFTER(60, what_nobody_reads(client), EAGAIN);
		FAILS_AFTER(80, ropeway_drain(client, 80), ETIMEDOUT);
		FAILS(ropeway_drain(client, 0), ETIMEDOUT);
		limit.tv_usec = 70000;
		CHECK(ropeway_setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
		FAILS_AFTER(70, one_byte(client), EAGAIN);
		limit.tv_usec = 60000;
		CHECK(ropeway_close(client) == 0 && ropeway_close(server) == 0);
	}
	CHECK(close(udp) == 0);
}

/* One byte every 20 ms until somebody has had enough. */
struct trickle {
	pthread_t thread;
	int s;
	volatile int is_over;
};

static void *trickles(void *argument)
{
	struct trickle *trickle = argument;

	while (!trickle->is_over) {
		CHECK(ropeway_send(trickle->s, "x", 1, 0) == 1);
		usleep(20000);
	}
	return NULL;
}

/* A limit is that of the whole call, however many bytes come one by one. */
static void limits_of_waiting_for_all(void)
{
	struct trickle trickle;
	struct timeval limit = {0, 70000};
	struct iovec parts[2];
	struct timespec since, now;
	char bytes[1000];
	int client, server, i;
	ssize_t count;

	pair(ROPEWAY_STREAM, &client, &server);
	CHECK(ropeway_setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
	parts[0] = part(bytes, 2);
	parts[1] = part(bytes + 2, sizeof bytes - 2);
	trickle.s = client;
	trickle.is_over = 0;
	CHECK(pthread_create(&trickle.thread, NULL, trickles, &trickle) == 0);
	for (i = 0; i < 2; i++) {
		clock_gettime(CLOCK_MONOTONIC, &since);
		if (i == 0)
			count = ropeway_recv(server, bytes, sizeof bytes, MSG_WAITALL);
		else
			count = ropeway_recvv(server, parts, 2, MSG_WAITALL);
		clock_gettime(CLOCK_MONOTONIC, &now);
		/* Not the 20 s that all of it takes. */
		CHECK(count > 0 && count < (ssize_t)sizeof bytes);
		CHECK((now.tv_sec - since.tv_sec) * 1000 + (now.tv_nsec - since.tv_nsec) / 1000000 >= 69);
	}
	trickle.is_over = 1;
	CHECK(pthread_join(trickle.thread, NULL) == 0);
	CHECK(ropeway_close(client) == 0 && ropeway_close(server) == 0);
}

static void *sends_the_rest_late(void *argument)
{
	usleep(50000);
	CHECK(ropeway_send(*(int *)argument, "defgh", 5, 0) == 5);
	return NULL;
}

/* A look at all of several bytes waits for them, as taking them does, but not for what cannot come before something is taken. */
static void looks_at_all(void)
{
	static char long_ones[8 << 20];
	struct timeval limit = {0, 70000}, no_limit = {0, 0};
	int client, server, i, yes = 1, no = 0;
	char bytes[100];
	struct iovec parts[2];
	pthread_t thread;
	ssize_t count;
	size_t filled;

	parts[0] = part(bytes, 3);
	parts[1] = part(bytes + 3, 5);
	for (i = 0; i < 2; i++) {
		pair(ROPEWAY_STREAM, &client, &server);
		CHECK(ropeway_send(client, "abc", 3, 0) == 3);
		CHECK(pthread_create(&thread, NULL, sends_the_rest_late, &client) == 0);
		if (i == 0)
			CHECK(ropeway_recv(server, bytes, 8, MSG_PEEK | MSG_WAITALL) == 8);
		else
			CHECK(ropeway_recvv(server, parts, 2, MSG_PEEK | MSG_WAITALL) == 8);
		CHECK(memcmp(bytes, "abcdefgh", 8) == 0);
		CHECK(pthread_join(thread, NULL) == 0);
		CHECK(ropeway_recv(server, bytes, sizeof bytes, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT) == 8);
		CHECK(ropeway_setsockopt(server, SOL_ROPEWAY, ROPEWAY_SO_NONBLOCK, &yes, sizeof yes) == 0);
		CHECK(ropeway_recv(server, bytes, sizeof bytes, MSG_PEEK | MSG_WAITALL) == 8);
		CHECK(ropeway_setsockopt(server, SOL_ROPEWAY, ROPEWAY_SO_NONBLOCK, &no, sizeof no) == 0);
		/* Until its time is over, with what there is, or its end. */
		CHECK(ropeway_setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
		CHECK(ropeway_recv(server, bytes, sizeof bytes, MSG_PEEK | MSG_WAITALL) == 8);
		CHECK(ropeway_recv(server, bytes, 8, MSG_WAITALL) == 8);
		FAILS_AFTER(70, ropeway_recv(server, bytes, sizeof bytes, MSG_PEEK | MSG_WAITALL), EAGAIN);
		CHECK(ropeway_setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &no_limit, sizeof no_limit) == 0);
		CHECK(ropeway_send(client, "end", 3, 0) == 3 && ropeway_shutdown(client, SHUT_WR) == 0);
		CHECK(ropeway_recv(server, bytes, sizeof bytes, MSG_PEEK | MSG_WAITALL) == 3);
		CHECK(ropeway_recv(server, bytes, 3, MSG_WAITALL) == 3);
		CHECK(ropeway_recv(server, bytes, sizeof bytes, MSG_PEEK | MSG_WAITALL) == 0);
		CHECK(ropeway_close(client) == 0 && ropeway_close(server) == 0);
	}
	pair(ROPEWAY_STREAM, &client, &server);
	filled = fill(client);
	CHECK((count = ropeway_recv(server, long_ones, sizeof long_ones, MSG_PEEK | MSG_WAITALL)) > 0);
	CHECK((size_t)count <= filled && filled < sizeof long_ones);
	CHECK(ropeway_recv(server, long_ones, filled, MSG_WAITALL) == (ssize_t)filled);
	CHECK(ropeway_close(client) == 0 && ropeway_close(server) == 0);
}

struct read_late {
	int s;
	size_t left;
	int has_begun;
};

static void *read_late(void *argument)
{
	struct read_late *late = argument;
	static char block[1 << 16];

	usleep(100000);
	__atomic_store_n(&late->has_begun, 1, __ATOMIC_RELEASE);
	while (late->left > 0) {
		ssize_t count = ropeway_recv(late->s, block, sizeof block, 0);

		CHECK(count > 0);
		late->left -= (size_t)count;
	}
	return NULL;
}

/* Closing waits for the acknowledgment, for as many seconds as it was told. */
static void lingering(void)
{
	struct linger linger = {1, 1};
	struct troubled troubled;
	struct timespec since;
	struct read_late late;
	pthread_t thread;
	char byte;
	int client, server;

	pair(ROPEWAY_STREAM, &client, &server);
	CHECK(ropeway_setsockopt(client, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
	fill(client);
	since = begin_timed(&troubled);
	CHECK(ropeway_close(client) == 0);
	CHECK(end_timed(&troubled, since) >= 999);
	CHECK(ropeway_close(server) == 0);

	pair(ROPEWAY_STREAM, &client, &server);
	linger.l_linger = 60;
	CHECK(ropeway_setsockopt(client, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
	late.s = server;
	late.left = fill(client);
	late.has_begun = 0;
	CHECK(pthread_create(&thread, NULL, read_late, &late) == 0);
	since = begin_timed(&troubled);
	CHECK(ropeway_close(client) == 0);
	CHECK(__atomic_load_n(&late.has_begun, __ATOMIC_ACQUIRE));
	CHECK(end_timed(&troubled, since) < 50000);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(ropeway_recv(server, &byte, 1, 0) == 0);
	CHECK(ropeway_close(server) == 0);
}

/* A thread that is in a call with the socket takes nothing from what SO_LINGER says of its end. */
static void lingering_amid_calls(void)
{
	struct waiting waiting = {one_byte, 0, 0, 7, 0};
	struct linger none = {1, 0}, long_enough = {1, 60};
	int types[] = {ROPEWAY_STREAM, ROPEWAY_MESSAGES}, server;
	struct read_late late;
	pthread_t thread;
	size_t i;

	for (i = 0; i < 2; i++) {
		pair(types[i], &waiting.s, &server);
		CHECK(ropeway_setsockopt(waiting.s, SOL_SOCKET, SO_LINGER, &none, sizeof none) == 0);
		CHECK(pthread_create(&waiting.thread, NULL, wait_there, &waiting) == 0);
		usleep(20000);
		CHECK(ropeway_close(waiting.s) == 0);
		FAILS(one_byte(server), ECONNRESET);
		CHECK(pthread_join(waiting.thread, NULL) == 0 && waiting.result == -1 && waiting.number == EBADF);
		CHECK(ropeway_close(server) == 0);
	}

	/* It is close that waits, and not the other call. */
	pair(ROPEWAY_STREAM, &waiting.s, &server);
	CHECK(ropeway_setsockopt(waiting.s, SOL_SOCKET, SO_LINGER, &long_enough, sizeof long_enough) == 0);
	late.s = server;
	late.left = fill(waiting.s);
	late.has_begun = 0;
	CHECK(pthread_create(&waiting.thread, NULL, wait_there, &waiting) == 0);
	usleep(20000);
	CHECK(pthread_create(&thread, NULL, read_late, &late) == 0);
	CHECK(ropeway_close(waiting.s) == 0);
	CHECK(__atomic_load_n(&late.has_begun, __ATOMIC_ACQUIRE));
	CHECK(pthread_join(waiting.thread, NULL) == 0 && waiting.result == -1 && waiting.number == EBADF);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(one_byte(server) == 0);
	CHECK(ropeway_close(server) == 0);
}

/* Nothing is waited for while a connection is being opened, as with TCP in SYN-SENT. */
static void lingering_while_connecting(void)
{
	struct waiting waiting = {one_byte, 0, 0, 7, 0};
	struct linger linger = {1, 30};
	int udp = bind_silent(), on = 1, off = 0, is_amid_a_call;

	for (is_amid_a_call = 0; is_amid_a_call < 2; is_amid_a_call++) {
		struct timespec since;

		CHECK((waiting.s = ropeway_socket(ROPEWAY_STREAM)) > 0);
		CHECK(ropeway_setsockopt(waiting.s, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
		CHECK(ropeway_setsockopt(waiting.s, SOL_ROPEWAY, ROPEWAY_SO_NONBLOCK, &on, sizeof on) == 0);
		FAILS(ropeway_connect(waiting.s, as_any(&silent), sizeof silent), EINPROGRESS);
		CHECK(ropeway_setsockopt(waiting.s, SOL_ROPEWAY, ROPEWAY_SO_NONBLOCK, &off, sizeof off) == 0);
		if (is_amid_a_call)
			CHECK(pthread_create(&waiting.thread, NULL, wait_there, &waiting) == 0);
		usleep(20000);
		clock_gettime(CLOCK_MONOTONIC, &since);
		CHECK(ropeway_close(waiting.s) == 0);
		CHECK(milliseconds_since(since) < 2000);
		if (is_amid_a_call)
			CHECK(pthread_join(waiting.thread, NULL) == 0 && waiting.result == -1 && waiting.number == EBADF);
	}
	CHECK(close(udp) == 0);
}

/* Between hosts a key is asked for, or the word that none is needed; the test gives neither. */
static void permission(void)
{
	struct sockaddr_in any = loopback(0), elsewhere = loopback(7);
	int s = ropeway_socket(ROPEWAY_STREAM);

	CHECK(s > 0 && inet_pton(AF_INET, "192.0.2.1", &elsewhere.sin_addr) == 1);
	any.sin_addr.s_addr = htonl(INADDR_ANY);
	FAILS(ropeway_bind(s, as_any(&any), sizeof any), EPERM);
	FAILS(ropeway_connect(s, as_any(&elsewhere), sizeof elsewhere), EPERM);
	CHECK(strstr(ropeway_error(), "ROPEWAY_KEY_FILE") && strstr(ropeway_error(), "ROPEWAY_TRUSTED"));
	FAILS(ropeway_serve("0.0.0.0:0", ROPEWAY_MESSAGES, 8), EPERM);
	FAILS(ropeway_dial("192.0.2.1:7", ROPEWAY_MESSAGES), EPERM);
	CHECK(ropeway_close(s) == 0);
}

/* Ends on an Ethernet, of two devices that are joined. */
static void over_ethernet(const char *here, const char *there)
{
	struct sockaddr_ropeway both[2];
	int listeners[2];

	struct sockaddr_ropeway at, to, from;
	socklen_t length = sizeof at;
	char text[64], byte;
	int types[] = {ROPEWAY_STREAM, ROPEWAY_MESSAGES}, l, client, server;
	size_t i;

	/* Listeners share the address, and each is reached at its port, whichever was first. */
	for (i = 0; i < 2; i++) {
		memset(&both[i], 0, sizeof both[i]);
		both[i].sr_family = ROPEWAY_AF_ETHER;
		memcpy(both[i].sr_device, there, strlen(there));
		CHECK((listeners[i] = ropeway_socket(ROPEWAY_STREAM)) > 0);
		CHECK(ropeway_bind(listeners[i], as_any(&both[i]), sizeof both[i]) == 0 && ropeway_listen(listeners[i], 8) == 0);
		length = sizeof both[i];
		CHECK(ropeway_getsockname(listeners[i], as_any(&both[i]), &length) == 0);
		memset(both[i].sr_device, 0, sizeof both[i].sr_device);
		memcpy(both[i].sr_device, here, strlen(here));
	}
	for (i = 0; i < 6; i++) {
		CHECK((client = ropeway_socket(ROPEWAY_STREAM)) > 0);
		CHECK(ropeway_connect(client, as_any(&both[i % 2]), sizeof both[0]) == 0);
		CHECK((server = ropeway_accept(listeners[i % 2], NULL, NULL)) > 0);
		CHECK(ropeway_send(client, "x", 1, 0) == 1 && ropeway_recv(server, &byte, 1, 0) == 1);
		CHECK(ropeway_close(client) == 0 && ropeway_close(server) == 0);
	}
	CHECK(ropeway_close(listeners[0]) == 0 && ropeway_close(listeners[1]) == 0);
	for (i = 0; i < 2; i++) {
		memset(&at, 0, sizeof at);
		at.sr_family = ROPEWAY_AF_ETHER;
		memcpy(at.sr_device, there, strlen(there));
		CHECK((l = ropeway_socket(types[i])) > 0);
		CHECK(ropeway_bind(l, as_any(&at), sizeof at) == 0 && ropeway_listen(l, 8) == 0);
		length = sizeof at;
		CHECK(ropeway_getsockname(l, as_any(&at), &length) == 0 && length == sizeof at);
		CHECK(at.sr_family == ROPEWAY_AF_ETHER && at.sr_port != 0 && strcmp(at.sr_device, there) == 0);
		to = at;
		memset(to.sr_device, 0, sizeof to.sr_device);
		memcpy(to.sr_device, here, strlen(here));
		CHECK((client = ropeway_socket(types[i])) > 0);
		CHECK(ropeway_connect(client, as_any(&to), sizeof to) == 0);
		length = sizeof from;
		CHECK((server = ropeway_accept(l, as_any(&from), &length)) > 0 && length == sizeof from);
		CHECK(strcmp(from.sr_device, there) == 0 && memcmp(from.sr_mac, at.sr_mac, sizeof at.sr_mac) != 0);
		CHECK(ropeway_getpeername(client, as_any(&at), &length) == 0 && memcmp(&at, &to, sizeof to) == 0);
		CHECK(ropeway_getsockname(client, as_any(&at), &length) == 0 && strcmp(at.sr_device, here) == 0);
		CHECK(at.sr_port == from.sr_port && memcmp(at.sr_mac, from.sr_mac, sizeof at.sr_mac) == 0);
		CHECK(ropeway_format(as_any(&from), length, text, sizeof text) == 0 && strncmp(text, there, strlen(there)) == 0);
		CHECK(ropeway_send(client, "x", 1, 0) == 1 && ropeway_recv(server, &byte, 1, 0) == 1 && byte == 'x');
		CHECK(ropeway_send(server, "y", 1, 0) == 1 && ropeway_recv(client, &byte, 1, 0) == 1 && byte == 'y');
		CHECK(ropeway_close(client) == 0 && ropeway_recv(server, &byte, 1, 0) == 0);
		CHECK(ropeway_close(server) == 0 && ropeway_close(l) == 0);
	}
	memset(&at, 0, sizeof at);
	at.sr_family = ROPEWAY_AF_ETHER;
	strcpy(at.sr_device, "no-such-one");
	CHECK((l = ropeway_socket(ROPEWAY_STREAM)) > 0);
	FAILS(ropeway_bind(l, as_any(&at), sizeof at), ENODEV);
	CHECK(ropeway_close(l) == 0);
}

static void closing_wakes(void)
{
	struct waiting all[] = {
		{one_byte, 0, 0, 7, 0},
		{one_byte, 0, 0, 7, 0},
		{one_connection, 0, 0, 7, 0},
		{one_connection, 0, 0, 7, 0},
		{what_nobody_reads, 0, 0, 7, 0},
		{what_nobody_reads, 0, 0, 7, 0},
		{the_rest, 0, 0, 7, 0},
		{to_nobody, 0, 0, 7, 0},
	};
	struct sockaddr_in at;
	int udp = bind_silent(), peers[5], i, round;
	const int count = sizeof all / sizeof *all;

	pair(ROPEWAY_STREAM, &all[0].s, &peers[0]);
	pair(ROPEWAY_MESSAGES, &all[1].s, &peers[1]);
	all[2].s = listener(ROPEWAY_STREAM, &at);
	all[3].s = listener(ROPEWAY_MESSAGES, &at);
	pair(ROPEWAY_STREAM, &all[4].s, &peers[2]);
	pair(ROPEWAY_MESSAGES, &all[5].s, &peers[3]);
	pair(ROPEWAY_STREAM, &all[6].s, &peers[4]);
	CHECK(ropeway_setsockopt(all[6].s, SOL_ROPEWAY, ROPEWAY_SO_NONBLOCK, &count, sizeof count) == 0);
	/* The peer takes some of it into its memory. */
	do {
		FAILS(what_nobody_reads(all[6].s), EAGAIN);
	} while (ropeway_drain(all[6].s, 100) == 0);
	CHECK((all[7].s = ropeway_socket(ROPEWAY_STREAM)) > 0);
	for (i = 0; i < count; i++)
		CHECK(pthread_create(&all[i].thread, NULL, wait_there, &all[i]) == 0);
	/* What waits goes on waiting when signals come. */
	for (round = 0; round < 20; round++) {
		usleep(5000);
		for (i = 0; i < count; i++)
			CHECK(pthread_kill(all[i].thread, SIGUSR1) == 0);
	}
	CHECK(__atomic_exchange_n(&interruptions, 0, __ATOMIC_RELAXED) > 0);
	FAILS(ropeway_connect(all[7].s, as_any(&silent), sizeof silent), EALREADY);
	for (i = 0; i < count; i++)
		CHECK(ropeway_close(all[i].s) == 0);
	for (i = 0; i < count; i++) {
		CHECK(pthread_join(all[i].thread, NULL) == 0);
		if (all[i].result != -1 || all[i].number != EBADF)
			fprintf(stderr, "thread %d: %zd, errno %d\n", i, all[i].result, all[i].number);
		CHECK(all[i].result == -1 && all[i].number == EBADF);
	}
	for (i = 0; i < 5; i++)
		CHECK(ropeway_close(peers[i]) == 0);
	CHECK(close(udp) == 0);
}

static void *answer_the_end(void *argument)
{
	int s = *(int *)argument;
	char byte;

	CHECK(ropeway_recv(s, &byte, 1, 0) == 0);
	/* It may know already that nobody reads this. */
	ropeway_send(s, "late", 4, 0);
	CHECK(ropeway_close(s) == 0);
	return NULL;
}

/* What the peer sends because it has read the end is for none of the calls that this ends. */
static void closing_wakes_with_no_late_answer(void)
{
	const struct {
		int type;
		ssize_t (*call)(int s);
	} kinds[] = {
		{ROPEWAY_STREAM, one_byte},
		{ROPEWAY_STREAM, eight_bytes},
		{ROPEWAY_STREAM, bytes_in_parts},
		{ROPEWAY_MESSAGES, eight_bytes},
		{ROPEWAY_MESSAGES, bytes_in_parts},
	};
	int peer, round;

	for (round = 0; round < 50; round++) {
		struct waiting waiting = {kinds[round % 5].call, 0, 0, 7, 0};
		pthread_t peers;

		pair(kinds[round % 5].type, &waiting.s, &peer);
		CHECK(pthread_create(&peers, NULL, answer_the_end, &peer) == 0);
		CHECK(pthread_create(&waiting.thread, NULL, wait_there, &waiting) == 0);
		usleep((useconds_t)(round % 3 * 500 + 100));
		CHECK(ropeway_close(waiting.s) == 0);
		CHECK(pthread_join(waiting.thread, NULL) == 0 && pthread_join(peers, NULL) == 0);
		CHECK(waiting.result == -1 && waiting.number == EBADF);
	}
}

/* The address of a listener that was closed is free at once, though a thread is still about to leave its call; and that thread takes nobody who comes to the next listener. */
static void listening_anew(void)
{
	struct waiting waiting = {one_connection, 0, 0, 7, 0};
	struct sockaddr_in at;
	socklen_t length = sizeof at;
	char text[64];
	int l = ropeway_serve("127.0.0.1:0", ROPEWAY_STREAM, 8), client, server, round;

	CHECK(l > 0 && ropeway_getsockname(l, as_any(&at), &length) == 0);
	by_text(&at, text, sizeof text);
	for (round = 0; round < 50; round++) {
		waiting.s = l;
		CHECK(pthread_create(&waiting.thread, NULL, wait_there, &waiting) == 0);
		usleep((useconds_t)(round % 10 * 200));
		CHECK(ropeway_close(l) == 0);
		CHECK((l = ropeway_serve(text, ROPEWAY_STREAM, 8)) > 0);
		/* ":7000" is this host as well. */
		CHECK((client = ropeway_dial(round % 2 ? text : strchr(text, ':'), ROPEWAY_STREAM)) > 0);
		CHECK(pthread_join(waiting.thread, NULL) == 0 && waiting.result == -1 && waiting.number == EBADF);
		CHECK((server = ropeway_accept(l, NULL, NULL)) > 0);
		CHECK(ropeway_close(client) == 0 && ropeway_close(server) == 0);
	}
	CHECK(ropeway_close(l) == 0);
}

static void *open_and_close(void *argument)
{
	char byte;

	for (;;) {
		int client, server;

		pair(ROPEWAY_STREAM, &client, &server);
		CHECK(ropeway_send(client, "x", 1, 0) == 1 && ropeway_recv(server, &byte, 1, 0) == 1);
		CHECK(ropeway_descriptor(client) >= 0);
		CHECK(ropeway_close(client) == 0 && ropeway_close(server) == 0);
		pthread_testcancel();
	}
	return argument;
}

static void *wait_and_close(void *argument)
{
	int s = *(int *)argument;

	CHECK(one_byte(s) <= 0);
	pthread_testcancel();
	return NULL;
}

/* No call is a place where a thread is cancelled: that comes after it. */
static void cancelling(void)
{
	pthread_t thread, closer;
	void *result;
	int client, server, round;

	for (round = 0; round < 20; round++) {
		CHECK(pthread_create(&thread, NULL, open_and_close, NULL) == 0);
		usleep((useconds_t)(round * 500));
		CHECK(pthread_cancel(thread) == 0);
		CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
		/* One that waits, and has the last hold of a socket that is closed under it. */
		pair(ROPEWAY_STREAM, &client, &server);
		CHECK(ropeway_descriptor(server) >= 0);
		CHECK(pthread_create(&closer, NULL, wait_and_close, &server) == 0);
		usleep((useconds_t)(round * 100));
		CHECK(pthread_cancel(closer) == 0);
		usleep(1000);
		CHECK(ropeway_close(server) == 0 && ropeway_close(client) == 0);
		CHECK(pthread_join(closer, &result) == 0 && result == PTHREAD_CANCELED);
	}
}

enum { MUCH = 16 << 20 };

static void *read_much(void *argument)
{
	static char buffer[1 << 16];
	ssize_t got, all = 0;

	for (; all < MUCH; all += got)
		CHECK((got = ropeway_recv(*(int *)argument, buffer, sizeof buffer, 0)) > 0);
	pthread_testcancel();
	return NULL;
}

/* Nor is one while another user of the host has a board, which is read now and then while something moves. Only root can put one there. */
static void cancelling_beside_another_user(void)
{
	static char zeros[1 << 20];
	char own[64], name[300], theirs[400] = "";
	int client, server, board;
	ssize_t sent, all = 0;
	struct dirent *entry;
	pthread_t thread;
	struct stat net;
	void *result;
	DIR *boards;

	if (geteuid() != 0)
		return;
	pair(ROPEWAY_STREAM, &client, &server);
	CHECK(stat("/proc/self/ns/net", &net) == 0);
	snprintf(own, sizeof own, "-0-%ju", (uintmax_t)net.st_ino);
	CHECK((boards = opendir("/dev/shm")) != NULL);
	while ((entry = readdir(boards)) != NULL) {
		char *user = strstr(entry->d_name, own);

		if (strncmp(entry->d_name, "ropeway-gate-", 13) == 0 && user != NULL) {
			snprintf(name, sizeof name, "%.*s", (int)(user - entry->d_name), entry->d_name);
			snprintf(theirs, sizeof theirs, "/dev/shm/%s-65533-%ju", name, (uintmax_t)net.st_ino);
		}
	}
	CHECK(closedir(boards) == 0 && theirs[0] != 0);
	CHECK((board = open(theirs, O_CREAT | O_RDWR, 0644)) >= 0);
	CHECK(ftruncate(board, 1 << 14) == 0 && fchown(board, 65533, 65533) == 0);
	CHECK(pthread_create(&thread, NULL, read_much, &server) == 0);
	for (; all < MUCH; all += sent) {
		if (all == MUCH / 4)
			CHECK(pthread_cancel(thread) == 0);
		CHECK((sent = ropeway_send(client, zeros, sizeof zeros, 0)) == sizeof zeros);
	}
	CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	CHECK(unlink(theirs) == 0 && close(board) == 0);
	CHECK(ropeway_close(client) == 0 && ropeway_close(server) == 0);
}

/* Many threads open, use and close the same few sockets: all calls succeed or say why not. */
static int contested[4];

static void *contest(void *argument)
{
	unsigned seed = (unsigned)(size_t)argument;
	struct sockaddr_in at = loopback(9);
	char bytes[100];
	int round;

	for (round = 0; round < 3000; round++) {
		int *place = &contested[rand_r(&seed) % 4], s = __atomic_load_n(place, __ATOMIC_RELAXED);
		ssize_t result;

		errno = 0;
		switch (rand_r(&seed) % 8) {
		case 0:
			result = ropeway_close(s);
			break;
		case 1:
			result = ropeway_socket((rand_r(&seed) % 2 ? ROPEWAY_STREAM : ROPEWAY_MESSAGES) | ROPEWAY_NONBLOCK);
			if (result > 0)
				ropeway_close(__atomic_exchange_n(place, (int)result, __ATOMIC_RELAXED));
			break;
		case 2:
			result = ropeway_connect(s, as_any(&at), sizeof at);
			break;
		case 3:
			at = loopback(0);
			result = ropeway_bind(s, as_any(&at), sizeof at);
			at = loopback(9);
			break;
		case 4:
			result = ropeway_listen(s, 2);
			break;
		case 5:
			result = ropeway_accept(s, NULL, NULL);
			if (result > 0)
				ropeway_close((int)result);
			break;
		case 6:
			result = ropeway_send(s, bytes, sizeof bytes, 0);
			break;
		default:
			result = ropeway_recv(s, bytes, sizeof bytes, 0);
			break;
		}
		CHECK(result >= -1 && (result >= 0 || ropeway_error()[0]));
	}
	return NULL;
}

static void contests(void)
{
	pthread_t threads[6];
	size_t i;

	for (i = 0; i < 6; i++)
		CHECK(pthread_create(&threads[i], NULL, contest, (void *)(i + 1)) == 0);
	for (i = 0; i < 6; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	for (i = 0; i < 4; i++)
		ropeway_close(contested[i]);
}

#define THREADS 8
#define ROUNDS 2000

static void *hammer(void *argument)
{
	int s = *(int *)argument, round;
	char message[64];

	for (round = 0; round < ROUNDS; round++) {
		CHECK(ropeway_send(s, message, (size_t)(round % 60) + 1, 0) > 0);
		CHECK(ropeway_recv(s, message, sizeof message, 0) > 0);
	}
	return NULL;
}

static void *answer(void *argument)
{
	int s = *(int *)argument, round;
	char message[64];

	for (round = 0; round < ROUNDS; round++) {
		ssize_t count = ropeway_recv(s, message, sizeof message, 0);

		CHECK(count > 0 && ropeway_send(s, message, (size_t)count, 0) == count);
	}
	return NULL;
}

/* Many threads on one connection: whole messages, as many as were sent. */
static void threads(void)
{
	pthread_t all[2 * THREADS];
	int client, server, i;

	pair(ROPEWAY_MESSAGES, &client, &server);
	for (i = 0; i < THREADS; i++) {
		CHECK(pthread_create(&all[i], NULL, hammer, &client) == 0);
		CHECK(pthread_create(&all[THREADS + i], NULL, answer, &server) == 0);
	}
	for (i = 0; i < 2 * THREADS; i++)
		CHECK(pthread_join(all[i], NULL) == 0);
	CHECK(ropeway_close(client) == 0 && ropeway_close(server) == 0);
}

static void forks(void)
{
	struct sockaddr_in at;
	char byte = 'x';
	int l = listener(ROPEWAY_STREAM, &at), client, server, status = -1;
	pid_t child;

	CHECK((client = ropeway_socket(ROPEWAY_STREAM)) > 0);
	CHECK(ropeway_connect(client, as_any(&at), sizeof at) == 0);
	CHECK((server = ropeway_accept(l, NULL, NULL)) > 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		int own;

		FAILS(ropeway_send(client, &byte, 1, 0), EBADF);
		FAILS(ropeway_close(client), EBADF);
		CHECK((own = ropeway_socket(ROPEWAY_STREAM)) > 0);
		CHECK(ropeway_connect(own, as_any(&at), sizeof at) == 0);
		/* As servers do that fork for each client: what is their parents' is not their own, whatever they have opened since. */
		CHECK(own != l && own != client && own != server);
		FAILS(ropeway_close(l), EBADF);
		CHECK(ropeway_send(own, "child", 5, 0) == 5);
		/* Not closed: the exit delivers it. */
		exit(0);
	}
	{
		int from_child = ropeway_accept(l, NULL, NULL);
		char text[5];

		CHECK(from_child > 0 && ropeway_recv(from_child, text, 5, MSG_WAITALL) == 5 && memcmp(text, "child", 5) == 0);
		CHECK(ropeway_recv(from_child, text, 5, 0) == 0);
		CHECK(ropeway_close(from_child) == 0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(ropeway_send(client, &byte, 1, 0) == 1 && ropeway_recv(server, &byte, 1, 0) == 1);
	CHECK(ropeway_close(client) == 0 && ropeway_close(server) == 0 && ropeway_close(l) == 0);
}

static volatile int is_over;

static void *restless(void *argument)
{
	int s = *(int *)argument;
	char message[64] = {0};

	while (!is_over)
		CHECK(ropeway_send(s, message, 64, 0) == 64 && ropeway_recv(s, message, 64, 0) == 64);
	CHECK(ropeway_close(s) == 0);
	return NULL;
}

static void *reflector(void *argument)
{
	int s = *(int *)argument, ended = 0;
	socklen_t size = sizeof ended;
	char message[64];
	ssize_t count;

	while ((count = ropeway_recv(s, message, 64, 0)) > 0)
		CHECK(ropeway_send(s, message, (size_t)count, 0) == count);
	CHECK(count == 0 && ropeway_getsockopt(s, SOL_ROPEWAY, ROPEWAY_SO_ENDED, &ended, &size) == 0 && ended);
	CHECK(ropeway_close(s) == 0);
	return NULL;
}

/* Children made while other threads are in the middle of calls. */
static void forks_amid_calls(void)
{
	pthread_t threads[2];
	int client, server, round;

	pair(ROPEWAY_MESSAGES, &client, &server);
	CHECK(pthread_create(&threads[0], NULL, restless, &client) == 0);
	CHECK(pthread_create(&threads[1], NULL, reflector, &server) == 0);
	for (round = 0; round < 20; round++) {
		int status = -1;
		pid_t child = fork();

		CHECK(child >= 0);
		if (child == 0) {
			int own, other;
			char byte = 0;

			alarm(30);
			FAILS(ropeway_send(client, &byte, 1, 0), EBADF);
			pair(ROPEWAY_STREAM, &own, &other);
			CHECK(ropeway_send(own, "x", 1, 0) == 1 && ropeway_recv(other, &byte, 1, 0) == 1);
			CHECK(ropeway_close(own) == 0 && ropeway_close(other) == 0);
			exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	is_over = 1;
	CHECK(pthread_join(threads[0], NULL) == 0 && pthread_join(threads[1], NULL) == 0);
}

int main(int argc, char **argv)
{
	handle_signals();
	if (argc == 3) {
		over_ethernet(argv[1], argv[2]);
		printf("all calls keep their word over Ethernet\n");
		return 0;
	}
	/* Before all others: its handles are the first of this process, as those of its child are. */
	forks();
	permission();
	misuse();
	streams();
	backlogs();
	messages();
	scattered();
	limits_and_options();
	descriptors();
	destinations();
	texts();
	connecting_by_text();
	dialling_without_waiting();
	limits_of_sending();
	limits_of_waiting_for_all();
	looks_at_all();
	lingering();
	lingering_amid_calls();
	lingering_while_connecting();
	closing_wakes();
	closing_wakes_with_no_late_answer();
	listening_anew();
	cancelling();
	cancelling_beside_another_user();
	contests();
	threads();
	forks_amid_calls();
	printf("all calls keep their word\n");
	return 0;
}
