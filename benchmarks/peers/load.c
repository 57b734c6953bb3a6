// The workloads of benchmarks/culprit.py, colocation.py and quiet.py, one of which the first argument
// names. It runs until it is killed. SIGUSR1 starts THREADS more threads in `duty`, SIGUSR2 ends them.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/if_ether.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 3, MIB = 1 << 20, PAGE = 4096, BATCH = 64, PACKET = 1400, CONNECTIONS = 64 };
enum { REST_US = 200, WRITEBACK_US = 100000 };

static volatile sig_atomic_t crowded;

static void crowd(int number) { crowded = number == SIGUSR1; }

static int64_t thread_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void start(void *(*body)(void *), void *argument) {
    pthread_t thread;
    if ((errno = pthread_create(&thread, NULL, body, argument))) fail("pthread_create");
    pthread_detach(thread);
}

static void *spin(void *unused) {
    (void)unused;
    while (crowded)
        ;
    return NULL;
}

static void duty(int busy_us, int idle_us) {
    signal(SIGUSR1, crowd);
    signal(SIGUSR2, crowd);
    int more = 0;
    for (;;) {
        int64_t until = thread_us() + busy_us;
        while (thread_us() < until)
            ;
        usleep(idle_us);
        if (crowded && !more)
            for (int thread = 0; thread < THREADS; thread++) start(spin, NULL);
        more = crowded;
    }
}

// Random pages of four letters: no two of them are equal, and compressing them takes long.
static uint64_t *random_pages(size_t size) {
    uint64_t *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) fail("mmap");
    uint64_t value = 88172645463325252ULL;
    for (size_t word = 0; word < size / sizeof *pages; word++) {
        value ^= value << 13, value ^= value >> 7, value ^= value << 17;
        pages[word] = value & 0x0303030303030303ULL;
    }
    return pages;
}

static void memory(size_t size) {
    for (;;) {
        char *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED) fail("mmap");
        for (size_t at = 0; at < size; at += PAGE) pages[at] = 1;
        munmap(pages, size);
    }
}

static void forks(void) {
    for (;;) {
        for (int child = 0; child < BATCH; child++) {
            pid_t id = fork();
            if (id == 0) _exit(0);
            if (id < 0) break;
        }
        while (wait(NULL) > 0)
            ;
    }
}

static void *timer(void *period_us) {
    struct timespec period = {0, *(int *)period_us * 1000L};
    struct itimerspec every = {period, period};
    uint64_t times;
    int file = timerfd_create(CLOCK_MONOTONIC, 0);
    if (file < 0 || timerfd_settime(file, 0, &every, NULL)) fail("timerfd");
    while (read(file, &times, sizeof times) > 0)
        ;
    return NULL;
}

static void timers(int number, int period_us) {
    while (number-- > 0) start(timer, &period_us);
    for (;;) pause();
}

// UDP packets without a receiver, with addresses of RFC 5737.
static void packets(const char *interface) {
    static unsigned char packet[PACKET];
    int on = 1, file = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_IP));
    struct sockaddr_ll to = {.sll_family = AF_PACKET,
                             .sll_protocol = htons(ETH_P_IP),
                             .sll_ifindex = if_nametoindex(interface)};
    if (file < 0 || bind(file, (struct sockaddr *)&to, sizeof to)) fail(interface);
    setsockopt(file, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on);
    memset(packet, 0xff, ETH_ALEN);
    packet[ETH_ALEN] = 2;
    packet[12] = ETH_P_IP >> 8, packet[13] = ETH_P_IP & 0xff;
    unsigned char *ip = packet + ETH_HLEN;
    uint16_t length = htons(PACKET - ETH_HLEN);
    ip[0] = 0x45, ip[8] = 64, ip[9] = IPPROTO_UDP;
    memcpy(ip + 2, &length, sizeof length);
    memcpy(ip + 12, "\xc0\x00\x02\x01\xc0\x00\x02\x02", 8);
    uint32_t sum = 0;
    for (int word = 0; word < 20; word += 2) sum += ip[word] << 8 | ip[word + 1];
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    ip[10] = ~sum >> 8 & 0xff, ip[11] = ~sum & 0xff;
    struct iovec part = {packet, PACKET};
    struct mmsghdr messages[BATCH];
    memset(messages, 0, sizeof messages);
    for (int each = 0; each < BATCH; each++)
        messages[each].msg_hdr.msg_iov = &part, messages[each].msg_hdr.msg_iovlen = 1;
    for (;;)
        if (sendmmsg(file, messages, BATCH, 0) < 0 && errno != ENOBUFS) fail("sendmmsg");
}

static void dirty(const char *path, size_t size) {
    char *content = (char *)random_pages(size);
    int file = open(path, O_WRONLY);
    if (file < 0) fail(path);
    for (;;)
        for (size_t at = 0; at < size; at += MIB)
            if (pwrite(file, content + at, MIB, at) != MIB) fail("pwrite");
}

// ARP requests for an address, each sent a little after the answer to the one before: packets that
// leave the machine and come back, whatever else its network permits.
static void ask(const char *interface, const char *address) {
    int file = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ARP));
    struct sockaddr_ll to = {.sll_family = AF_PACKET,
                             .sll_protocol = htons(ETH_P_ARP),
                             .sll_ifindex = if_nametoindex(interface)};
    struct ifreq own = {0};
    struct timeval longest = {0, 10000};
    struct {
        struct ether_header header;
        struct ether_arp arp;
    } __attribute__((packed)) request = {0}, reply;
    if (file < 0 || bind(file, (struct sockaddr *)&to, sizeof to)) fail(interface);
    setsockopt(file, SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest);
    strncpy(own.ifr_name, interface, IFNAMSIZ - 1);
    if (ioctl(file, SIOCGIFHWADDR, &own)) fail("SIOCGIFHWADDR");
    memcpy(request.header.ether_shost, own.ifr_hwaddr.sa_data, ETH_ALEN);
    memcpy(request.arp.arp_sha, own.ifr_hwaddr.sa_data, ETH_ALEN);
    int inet = socket(AF_INET, SOCK_DGRAM, 0);
    if (inet < 0 || ioctl(inet, SIOCGIFADDR, &own)) fail("SIOCGIFADDR");
    memcpy(request.arp.arp_spa, &((struct sockaddr_in *)&own.ifr_addr)->sin_addr, 4);
    inet_pton(AF_INET, address, request.arp.arp_tpa);
    memset(request.header.ether_dhost, 0xff, ETH_ALEN);
    request.header.ether_type = htons(ETH_P_ARP);
    request.arp.ea_hdr = (struct arphdr){htons(ARPHRD_ETHER), htons(ETH_P_IP), ETH_ALEN, 4,
                                         htons(ARPOP_REQUEST)};
    for (;;) {
        if (send(file, &request, sizeof request, 0) < 0 && errno != ENOBUFS) fail("send");
        if (recv(file, &reply, sizeof reply, 0) < 0 && errno != EAGAIN) fail("recv");
        usleep(REST_US);
    }
}

// Reads pages of a file in an order of its own, each from the device.
static void reads(const char *path, size_t size) {
    int file = open(path, O_RDONLY | O_DIRECT);
    void *page = aligned_alloc(PAGE, PAGE);
    if (file < 0 || !page) fail(path);
    for (unsigned step = 0;; step += 7919, usleep(REST_US))
        if (pread(file, page, PAGE, step % (size / PAGE) * PAGE) != PAGE) fail("pread");
}

// Writes a file to the page cache, again and again, and lets the kernel's threads write it back.
static void writeback(const char *path, size_t size) {
    char *content = (char *)random_pages(size);
    int file = open(path, O_WRONLY);
    if (file < 0) fail(path);
    for (;; usleep(WRITEBACK_US))
        if (pwrite(file, content, size, 0) != (ssize_t)size || syncfs(file)) fail(path);
}

static void mergeable(size_t size) {
    if (madvise(random_pages(size), size, MADV_MERGEABLE)) fail("madvise");
    for (;;) pause();
}

static int64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

// The first page of a file that others read meanwhile: the work done, and what it took.
static volatile int64_t *shared(const char *path) {
    int file = open(path, O_RDWR | O_CREAT, 0644);
    if (file < 0 || ftruncate(file, PAGE)) fail(path);
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) fail("mmap");
    return page;
}

// Never sleeps, and counts its steps and microseconds of CPU time.
static void count(const char *path) {
    volatile int64_t *page = shared(path);
    for (;;) {
        for (volatile int step = 0; step < 100000; step++)
            ;
        page[0]++, page[1] = thread_us();
    }
}

// Waits as for a GPU, then works for the next step. The file gets how many microseconds each of them
// took longer than alone on a CPU.
static void engine(const char *path, int wait_us, int work_us) {
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (file < 0) fail(path);
    for (;;) {
        int64_t began = now_us(), until;
        usleep(wait_us);
        until = thread_us() + work_us;
        while (thread_us() < until)
            ;
        int64_t late = now_us() - began - wait_us - work_us;
        if (write(file, &late, sizeof late) != sizeof late) fail("write");
    }
}

static int connected(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    int on = 1, file = socket(AF_INET, SOCK_STREAM, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (file < 0 || connect(file, (struct sockaddr *)&to, sizeof to)) fail("connect");
    setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return file;
}

// Sends HTTP requests at a constant rate, whether the ones before are answered or not: at once while
// a connection is free, otherwise as soon as one is. Prints how many microseconds after it should
// have been sent each was answered, in the order of answers. All answers have the same size.
static void requests(int port, int rate, int number) {
    static const char request[] = "GET / HTTP/1.1\r\nHost: server\r\n\r\n";
    static char reply[1 << 16];
    struct pollfd files[CONNECTIONS];
    int64_t due[CONNECTIONS], received[CONNECTIONS] = {0};
    int busy[CONNECTIONS] = {0};
    for (int each = 0; each < CONNECTIONS; each++)
        files[each] = (struct pollfd){.fd = connected(port), .events = POLLIN};
    if (write(files[0].fd, request, sizeof request - 1) < 0) fail("write");
    int64_t size = read(files[0].fd, reply, sizeof reply), began = now_us() + 1000;
    for (int sent = 0, answered = 0; answered < number;) {
        int64_t now = now_us();
        for (int each = 0; each < CONNECTIONS; each++) {
            int64_t next = began + sent * 1000000LL / rate;
            if (sent == number || next > now) break;
            if (busy[each]) continue;
            if (write(files[each].fd, request, sizeof request - 1) < 0) fail("write");
            busy[each] = 1, due[each] = next, sent++;
        }
        int64_t next = began + sent * 1000000LL / rate - now_us();
        int all = sent - answered == CONNECTIONS;
        struct timespec left = {0, next > 0 ? next * 1000 : 0};
        if (ppoll(files, CONNECTIONS, sent == number || all ? NULL : &left, NULL) < 0) fail("ppoll");
        now = now_us();
        for (int each = 0; each < CONNECTIONS; each++) {
            if (!files[each].revents) continue;
            int64_t bytes = read(files[each].fd, reply, sizeof reply);
            if (bytes <= 0) fail("the server");
            if ((received[each] += bytes) < size) continue;
            printf("%lld\n", (long long)(now - due[each]));
            received[each] = busy[each] = 0, answered++;
        }
    }
    exit(0);
}

int main(int count_of_words, char **words) {
    const char *name = count_of_words > 1 ? words[1] : "";
    const char *first = count_of_words > 2 ? words[2] : "0";
    int number = atoi(first), second = count_of_words > 3 ? atoi(words[3]) : 0;
    if (!strcmp(name, "spin")) crowded = 1, spin(NULL);
    if (!strcmp(name, "duty")) duty(number, second);
    if (!strcmp(name, "memory")) memory((size_t)number * MIB);
    if (!strcmp(name, "forks")) forks();
    if (!strcmp(name, "timers")) timers(number, second);
    if (!strcmp(name, "packets")) packets(first);
    if (!strcmp(name, "dirty")) dirty(first, (size_t)second * MIB);
    if (!strcmp(name, "ask")) ask(first, count_of_words > 3 ? words[3] : "");
    if (!strcmp(name, "reads")) reads(first, (size_t)second * MIB);
    if (!strcmp(name, "writeback")) writeback(first, (size_t)second * MIB);
    if (!strcmp(name, "mergeable")) mergeable((size_t)number * MIB);
    if (!strcmp(name, "count")) count(first);
    if (!strcmp(name, "engine")) engine(first, second, count_of_words > 4 ? atoi(words[4]) : 0);
    if (!strcmp(name, "requests")) requests(number, second, count_of_words > 4 ? atoi(words[4]) : 0);
    fprintf(stderr, "unknown workload: %s\n", name);
    return 2;
}
