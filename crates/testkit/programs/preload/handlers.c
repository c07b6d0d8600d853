/* The C library's ways to install a signal handler: what they return, what the handler is given, what remains afterwards. */
#include "transcript.h"

#include <setjmp.h>
#include <sys/time.h>
#include <ucontext.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static void plain(int number) { say("plain handler: %s", sigabbrev_np(number)); }

static void detailed(int number, siginfo_t *info, void *context)
{
    sigset_t inside;
    sigprocmask(SIG_BLOCK, NULL, &inside);
    const ucontext_t *before = context;
    say("detailed handler: %s code %d value %d, itself %sblocked, SIGUSR2 %sblocked, before it SIGUSR2 %sblocked",
        sigabbrev_np(number), info->si_code, info->si_value.sival_int, sigismember(&inside, number) ? "" : "not ",
        sigismember(&inside, SIGUSR2) ? "" : "not ", sigismember(&before->uc_sigmask, SIGUSR2) ? "" : "not ");
}

static const char *name_of(void *handler)
{
    if (handler == (void *)plain)
        return "plain";
    if (handler == (void *)detailed)
        return "detailed";
    if (handler == (void *)SIG_DFL)
        return "default";
    if (handler == (void *)SIG_IGN)
        return "ignore";
    if (handler == (void *)SIG_ERR)
        return "error";
    return handler == (void *)SIG_HOLD ? "hold" : "somebody else's";
}

static void show(int number)
{
    struct sigaction now;
    MUST(sigaction(number, NULL, &now));
    say("%s: %s flags %#x, masks SIGUSR1 %d SIGUSR2 %d itself %d", sigabbrev_np(number), name_of((void *)now.sa_sigaction),
        (unsigned)now.sa_flags & ~0x04000000u /* SA_RESTORER */, sigismember(&now.sa_mask, SIGUSR1),
        sigismember(&now.sa_mask, SIGUSR2), sigismember(&now.sa_mask, number));
}

static void by_sigaction(void)
{
    static const int flags[] = { 0, SA_RESTART, SA_NODEFER, SA_RESETHAND, SA_SIGINFO, SA_SIGINFO | SA_RESETHAND | SA_NODEFER,
        SA_SIGINFO | SA_ONSTACK | SA_RESTART, SA_NOCLDSTOP | SA_NOCLDWAIT };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        struct sigaction new = { .sa_flags = flags[i] }, old;
        if (flags[i] & SA_SIGINFO)
            new.sa_sigaction = detailed;
        else
            new.sa_handler = plain;
        sigaddset(&new.sa_mask, SIGUSR2);
        T(sigaction(SIGUSR1, &new, &old));
        say("before: %s flags %#x", name_of((void *)old.sa_sigaction), (unsigned)old.sa_flags & ~0x04000000u);
        show(SIGUSR1);
        T(sigqueue(getpid(), SIGUSR1, (union sigval) { .sival_int = (int)i }));
        show(SIGUSR1);
    }
    T(sigaction(SIGUSR1, &(struct sigaction) { .sa_handler = SIG_IGN }, NULL));
    show(SIGUSR1);
    raise(SIGUSR1);
    T(sigaction(SIGKILL, &(struct sigaction) { .sa_handler = plain }, NULL));
    T(sigaction(0, &(struct sigaction) { .sa_handler = plain }, NULL));
    T(sigaction(65, &(struct sigaction) { .sa_handler = plain }, NULL));
    T(sigaction(32, &(struct sigaction) { .sa_handler = plain }, NULL));
    T(sigaction(SIGRTMAX, &(struct sigaction) { .sa_handler = plain }, NULL));
    T(raise(SIGRTMAX));
}

extern void (*bsd_signal(int, void (*)(int)))(int);
extern void (*sysv_signal(int, void (*)(int)))(int);

static void by_older_functions(void)
{
    say("signal: %s", name_of((void *)signal(SIGUSR1, plain)));
    show(SIGUSR1);
    raise(SIGUSR1);
    raise(SIGUSR1);
    say("bsd_signal: %s", name_of((void *)bsd_signal(SIGUSR1, SIG_DFL)));
    show(SIGUSR1);
    say("sysv_signal: %s", name_of((void *)sysv_signal(SIGUSR1, plain)));
    show(SIGUSR1);
    raise(SIGUSR1);
    show(SIGUSR1);
    say("ssignal: %s", name_of((void *)ssignal(SIGUSR1, plain)));
    T(siginterrupt(SIGUSR1, 1));
    show(SIGUSR1);
    say("signal: %s", name_of((void *)signal(SIGUSR1, plain)));
    show(SIGUSR1);
    T(siginterrupt(SIGUSR1, 0));
    show(SIGUSR1);
    say("signal: %s", name_of((void *)signal(SIGUSR1, SIG_IGN)));
    T(siginterrupt(SIGUSR1, 1));
    T(siginterrupt(0, 1));
    T(siginterrupt(SIGUSR1, 0));
    say("signal: %s", name_of((void *)signal(SIGKILL, plain)));
    say("signal: %s", name_of((void *)signal(SIGUSR1, SIG_ERR)));
    say("sigset: %s", name_of((void *)sigset(SIGUSR1, plain)));
    show(SIGUSR1);
    say("sigset: %s", name_of((void *)sigset(SIGUSR1, SIG_HOLD)));
    raise(SIGUSR1);
    say("held");
    say("sigset: %s", name_of((void *)sigset(SIGUSR1, SIG_HOLD)));
    say("sigset: %s", name_of((void *)sigset(SIGUSR1, plain)));
    say("sigset: %s", name_of((void *)sigset(70, plain)));
    say("sigset: %s", name_of((void *)sigset(SIGUSR1, SIG_DFL)));
}

static sigjmp_buf back;
static void jumps(int number) { siglongjmp(back, number); }

static void leaving_a_handler(void)
{
    signal(SIGUSR2, jumps);
    int number = sigsetjmp(back, 1);
    if (number == 0) {
        raise(SIGUSR2);
        say("not reached");
    }
    sigset_t now;
    sigprocmask(SIG_BLOCK, NULL, &now);
    say("back with %s, blocked %d", sigabbrev_np(number), sigismember(&now, SIGUSR2));
}

static void fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    say("fault: %s code %d at %p", sigabbrev_np(number), info->si_code, info->si_addr);
    siglongjmp(back, 1);
}

static volatile char *volatile nowhere = (char *)16;

static void faults(void)
{
    show(SIGSEGV);
    struct sigaction action = { .sa_sigaction = fault, .sa_flags = SA_SIGINFO };
    T(sigaction(SIGSEGV, &action, NULL));
    if (sigsetjmp(back, 1) == 0)
        *nowhere = 1;
    show(SIGSEGV);
    T(sigaction(SIGSEGV, &(struct sigaction) { .sa_handler = SIG_DFL }, NULL));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0)
        *nowhere = 1;
    reap(child);
}

static volatile int alarms;
static void count_alarm(int number) { (void)number, alarms++; }

static void interruptions(void)
{
    int pipes[2];
    char byte;
    MUST(pipe(pipes));
    struct itimerval soon = { .it_value.tv_usec = 30000 };
    sigaction(SIGALRM, &(struct sigaction) { .sa_handler = count_alarm }, NULL);
    setitimer(ITIMER_REAL, &soon, NULL);
    T(read(pipes[0], &byte, 1));
    setitimer(ITIMER_REAL, &soon, NULL);
    T(poll(&(struct pollfd) { pipes[0], POLLIN, 0 }, 1, -1));
    setitimer(ITIMER_REAL, &soon, NULL);
    T(pause());
    say("alarms: %d", alarms);
}

int main(void)
{
    by_sigaction();
    by_older_functions();
    leaving_a_handler();
    faults();
    interruptions();
    return 0;
}
