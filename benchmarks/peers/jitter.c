// A busy loop that reads the clock each microsecond, as one does that polls a device: how long the gaps
// between these reads are, for the given number of seconds from one second after its start. Then it
// writes one line to a file, and waits to be killed: p99.9, p99.99 and the longest gap in ns, and the
// number of gaps above 10 us.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { FINE_BITS = 6, BUCKETS = 64 << FINE_BITS, STEP_NS = 1000, LONG_NS = 10000 };
static const uint64_t SECOND_NS = 1000000000;

static struct {
    uint64_t number, longest;
} buckets[BUCKETS];

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

// 64 buckets for each power of two.
static unsigned bucket_of(uint64_t gap) {
    if (gap >> FINE_BITS == 0) return gap;
    unsigned shift = 63 - FINE_BITS - __builtin_clzll(gap);
    return (shift << FINE_BITS) + (gap >> shift);
}

// Fills the buckets, and returns the number of long gaps.
static uint64_t loop(uint64_t duration_ns) {
    uint64_t began = now_ns(), before = began, number = 0;
    while (before - began < duration_ns) {
        uint64_t now = now_ns(), gap = now - before;
        if (gap < STEP_NS) continue;
        unsigned at = bucket_of(gap);
        buckets[at].number++;
        if (gap > buckets[at].longest) buckets[at].longest = gap;
        number += gap > LONG_NS;
        before = now;
    }
    return number;
}

// The gap so that at most this share of all gaps is longer.
static uint64_t percentile(double share) {
    double all = 0, longer = 0;
    for (int at = 0; at < BUCKETS; at++) all += buckets[at].number;
    for (int at = BUCKETS - 1; at >= 0; at--) {
        longer += buckets[at].number;
        if (buckets[at].number && longer > share * all) return buckets[at].longest;
    }
    return 0;
}

int main(int count, char **words) {
    if (count != 3) {
        fprintf(stderr, "usage: jitter SECONDS FILE\n");
        return 2;
    }
    mlockall(MCL_CURRENT);  // Without the right to it, the first second touches all pages.
    loop(SECOND_NS);
    memset(buckets, 0, sizeof buckets);
    uint64_t number = loop(atof(words[1]) * SECOND_NS);
    FILE *file = fopen(words[2], "w");
    if (!file) {
        perror(words[2]);
        return 1;
    }
    fprintf(file, "%llu %llu %llu %llu\n", (unsigned long long)percentile(1e-3),
            (unsigned long long)percentile(1e-4), (unsigned long long)percentile(0),
            (unsigned long long)number);
    fclose(file);
    for (;;) pause();
}
