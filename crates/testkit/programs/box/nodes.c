/* Nodes of document 0, one in a process, for crates/testkit/tests/gateways.rs. Datagrams bear their number; the receiver wants every one, in order. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cdp.h>
#include <ropeway.h>

#define BYTES 1000

static void die(const char *doing)
{
	fprintf(stderr, "%s: %s\n", doing, ropeway_error());
	exit(1);
}

static void say(const char *what, long number)
{
	printf("%s %ld\n", what, number);
	fflush(stdout);
}

static void receive(int node, int port)
{
	struct cdp_sockaddr local = {node, port}, from;
	int listener = cdp_socket(), s, count;
	char datagram[2 * BYTES];
	long total = 0;

	if (listener < 0 || cdp_bind(listener, &local) || cdp_listen(listener, 5))
		die("listen");
	say("listening as", node);
	if ((s = cdp_accept(listener, &from, 0)) < 0)
		die("accept");
	say("from", from.node);
	while ((count = cdp_recv(s, datagram, sizeof datagram, 0)) >= 0) {
		if (count != BYTES || atol(datagram) != total) {
			fprintf(stderr, "%d bytes of %.10s in place of %ld\n", count, datagram, total);
			exit(1);
		}
		if (++total % 1000 == 0)
			say("received", total);
	}
	if (errno != ENOTCONN)
		die("receive");
	say("total", total);
}

static void transmit(int node, int port, long total)
{
	struct cdp_sockaddr to = {node, port};
	char datagram[BYTES];
	int s = cdp_socket();
	long at;

	if (s < 0 || cdp_connect(s, &to))
		die("connect");
	memset(datagram, 0, sizeof datagram);
	for (at = 0; at < total; at++) {
		snprintf(datagram, sizeof datagram, "%ld", at);
		if (cdp_send(s, datagram, sizeof datagram) != BYTES)
			die("send");
	}
	cdp_close(s);
}

int main(int argc, char **argv)
{
	const char *role = argc > 1 ? argv[1] : "", *interfaces[] = {"eth0", "eth1"};
	int node = argc > 2 ? atoi(argv[2]) : 0, forward = strcmp(role, "forward") == 0;

	if (cdp_init(node, interfaces, forward ? 2 : 1, forward))
		die("init");
	if (forward) {
		say("forwarding as", node);
		for (;;)
			pause();
	}
	if (strcmp(role, "receive") == 0 && argc == 4)
		receive(node, atoi(argv[3]));
	else if (strcmp(role, "send") == 0 && argc == 6)
		transmit(atoi(argv[3]), atoi(argv[4]), atol(argv[5]));
	else
		return 2;
	return 0;
}
