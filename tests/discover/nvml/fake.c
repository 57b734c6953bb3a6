/* libnvidia-ml.so.1 for tests. The answers are in a text file with one `key value` per line; the
 * environment variable FAKE_NVML names the file, which is read again after each change.
 *
 *   init N, alive N          the return value of nvmlInitWithFlags, of every later call
 *   sleep.FUNCTION MS        the duration of a call; an absent value is NOT_SUPPORTED
 *   return.FUNCTION N        the return value of FUNCTION, which then has no answer
 *   enumerated I I I         the cards in the order of their indices
 *   gpu.I.KEY VALUE          of a card; gpu.I.return N: the return value of all calls;
 *                            gpu.I.return.FUNCTION N: of one of them
 *   gpu.I.mig.J.KEY VALUE    of a MIG instance of the card
 *   pair.I.J.KEY VALUE       of two cards, I < J
 *
 * The file $FAKE_NVML.events has one event `I TYPE DATA GI CI` per line, delivered once to an event
 * set that existed before. With NVML_HEADER it compiles against NVIDIA's header.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#ifdef NVML_HEADER
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include "nvml.h"
#define ENUM(name) name
#else
#include "types.h"
typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;
#define ENUM(name) int
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_TIMEOUT = 10,
};
#endif

#define MAX_CARDS 32
#define MAX_INSTANCES 8

struct nvmlDevice_st {
    char name[32];
    int card;
    struct nvmlDevice_st *parent;
};

struct nvmlEventSet_st {
    long offset;
};

static struct nvmlDevice_st cards[MAX_CARDS], instances[MAX_CARDS][MAX_INSTANCES];
static char *facts;
static struct stat last_stat;
static int initialized;
static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;

static void read_again(void) {
    struct stat now;
    const char *path = getenv("FAKE_NVML");
    if (!path || stat(path, &now)) {
        fprintf(stderr, "fake NVML: FAKE_NVML names no file\n");
        abort();
    }
    if (facts && now.st_ino == last_stat.st_ino && now.st_mtim.tv_nsec == last_stat.st_mtim.tv_nsec &&
        now.st_mtim.tv_sec == last_stat.st_mtim.tv_sec && now.st_size == last_stat.st_size)
        return;
    FILE *file = fopen(path, "r");
    free(facts);
    facts = calloc(1, now.st_size + 2);
    facts[0] = '\n';
    if (!file || fread(facts + 1, 1, now.st_size, file) != (size_t)now.st_size) abort();
    fclose(file);
    last_stat = now;
}

/* A copy of the value, or NULL; valid until the next call. */
static char *value(const char *key) {
    static _Thread_local char found[256];
    char wanted[128];
    snprintf(wanted, sizeof wanted, "\n%s ", key);
    pthread_mutex_lock(&reading);
    read_again();
    char *at = strstr(facts, wanted);
    if (at) {
        at += strlen(wanted);
        size_t length = strcspn(at, "\n");
        if (length >= sizeof found) abort();
        memcpy(found, at, length);
        found[length] = 0;
    }
    pthread_mutex_unlock(&reading);
    return at ? found : NULL;
}

static long long number(const char *key, long long otherwise) {
    const char *text = value(key);
    return text ? strtoll(text, NULL, 0) : otherwise;
}

static char *of(nvmlDevice_t device, const char *key) {
    char full_key[128];
    snprintf(full_key, sizeof full_key, "%s.%s", device->name, key);
    return value(full_key);
}

static nvmlReturn_t pause_and_return(const char *function) {
    char key[128];
    snprintf(key, sizeof key, "sleep.%s", function);
    long long ms = number(key, 0);
    if (ms) nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
    snprintf(key, sizeof key, "return.%s", function);
    return (nvmlReturn_t)number(key, NVML_SUCCESS);
}

static nvmlReturn_t enter(const char *function, nvmlDevice_t device) {
    nvmlReturn_t fault = pause_and_return(function);
    if (fault) return fault;
    if (!initialized) return NVML_ERROR_UNINITIALIZED;
    if ((fault = (nvmlReturn_t)number("alive", NVML_SUCCESS))) return fault;
    for (; device; device = device->parent) {
        char key[128];
        snprintf(key, sizeof key, "return.%s", function);
        const char *text = of(device, key);
        if (!text) text = of(device, "return");
        if (text) return (nvmlReturn_t)atoi(text);
    }
    return NVML_SUCCESS;
}

#define ENTER(device)                                       \
    do {                                                    \
        nvmlReturn_t fault = enter(__func__, device);       \
        if (fault) return fault;                            \
    } while (0)

static nvmlReturn_t text_of(nvmlDevice_t device, const char *key, char *to, unsigned int size) {
    const char *text = of(device, key);
    if (!text) return NVML_ERROR_NOT_SUPPORTED;
    if (strlen(text) >= size) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, text);
    return NVML_SUCCESS;
}

/* Reads one number for each pointer before the NULL. */
static nvmlReturn_t numbers_of(nvmlDevice_t device, const char *key, unsigned int **to) {
    char *text = of(device, key);
    if (!text) return NVML_ERROR_NOT_SUPPORTED;
    for (; *to; to++) **to = strtoul(text, &text, 0);
    return NVML_SUCCESS;
}

#define NUMBERS(device, key, ...) numbers_of(device, key, (unsigned int *[]){__VA_ARGS__, NULL})

static void pci(const char *bus_id, nvmlPciInfo_t *to) {
    memset(to, 0, sizeof *to);
    sscanf(bus_id, "%x:%x:%x", &to->domain, &to->bus, &to->device);
    snprintf(to->busId, sizeof to->busId, "%s", bus_id);
    snprintf(to->busIdLegacy, sizeof to->busIdLegacy, "%04x:%02x:%02x.0", to->domain & 0xffff,
             to->bus, to->device);
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    nvmlReturn_t fault = pause_and_return(__func__);
    if (!fault) fault = (nvmlReturn_t)number("init", NVML_SUCCESS);
    if (fault) return fault;
    for (int card = 0; card < MAX_CARDS; card++) {
        cards[card].card = card;
        snprintf(cards[card].name, sizeof cards[card].name, "gpu.%d", card);
        for (int each = 0; each < MAX_INSTANCES; each++) {
            struct nvmlDevice_st *instance = &instances[card][each];
            instance->card = card;
            instance->parent = &cards[card];
            snprintf(instance->name, sizeof instance->name, "gpu.%d.mig.%d", card, each);
        }
    }
    initialized = 1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown(void) {
    initialized = 0;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result) {
    static char text[32];
    snprintf(text, sizeof text, "fake error %d", (int)result);
    return text;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    ENTER(NULL);
    snprintf(version, length, "%s", value("driver"));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    char *order = value("enumerated");
    for (unsigned int place = 0; order && *order; place++) {
        int card = (int)strtol(order, &order, 10);
        if (place < index) continue;
        *device = &cards[card];
        ENTER(*device);
        return NVML_SUCCESS;
    }
    ENTER(NULL);
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    ENTER(NULL);
    char *order = value("enumerated");
    for (*count = 0; order && *order; ++*count) strtol(order, &order, 10);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    ENTER(device);
    char *order = value("enumerated");
    for (*index = 0; order && *order; ++*index)
        if (strtol(order, &order, 10) == device->card) return NVML_SUCCESS;
    return NVML_ERROR_NOT_FOUND;
}

#define TEXT(function, key)                                                               \
    nvmlReturn_t function(nvmlDevice_t device, char *to, unsigned int size) {             \
        ENTER(device);                                                                    \
        return text_of(device, key, to, size);                                            \
    }
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetSerial, "serial")

#define NUMBER(function, key)                                                             \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *to) {                        \
        ENTER(device);                                                                    \
        return NUMBERS(device, key, to);                                                  \
    }
NUMBER(nvmlDeviceGetMinorNumber, "minor")
NUMBER(nvmlDeviceGetModuleId, "module")
NUMBER(nvmlDeviceGetMaxMigDeviceCount, "mig.most")
NUMBER(nvmlDeviceGetGpuInstanceId, "gi")
NUMBER(nvmlDeviceGetComputeInstanceId, "ci")
NUMBER(nvmlDeviceGetPowerUsage, "power")

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *to) {
    ENTER(device);
    const char *bus_id = of(device, "bus");
    if (!bus_id) return NVML_ERROR_NOT_SUPPORTED;
    pci(bus_id, to);
    return NVML_SUCCESS;
}

/* `memory`: total, reserved, used, in MiB. */
static nvmlReturn_t memory_of(nvmlDevice_t device, unsigned long long bytes[3]) {
    unsigned int total, reserved, used;
    nvmlReturn_t fault = NUMBERS(device, "memory", &total, &reserved, &used);
    bytes[0] = (unsigned long long)total << 20;
    bytes[1] = (unsigned long long)reserved << 20;
    bytes[2] = (unsigned long long)used << 20;
    return fault;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *to) {
    unsigned long long bytes[3];
    ENTER(device);
    nvmlReturn_t fault = memory_of(device, bytes);
    *to = (nvmlMemory_t){.total = bytes[0],
                         .free = bytes[0] - bytes[1] - bytes[2],
                         .used = bytes[1] + bytes[2]};
    return fault;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *to) {
    unsigned long long bytes[3];
    ENTER(device);
    if (to->version != (sizeof *to | 2U << 24)) return (nvmlReturn_t)25;
    nvmlReturn_t fault = memory_of(device, bytes);
    *to = (nvmlMemory_v2_t){.version = to->version,
                            .total = bytes[0],
                            .reserved = bytes[1],
                            .free = bytes[0] - bytes[1] - bytes[2],
                            .used = bytes[2]};
    return fault;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    ENTER(device);
    return NUMBERS(device, "capability", (unsigned int *)major, (unsigned int *)minor);
}

static nvmlReturn_t pair(nvmlDevice_t one, nvmlDevice_t two, const char *key, unsigned int *to) {
    char full_key[128];
    nvmlDevice_t first = one->card < two->card ? one : two, second = first == one ? two : one;
    snprintf(full_key, sizeof full_key, "pair.%d.%d.%s", first->card, second->card, key);
    const char *text = value(full_key);
    if (!text) return NVML_ERROR_NOT_SUPPORTED;
    *to = atoi(text);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t two,
                                                 ENUM(nvmlGpuTopologyLevel_t) * level) {
    ENTER(one);
    ENTER(two);
    return pair(one, two, "ancestor", (unsigned int *)level);
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t two,
                                    ENUM(nvmlGpuP2PCapsIndex_t) index,
                                    ENUM(nvmlGpuP2PStatus_t) * status) {
    char key[16];
    ENTER(one);
    ENTER(two);
    snprintf(key, sizeof key, "p2p.%d", (int)index);
    return pair(one, two, key, (unsigned int *)status);
}

/* `link.L`: version, type of the far end, its address; a link that is down has no line, a
 * link with the address `-` can't be queried. */
static const char *link_of(nvmlDevice_t device, unsigned int link, unsigned int numbers[2]) {
    char key[32];
    snprintf(key, sizeof key, "link.%u", link);
    char *text = of(device, key);
    if (!text) return NULL;
    numbers[0] = strtoul(text, &text, 0);
    numbers[1] = strtoul(text, &text, 0);
    return text + strspn(text, " ");
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link,
                                      ENUM(nvmlEnableState_t) * active) {
    unsigned int numbers[2], count;
    ENTER(device);
    if (NUMBERS(device, "links", &count)) return NVML_ERROR_NOT_SUPPORTED;
    if (link >= count) return NVML_ERROR_INVALID_ARGUMENT;
    const char *far = link_of(device, link, numbers);
    *active = far != NULL;
    return far && *far == '-' ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link,
                                        unsigned int *version) {
    unsigned int numbers[2];
    ENTER(device);
    if (!link_of(device, link, numbers)) return NVML_ERROR_NOT_SUPPORTED;
    *version = numbers[0];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                 ENUM(nvmlIntNvLinkDeviceType_t) * type) {
    unsigned int numbers[2];
    ENTER(device);
    if (!link_of(device, link, numbers)) return NVML_ERROR_NOT_SUPPORTED;
    *type = numbers[1];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link,
                                                 nvmlPciInfo_t *to) {
    unsigned int numbers[2];
    ENTER(device);
    const char *bus_id = link_of(device, link, numbers);
    if (!bus_id) return NVML_ERROR_NOT_SUPPORTED;
    pci(bus_id, to);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current,
                                  unsigned int *pending) {
    ENTER(device);
    return NUMBERS(device, "mig.mode", current, pending);
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                 nvmlDevice_t *to) {
    ENTER(device);
    if (index >= MAX_INSTANCES || !of(&instances[device->card][index], "uuid"))
        return NVML_ERROR_NOT_FOUND;
    *to = &instances[device->card][index];
    return NVML_SUCCESS;
}

/* `attributes`: slices of the GPU instance, of the compute instance, MiB. */
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *to) {
    unsigned int memory;
    ENTER(device);
    memset(to, 0, sizeof *to);
    nvmlReturn_t fault = NUMBERS(device, "attributes", &to->gpuInstanceSliceCount,
                                 &to->computeInstanceSliceCount, &memory);
    to->memorySizeMB = memory;
    return fault;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *to) {
    ENTER(device);
    return NUMBERS(device, "utilization", &to->gpu, &to->memory);
}

/* `pid MiB gi ci` repeated; -1 MiB: not available. */
static nvmlReturn_t processes(nvmlDevice_t device, const char *key, unsigned int *count,
                              nvmlProcessInfo_t *to) {
    char *text = of(device, key);
    unsigned int found = 0, room = *count;
    nvmlProcessInfo_t each;
    while (text && *text) {
        each.pid = strtoul(text, &text, 0);
        long long memory = strtoll(text, &text, 0);
        each.usedGpuMemory = memory < 0 ? ~0ULL : (unsigned long long)memory << 20;
        each.gpuInstanceId = strtoul(text, &text, 0);
        each.computeInstanceId = strtoul(text, &text, 0);
        if (found < room) to[found] = each;
        found++;
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_t *to) {
    ENTER(device);
    return processes(device, "compute", count, to);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                      nvmlProcessInfo_t *to) {
    ENTER(device);
    return processes(device, "graphics", count, to);
}

/* `pid sm mem enc dec` repeated. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                             nvmlProcessUtilizationSample_t *to,
                                             unsigned int *count, unsigned long long since) {
    ENTER(device);
    char *text = of(device, "samples");
    if (!text) return NVML_ERROR_NOT_FOUND;
    unsigned int found = 0, room = to ? *count : 0;
    nvmlProcessUtilizationSample_t each = {.timeStamp = since + 1};
    while (*text) {
        each.pid = strtoul(text, &text, 0);
        each.smUtil = strtoul(text, &text, 0);
        each.memUtil = strtoul(text, &text, 0);
        each.encUtil = strtoul(text, &text, 0);
        each.decUtil = strtoul(text, &text, 0);
        if (found < room) to[found] = each;
        found++;
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* `ecc`: corrected and uncorrected since the driver was loaded. */
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, ENUM(nvmlMemoryErrorType_t) type,
                                         ENUM(nvmlEccCounterType_t) counter,
                                         unsigned long long *to) {
    unsigned int counts[2];
    ENTER(device);
    nvmlReturn_t fault = NUMBERS(device, counter ? "ecc.aggregate" : "ecc", &counts[0], &counts[1]);
    *to = counts[type ? 1 : 0];
    return fault;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable,
                                       unsigned int *uncorrectable, unsigned int *pending,
                                       unsigned int *failure) {
    ENTER(device);
    return NUMBERS(device, "remapped", correctable, uncorrectable, pending, failure);
}

nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device,
                                                    ENUM(nvmlEnableState_t) * pending) {
    ENTER(device);
    return NUMBERS(device, "retired.pending", (unsigned int *)pending);
}

/* `clock.T`, MHz. */
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, ENUM(nvmlClockType_t) type,
                                    unsigned int *clock) {
    char key[32];
    ENTER(device);
    snprintf(key, sizeof key, "clock.%d", (int)type);
    return NUMBERS(device, key, clock);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, ENUM(nvmlTemperatureSensors_t) sensor,
                                      unsigned int *to) {
    (void)sensor;
    ENTER(device);
    return NUMBERS(device, "temperature", to);
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *to) {
    ENTER(device);
    const char *text = of(device, "energy");
    if (!text) return NVML_ERROR_NOT_SUPPORTED;
    *to = strtoull(text, NULL, 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    ENTER(device);
    for (int each = 0; each < count; each++) {
        char key[32];
        snprintf(key, sizeof key, "field.%u", values[each].fieldId);
        const char *text = of(device, key);
        values[each].nvmlReturn = text ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        values[each].value.ullVal = 0;
        if (text) values[each].value.uiVal = atoi(text);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
    ENTER(device);
    const char *text = of(device, "events");
    if (!text) return NVML_ERROR_NOT_SUPPORTED;
    *types = strtoull(text, NULL, 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                      nvmlEventSet_t set) {
    (void)set;
    ENTER(device);
    const char *text = of(device, "events");
    return types & ~(text ? strtoull(text, NULL, 0) : 0) ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

static FILE *events(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s.events", getenv("FAKE_NVML"));
    return fopen(path, "r");
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    ENTER(NULL);
    *set = calloc(1, sizeof **set);
    FILE *file = events();
    if (file) {
        fseek(file, 0, SEEK_END);
        (*set)->offset = ftell(file);
        fclose(file);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    free(set);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *to, unsigned int timeout_ms) {
    for (unsigned int waited = 0;; waited += 5) {
        int card, fields_read = 0;
        ENTER(NULL);
        FILE *file = events();
        if (file) {
            fseek(file, set->offset, SEEK_SET);
            fields_read = fscanf(file, "%d %lli %llu %u %u\n", &card, (long long *)&to->eventType,
                           &to->eventData, &to->gpuInstanceId, &to->computeInstanceId);
            if (fields_read == 5) set->offset = ftell(file);
            fclose(file);
        }
        if (fields_read == 5) {
            to->device = &cards[card];
            return NVML_SUCCESS;
        }
        if (waited >= timeout_ms) return NVML_ERROR_TIMEOUT;
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
}
