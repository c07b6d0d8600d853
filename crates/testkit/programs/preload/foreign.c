/* For another C library than glibc: sockets, signals and processes in one line. */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int signals;
static void handler(int number) { (void)number, signals++; }

int main(void)
{
    char text[16] = "";
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    signal(SIGUSR1, handler);
    raise(SIGUSR1);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1))
        return 1;
    getsockname(listener, (struct sockaddr *)&address, &length);
    int to = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(to, (struct sockaddr *)&address, length))
        return 2;
    int from = accept(listener, NULL, NULL);
    if (send(to, "hello", 5, 0) != 5 || recv(from, text, sizeof text - 1, 0) != 5)
        return 3;
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(3);
    waitpid(child, &status, 0);
    printf("%s, child %d, signal %d\n", text, WEXITSTATUS(status), signals);
    return 0;
}
