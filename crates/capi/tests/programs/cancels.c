/* Threads that are cancelled in calls which close descriptors because the network changes; the test program of crates/capi/tests/c.rs, for a network of its own. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ropeway.h>

#include "check.h"

/* For what should happen, in tenths of a second. */
#define SOON 100

static int is_asked, is_cancelled;

static void join_cancelled(pthread_t thread)
{
	void *result;

	CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
}

static void *answer(void *argument)
{
	char byte;

	CHECK(ropeway_recv(*(int *)argument, &byte, 1, 0) == 1);
	__atomic_store_n(&is_asked, 1, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&is_cancelled, __ATOMIC_ACQUIRE))
		sched_yield();
	CHECK(ropeway_send(*(int *)argument, "y", 1, 0) == 1);
	pthread_testcancel();
	return NULL;
}

static int dial(const char *to)
{
	int s, tries = 0;

	while ((s = ropeway_dial(to, ROPEWAY_STREAM)) < 0) {
		CHECK(tries++ < SOON);
		usleep(100000);
	}
	return s;
}

/* One that answers under an address which the host has not got any more. */
static void without_its_address(void)
{
	int there[2], listener, server;
	pthread_t thread;
	pid_t client;
	char byte;

	CHECK(system("ip link set lo up && ip link add one type veth peer name other && ip link set other up"
		     " && ip address add 10.9.0.1/24 dev one && ip link set one up") == 0);
	CHECK(pipe(there) == 0 && (client = fork()) >= 0);
	if (client == 0) {
		CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && read(there[0], &byte, 1) == 1);
		CHECK(ropeway_send(dial("10.9.0.1:7002"), "x", 1, 0) == 1);
		pause();
	}
	CHECK((listener = ropeway_serve("0.0.0.0:7002", ROPEWAY_STREAM, 4)) > 0 && write(there[1], "l", 1) == 1);
	CHECK((server = ropeway_accept(listener, NULL, NULL)) > 0);
	CHECK(pthread_create(&thread, NULL, answer, &server) == 0);
	while (!__atomic_load_n(&is_asked, __ATOMIC_ACQUIRE))
		usleep(1000);
	CHECK(system("ip address delete 10.9.0.1/24 dev one") == 0);
	CHECK(pthread_cancel(thread) == 0);
	__atomic_store_n(&is_cancelled, 1, __ATOMIC_RELEASE);
	join_cancelled(thread);
	CHECK(kill(client, SIGKILL) == 0 && waitpid(client, NULL, 0) == client);
	CHECK(ropeway_close(server) == 0 && ropeway_close(listener) == 0);
	CHECK(system("ip link delete one") == 0);
}

static void *wait_in_vain(void *argument)
{
	char byte;

	CHECK(ropeway_recv(*(int *)argument, &byte, 1, 0) == -1);
	pthread_testcancel();
	return NULL;
}

/* One that waits at a device which is taken away. */
static void without_its_device(void)
{
	int listener, client, server;
	pthread_t thread;

	CHECK(system("ip link add one address 02:00:00:00:00:01 type veth peer name other address 02:00:00:00:00:02"
		     " && ip link set one up && ip link set other up") == 0);
	CHECK((listener = ropeway_serve("other/*:7001", ROPEWAY_STREAM, 4)) > 0);
	client = dial("one/02:00:00:00:00:02:7001");
	CHECK((server = ropeway_accept(listener, NULL, NULL)) > 0);
	CHECK(pthread_create(&thread, NULL, wait_in_vain, &server) == 0);
	usleep(100000);
	CHECK(pthread_cancel(thread) == 0);
	CHECK(system("ip link delete one") == 0);
	/* That its device is gone is no end of a connection. */
	usleep(200000);
	CHECK(ropeway_close(server) == 0);
	join_cancelled(thread);
	CHECK(ropeway_close(client) == 0 && ropeway_close(listener) == 0);
}

int main(void)
{
	without_its_address();
	without_its_device();
	printf("cancelled after the calls\n");
	return 0;
}
