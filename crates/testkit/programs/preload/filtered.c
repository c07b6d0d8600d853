/* A seccomp filter that allows what the program itself does from then on, and kills it for anything else. */
#include "transcript.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

static int ends[2];

int main(int argc, char **argv)
{
    connection(ends);
    /* How programs ask whether the kernel knows filters. */
    T(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL));
    T(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL));
    for (int i = 0; i < 100; i++)
        through(ends[0], ends[1], "before the filter");
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendto, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_recvfrom, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof code / sizeof *code, code };
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    if (argc > 1 && !strcmp(argv[1], "by number"))
        MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
    else
        MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    for (int i = 0; i < 1000; i++)
        through(ends[0], ends[1], "behind the filter");
    T(close(ends[0]));
    T(close(ends[1]));
    return 0;
}
