/* Relays a unix socket and interprets nothing: the least that any proxy in front of the runtime
 * costs. Each message takes a wait, a receive and a send.
 *
 * usage: bare_relay LISTEN CONNECT
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { DESCRIPTORS = 1024, BUFFER_BYTES = 256 * 1024 };

static int other[DESCRIPTORS];
static char buffer[BUFFER_BYTES];

static int opened(const char *path, int (*begin)(int, const struct sockaddr *, socklen_t))
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
	if (descriptor < 0 || descriptor >= DESCRIPTORS ||
	    begin(descriptor, (struct sockaddr *)&address, sizeof(address))) {
		perror(path);
		_exit(1);
	}
	return descriptor;
}

static void watched(int waiting, int descriptor)
{
	struct epoll_event wanted = { .events = EPOLLIN, .data.fd = descriptor };

	epoll_ctl(waiting, EPOLL_CTL_ADD, descriptor, &wanted);
}

static void passed(int from)
{
	ssize_t got = recv(from, buffer, sizeof(buffer), 0), done = 0;

	while (done < got) {
		ssize_t sent = send(other[from], buffer + done, got - done, MSG_NOSIGNAL);

		if (sent < 0)
			break;
		done += sent;
	}
	if (got <= 0 || done < got) {
		close(other[from]);
		close(from);
	}
}

int main(int count, char **words)
{
	struct epoll_event found[64];
	int listening, waiting = epoll_create1(EPOLL_CLOEXEC);

	if (count != 3)
		return 2;
	unlink(words[1]);
	listening = opened(words[1], bind);
	listen(listening, 64);
	watched(waiting, listening);
	for (;;) {
		int number = epoll_wait(waiting, found, 64, -1);

		for (int i = 0; i < number; i++) {
			int from = found[i].data.fd;

			if (from == listening) {
				int client = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
				int upstream = opened(words[2], connect);

				if (client < 0 || client >= DESCRIPTORS)
					return 1;
				other[client] = upstream;
				other[upstream] = client;
				watched(waiting, client);
				watched(waiting, upstream);
			} else {
				passed(from);
			}
		}
	}
}
