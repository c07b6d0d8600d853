/* io_uring, which would work past every function of the C library. */
#include "transcript.h"

int main(void)
{
    char parameters[256] = { 0 };
    long ring = syscall(SYS_io_uring_setup, 4, parameters);
    say("io_uring: %s", ring >= 0 ? "there" : error_name(errno));
    return 0;
}
