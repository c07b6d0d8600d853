/*
 * The calls of document 0: node 2 sends a few datagrams to node 1, which prints them.
 *
 *   export ROPEWAY_NODES=1=127.0.0.1,2=127.0.0.2
 *   cdp 1 lo
 *   cdp 2 lo Some words to send
 *
 * cc -o cdp cdp.c $(pkg-config --cflags --libs ropeway)
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cdp.h>
#include <ropeway.h>

#define PORT 7003

static void die(const char *doing)
{
	fprintf(stderr, "%s: %s\n", doing, ropeway_error());
	exit(1);
}

static void receive(void)
{
	struct cdp_sockaddr local = {1, PORT}, from;
	char datagram[1472];
	int listener = cdp_socket(), s, count;

	if (listener < 0 || cdp_bind(listener, &local) || cdp_listen(listener, 5))
		die("listen");
	printf("listening\n");
	fflush(stdout);
	s = cdp_accept(listener, &from, 0);
	if (s < 0)
		die("accept");
	printf("from node %d\n", from.node);
	while ((count = cdp_recv(s, datagram, sizeof datagram, 0)) >= 0)
		printf("%.*s\n", count, datagram);
	/* Negative, and all was received: the other end has closed. */
	if (errno != ENOTCONN)
		die("receive");
	cdp_close(s);
	cdp_close(listener);
}

static void transmit(char **words)
{
	struct cdp_sockaddr to = {1, PORT};
	int s = cdp_socket();

	if (s < 0 || cdp_connect(s, &to))
		die("connect");
	for (; *words; words++)
		if (cdp_send(s, *words, strlen(*words)) < 0)
			die("send");
	cdp_close(s);
}

int main(int argc, char **argv)
{
	const char *interfaces[1];

	if (argc < 3) {
		fprintf(stderr, "usage: cdp NODE INTERFACE [WORD...]\n");
		return 2;
	}
	interfaces[0] = argv[2];
	if (cdp_init(atoi(argv[1]), interfaces, 1, 0))
		die("init");
	if (argc == 3)
		receive();
	else
		transmit(argv + 3);
	return 0;
}
