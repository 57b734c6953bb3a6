/* prctl(2) with PR_SCHED_CORE as the kernel has it with CONFIG_SCHED_CORE (kernel/sched/core_sched.c),
 * over a table in the file TABLE. A thread without a line has the cookie of its process if that is
 * this one, else none. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LINES 4096

struct line {
	int thread;
	int forbidden;
	unsigned long cookie;
};

struct table {
	int refusal;
	int commands;
	unsigned long last;
	struct line lines[LINES];
};

static struct table *table(void)
{
	static struct table *mapped;

	if (!mapped) {
		int file = open(TABLE, O_RDWR | O_CLOEXEC);

		mapped = mmap(NULL, sizeof(*mapped), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		close(file);
	}
	return mapped;
}

static struct line *line_of(int thread)
{
	struct line *line = table()->lines;

	while (line->thread && line->thread != thread)
		line++;
	return line;
}

static int missing(const char *form, int thread)
{
	char path[64];

	snprintf(path, sizeof(path), form, thread);
	return access(path, F_OK);
}

static unsigned long cookie_of(int thread)
{
	struct line *line = line_of(thread);

	if (!line->thread && !missing("/proc/self/task/%d", thread))
		line = line_of(getpid());
	return line->cookie;
}

static void set(int thread, unsigned long cookie)
{
	struct line *line = line_of(thread);

	line->thread = thread;
	line->cookie = cookie;
}

static int failed(int error)
{
	errno = error;
	return -1;
}

int prctl(int option, unsigned long command, unsigned long of, unsigned long scope,
	  unsigned long address)
{
	int self = gettid(), thread = of ? (int)of : self;

	if (option != 62)
		return syscall(SYS_prctl, option, command, of, scope, address);
	if (table()->refusal)
		return failed(table()->refusal);
	if (command > 3 || scope != 0 || (command != 0 && address))
		return failed(EINVAL);
	if (missing("/proc/%d", thread))
		return failed(ESRCH);
	if (line_of(thread)->forbidden)
		return failed(EPERM);
	table()->commands += command != 0;
	switch (command) {
	case 0:
		if (!address || address & 7)
			return failed(EINVAL);
		*(unsigned long *)address = cookie_of(thread);
		break;
	case 1:
		set(thread, ++table()->last);
		break;
	case 2:
		set(thread, cookie_of(self));
		break;
	case 3:
		set(self, cookie_of(thread));
		break;
	}
	return 0;
}
