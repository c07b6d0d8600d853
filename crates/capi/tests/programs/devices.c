/* What is opened after a network device was taken away and has come back, or bears longer packets, or while a host on it is absent; the test program of crates/capi/tests/c.rs, for a network of its own. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cdp.h>
#include <ropeway.h>

#include "check.h"

/* For what should happen, in tenths of a second. */
#define SOON 100

static struct cdp_sockaddr there = {2, 7100};

/* Two that are joined. */
static void make_devices(void)
{
	CHECK(system("ip link add one address 02:00:00:00:00:01 type veth peer name other address 02:00:00:00:00:02"
		     " && ip link set one up && ip link set other up") == 0);
}

static void replace_devices(void)
{
	CHECK(system("ip link delete one") == 0);
	make_devices();
}

/* A connection between the devices that are there now; the library may have to notice that others are gone. */
static void meet(int *client, int *server)
{
	int l, tries = 0;
	char byte;

	CHECK((l = ropeway_serve("other/*:7001", ROPEWAY_STREAM, 4)) > 0);
	while ((*client = ropeway_dial("one/02:00:00:00:00:02:7001", ROPEWAY_STREAM)) < 0) {
		CHECK(tries++ < SOON);
		usleep(100000);
	}
	CHECK((*server = ropeway_accept(l, NULL, NULL)) > 0);
	CHECK(ropeway_send(*client, "x", 1, 0) == 1 && ropeway_recv(*server, &byte, 1, 0) == 1 && byte == 'x');
	CHECK(ropeway_close(l) == 0);
}

static void sockets(void)
{
	int former[2], client, server;

	meet(&former[0], &former[1]);
	replace_devices();
	/* Those of before are still open. */
	meet(&client, &server);
	CHECK(ropeway_close(client) == 0 && ropeway_close(server) == 0);
	CHECK(ropeway_close(former[0]) == 0 && ropeway_close(former[1]) == 0);
}

/* Node 2: takes a datagram, and once more when it is told that the devices are others. */
static void receive(int told, int tells)
{
	const char *interfaces[] = {"other"};
	char byte;
	int round;

	CHECK(cdp_init(2, interfaces, 1, 0) == 0);
	for (round = 0; round < 2; round++) {
		int l, s;

		CHECK(read(told, &byte, 1) == 1);
		CHECK((l = cdp_socket()) >= 0 && cdp_bind(l, &there) == 0 && cdp_listen(l, 4) == 0);
		CHECK(write(tells, "l", 1) == 1);
		CHECK((s = cdp_accept(l, NULL, 0)) >= 0 && cdp_recv(s, &byte, 1, 0) == 1 && byte == 'x');
		CHECK(cdp_close(s) == 0 && cdp_close(l) == 0);
	}
}

static void nodes(int tells, int told)
{
	const char *interfaces[] = {"one"};
	int round;

	CHECK(cdp_init(1, interfaces, 1, 0) == 0);
	for (round = 0; round < 2; round++) {
		int s, tries = 0;
		char byte;

		if (round == 1)
			replace_devices();
		CHECK(write(tells, "r", 1) == 1 && read(told, &byte, 1) == 1);
		CHECK((s = cdp_socket()) >= 0);
		while (cdp_connect(s, &there) < 0) {
			CHECK(tries++ < SOON);
			usleep(100000);
		}
		CHECK(cdp_send(s, "x", 1) == 1 && cdp_close(s) == 0);
	}
}

/* Who listens is met by who comes when packets may be longer. */
static void raised(void)
{
	int l, client, server;
	char byte;

	CHECK((l = ropeway_serve("other/*:7001", ROPEWAY_STREAM, 4)) > 0);
	CHECK(system("ip link set one mtu 9000 && ip link set other mtu 9000") == 0);
	CHECK((client = ropeway_dial("one/02:00:00:00:00:02:7001", ROPEWAY_STREAM)) > 0);
	CHECK((server = ropeway_accept(l, NULL, NULL)) > 0);
	CHECK(ropeway_send(client, "x", 1, 0) == 1 && ropeway_recv(server, &byte, 1, 0) == 1 && byte == 'x');
	CHECK(ropeway_close(client) == 0 && ropeway_close(server) == 0 && ropeway_close(l) == 0);
}

/* Connects to an IP address on device one, fails with that within so many milliseconds. */
static void fails_within(int s, int number, long most_ms)
{
	struct timespec since, now;
	int failed, found;

	clock_gettime(CLOCK_MONOTONIC, &since);
	failed = ropeway_connect_to(s, "10.66.0.2:7001");
	found = errno;
	clock_gettime(CLOCK_MONOTONIC, &now);
	CHECK(failed == -1 && found == number);
	CHECK((now.tv_sec - since.tv_sec) * 1000 + (now.tv_nsec - since.tv_nsec) / 1000000 < most_ms);
}

/* Who has an IP address is not waited for longer than the caller waits; once it is known that is no question. */
static void absent(void)
{
	struct timeval limit = {0, 100000};
	int s;

	CHECK(system("ip address add 10.66.0.1/24 dev one") == 0);
	CHECK((s = ropeway_socket(ROPEWAY_STREAM)) > 0);
	CHECK(ropeway_setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0);
	fails_within(s, EHOSTUNREACH, 1000);
	CHECK(ropeway_close(s) == 0 && (s = ropeway_socket(ROPEWAY_STREAM | ROPEWAY_NONBLOCK)) > 0);
	fails_within(s, EHOSTUNREACH, 100);
	fails_within(s, EHOSTUNREACH, 100);
	CHECK(system("ip neighbour replace 10.66.0.2 lladdr 02:00:00:00:00:02 dev one") == 0);
	fails_within(s, EINPROGRESS, 100);
	CHECK(ropeway_close(s) == 0);
}

int main(int argc, char **argv)
{
	int to_child[2], to_parent[2], status = -1;
	pid_t child;

	make_devices();
	if (argc > 1 && strcmp(argv[1], "raised") == 0) {
		raised();
		printf("devices may bear more\n");
		return 0;
	}
	if (argc > 1 && strcmp(argv[1], "absent") == 0) {
		absent();
		printf("hosts may be absent\n");
		return 0;
	}
	CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0);
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		receive(to_child[0], to_parent[1]);
		exit(0);
	}
	nodes(to_child[1], to_parent[0]);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	sockets();
	printf("devices may come back\n");
	return 0;
}
