/* Compiles where the fake's ABI is the one of NVIDIA's nvml.h. */
#include <stddef.h>

#include "nvml.h"
#define FAKE(name) fake_##name
#include "types.h"

#define SIZE(type, bytes) \
    _Static_assert(sizeof(type) == bytes && sizeof(fake_##type) == bytes, "size of " #type)
#define AT(type, field)                                                                       \
    _Static_assert(offsetof(type, field) == offsetof(fake_##type, field) &&                   \
                       sizeof(((type *)0)->field) == sizeof(((fake_##type *)0)->field),       \
                   #type "." #field)

SIZE(nvmlPciInfo_t, 68);
AT(nvmlPciInfo_t, busIdLegacy);
AT(nvmlPciInfo_t, domain);
AT(nvmlPciInfo_t, bus);
AT(nvmlPciInfo_t, device);
AT(nvmlPciInfo_t, pciDeviceId);
AT(nvmlPciInfo_t, pciSubSystemId);
AT(nvmlPciInfo_t, busId);
SIZE(nvmlMemory_t, 24);
AT(nvmlMemory_t, total);
AT(nvmlMemory_t, free);
AT(nvmlMemory_t, used);
SIZE(nvmlMemory_v2_t, 40);
AT(nvmlMemory_v2_t, version);
AT(nvmlMemory_v2_t, total);
AT(nvmlMemory_v2_t, reserved);
AT(nvmlMemory_v2_t, free);
AT(nvmlMemory_v2_t, used);
_Static_assert(nvmlMemory_v2 == (sizeof(fake_nvmlMemory_v2_t) | 2U << 24), "version of memory v2");
SIZE(nvmlUtilization_t, 8);
AT(nvmlUtilization_t, gpu);
AT(nvmlUtilization_t, memory);
SIZE(nvmlProcessInfo_t, 24);
AT(nvmlProcessInfo_t, pid);
AT(nvmlProcessInfo_t, usedGpuMemory);
AT(nvmlProcessInfo_t, gpuInstanceId);
AT(nvmlProcessInfo_t, computeInstanceId);
SIZE(nvmlProcessUtilizationSample_t, 32);
AT(nvmlProcessUtilizationSample_t, pid);
AT(nvmlProcessUtilizationSample_t, timeStamp);
AT(nvmlProcessUtilizationSample_t, smUtil);
AT(nvmlProcessUtilizationSample_t, memUtil);
AT(nvmlProcessUtilizationSample_t, encUtil);
AT(nvmlProcessUtilizationSample_t, decUtil);
SIZE(nvmlDeviceAttributes_t, 40);
AT(nvmlDeviceAttributes_t, multiprocessorCount);
AT(nvmlDeviceAttributes_t, gpuInstanceSliceCount);
AT(nvmlDeviceAttributes_t, computeInstanceSliceCount);
AT(nvmlDeviceAttributes_t, memorySizeMB);
SIZE(nvmlEventData_t, 32);
AT(nvmlEventData_t, device);
AT(nvmlEventData_t, eventType);
AT(nvmlEventData_t, eventData);
AT(nvmlEventData_t, gpuInstanceId);
AT(nvmlEventData_t, computeInstanceId);
SIZE(nvmlValue_t, 8);
SIZE(nvmlFieldValue_t, 40);
AT(nvmlFieldValue_t, fieldId);
AT(nvmlFieldValue_t, scopeId);
AT(nvmlFieldValue_t, timestamp);
AT(nvmlFieldValue_t, latencyUsec);
AT(nvmlFieldValue_t, valueType);
AT(nvmlFieldValue_t, nvmlReturn);
AT(nvmlFieldValue_t, value);
