/* A program with much thread-local memory, which is taken out of the stacks of all threads; a test program of crates/capi/tests/c.rs. */
#include <poll.h>
#include <string.h>

#include "check.h"

/* The test has this replaced. */
#define TLS_BYTES 300000

static __thread char own[TLS_BYTES];

static char bytes[1 << 20];

/* Waits until there is something at `s`: what the library does meanwhile its own threads do. */
static void await(int s, short what)
{
	struct pollfd descriptor = {.fd = ropeway_descriptor(s), .events = what};

	CHECK(poll(&descriptor, 1, 20000) == 1);
}

int main(void)
{
	int l = ropeway_serve("127.0.0.1:0", ROPEWAY_STREAM | ROPEWAY_NONBLOCK, 8);
	int s = ropeway_socket(ROPEWAY_STREAM | ROPEWAY_NONBLOCK), c;
	struct sockaddr_storage at;
	socklen_t length = sizeof at;
	ssize_t sent, got = 0, more;

	memset(own, 1, sizeof own);
	CHECK(l > 0 && s > 0 && ropeway_getsockname(l, (struct sockaddr *)&at, &length) == 0);
	CHECK(ropeway_connect(s, (struct sockaddr *)&at, length) == 0 || errno == EINPROGRESS);
	await(l, POLLIN);
	CHECK((c = ropeway_accept(l, NULL, NULL)) > 0);
	await(s, POLLOUT);
	CHECK((sent = ropeway_send(c, bytes, sizeof bytes, 0)) > 0);
	/* A thread keeps what has not arrived. */
	CHECK(ropeway_close(c) == 0 && ropeway_close(l) == 0);
	do {
		await(s, POLLIN);
		CHECK((more = ropeway_recv(s, bytes, sizeof bytes, 0)) >= 0 || errno == EAGAIN);
		got += more > 0 ? more : 0;
	} while (more != 0);
	CHECK(got == sent && ropeway_close(s) == 0);
	puts("there is a stack beside it");
	return 0;
}
