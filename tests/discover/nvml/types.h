/* What of NVML's ABI the fake library speaks. layout.c compares it with NVIDIA's own header. */
#ifndef FAKE_NVML_TYPES_H
#define FAKE_NVML_TYPES_H

#ifndef FAKE
#define FAKE(name) name
#endif

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} FAKE(nvmlPciInfo_t);

typedef struct {
    unsigned long long total, free, used;
} FAKE(nvmlMemory_t);

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} FAKE(nvmlMemory_v2_t);

typedef struct {
    unsigned int gpu, memory;
} FAKE(nvmlUtilization_t);

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} FAKE(nvmlProcessInfo_t);

typedef struct {
    unsigned int pid;
    unsigned long long timeStamp;
    unsigned int smUtil, memUtil, encUtil, decUtil;
} FAKE(nvmlProcessUtilizationSample_t);

typedef struct {
    unsigned int multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount;
    unsigned int sharedJpegCount, sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} FAKE(nvmlDeviceAttributes_t);

typedef struct {
    struct nvmlDevice_st *device;
    unsigned long long eventType, eventData;
    unsigned int gpuInstanceId, computeInstanceId;
} FAKE(nvmlEventData_t);

typedef union {
    double dVal;
    int siVal;
    unsigned int uiVal;
    unsigned long ulVal;
    unsigned long long ullVal;
    long long sllVal;
} FAKE(nvmlValue_t);

typedef struct {
    unsigned int fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType, nvmlReturn;
    FAKE(nvmlValue_t) value;
} FAKE(nvmlFieldValue_t);

#endif
