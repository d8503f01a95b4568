/* Cards, and what is asked of cards and MIG devices alike. */
#include "driver.h"

static Answer copy(char *to, unsigned size, const char *text) {
    return (unsigned)snprintf(to, size, "%s", text) < size ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

Answer nvmlSystemGetDriverVersion(char *text, unsigned size) { BEGIN_SYSTEM(); return copy(text, size, "580.159.04"); }
Answer nvmlSystemGetNVMLVersion(char *text, unsigned size) { BEGIN_SYSTEM(); return copy(text, size, "13.580.159.04"); }
Answer nvmlSystemGetCudaDriverVersion(int *version) { BEGIN_SYSTEM(); return *version = 13000, NVML_SUCCESS; }
Answer nvmlSystemGetCudaDriverVersion_v2(int *version) { BEGIN_SYSTEM(); return *version = 13000, NVML_SUCCESS; }
Answer nvmlDeviceGetCount_v2(unsigned *count) { BEGIN_SYSTEM(); return *count = state->cards, NVML_SUCCESS; }

Answer nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    device->handle = card_handle(index & 255);
    return called(__func__, index > 255 ? 255 : index);
}

static void bus_id(unsigned card, char *text) { sprintf(text, "00000000:%02X:00.0", FIRST_BUS + card); }

Answer nvmlDeviceGetHandleByPciBusId_v2(const char *wanted, nvmlDevice_t *device) {
    BEGIN_SYSTEM();
    for (unsigned card = 0; card < state->cards; card++) {
        char text[32];
        bus_id(card, text);
        if (!strcasecmp(wanted, text) || !strcasecmp(wanted, text + 4))  /* the kernel writes four digits of the domain */
            return device->handle = card_handle(card), state->card[card].lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

static void uuid(Handle h, char *text) {
    if (h.kind == CARD)
        sprintf(text, "GPU-7e55e7a0-0000-4000-8000-%012x", h.card);
    else
        sprintf(text, "MIG-7e55e7a0-%04x-5%03x-8%03x-%012x", h.card, h.gi, h.ci, state->stable_uuids ? 0 : h.serial);
}

Answer nvmlDeviceGetHandleByUUID(const char *wanted, nvmlDevice_t *device) {
    BEGIN_SYSTEM();
    for (unsigned card = 0; card < state->cards; card++) {
        char text[96];
        Handle h = {.kind = CARD, .card = card};
        for (unsigned next = 0;; next++) {
            uuid(h, text);
            if (!strcmp(wanted, text))
                return device->handle = handle(h), NVML_SUCCESS;
            if (mig_device(card, next, &h))
                break;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

Answer nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned size) {
    BEGIN_DEVICE(device);
    (void)slice;
    char found[96];
    uuid(h, found);
    return copy(text, size, found);
}

Answer nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned size) {
    BEGIN_DEVICE(device);
    if (slice == NULL)
        return copy(text, size, card_at(h)->product.name);
    const Profile *profile = profile_of(h.card, slice);
    char name[160], part[16] = "";
    if (slice->compute[h.ci].slices < profile->slices)
        snprintf(part, sizeof part, "%uc.", slice->compute[h.ci].slices);
    snprintf(name, sizeof name, "%s MIG %s%s", card_at(h)->product.name, part, profile->name);
    return copy(text, size, name);
}

Answer nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    BEGIN_DEVICE(device);
    if (slice == NULL)
        return *index = h.card, NVML_SUCCESS;
    Handle each;
    for (*index = 0; !mig_device(h.card, *index, &each); ++*index)
        if (each.gi == h.gi && each.ci == h.ci)
            return NVML_SUCCESS;
    return NVML_ERROR_NOT_FOUND;
}

Answer nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    BEGIN_DEVICE(device);
    unsigned long long mib = slice ? profile_of(h.card, slice)->memory_mib : card_at(h)->product.memory_mib;
    *memory = (nvmlMemory_t){.total = mib << 20, .free = mib << 20};
    return NVML_SUCCESS;
}

Answer nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlMemory_t found;
    Answer answer = nvmlDeviceGetMemoryInfo(device, &found);
    if (answer == NVML_SUCCESS)
        *memory = (nvmlMemory_v2_t){.version = memory->version, .total = found.total, .free = found.free};
    return answer;
}

Answer nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    BEGIN(device, CARD);
    *pci = (nvmlPciInfo_t){.bus = FIRST_BUS + h.card, .pciDeviceId = card_at(h)->product.pci_id};
    bus_id(h.card, pci->busId);
    strcpy(pci->busIdLegacy, pci->busId + 4);
    return NVML_SUCCESS;
}

Answer nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci) { return nvmlDeviceGetPciInfo_v3(device, pci); }

Answer nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    BEGIN_DEVICE(device);
    (void)slice;
    return *major = card_at(h)->product.cuda_major, *minor = 0, NVML_SUCCESS;
}

Answer nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *ours, unsigned *hers, unsigned *pending, unsigned *failed) {
    BEGIN(device, CARD);
    return *ours = *hers = *pending = 0, *failed = card_at(h)->rows_failed, NVML_SUCCESS;
}

/* Questions with one answer for every card. */
ALWAYS(nvmlDeviceGetMinorNumber, unsigned, h.card)
ALWAYS(nvmlDeviceGetBrand, nvmlBrandType_t, NVML_BRAND_NVIDIA)
ALWAYS(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, card_at(h)->product.architecture)
ALWAYS(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, NVML_GPU_VIRTUALIZATION_MODE_NONE)
ALWAYS(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
ALWAYS(nvmlDeviceGetComputeMode, nvmlComputeMode_t, NVML_COMPUTEMODE_DEFAULT)
ALWAYS(nvmlDeviceGetSupportedEventTypes, unsigned long long, 0xff9f)  /* as an H200 answers */
Answer nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t on) { BEGIN(device, CARD); return (void)on, NVML_SUCCESS; }

/* Who uses a card: `user` of a card or of an instance is a process id, 0 for nobody. */
Answer nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *found) {
    BEGIN_DEVICE(device);
    unsigned size = *count, n = 0;
    for (int gi = -1; gi < INSTANCES; gi++) {
        const Instance *instance = gi < 0 ? NULL : &card_at(h)->instance[gi];
        unsigned user = instance ? instance->used * instance->user : card_at(h)->user, id = instance ? (unsigned)gi : NO_INSTANCE;
        if (user == 0 || (slice != NULL && slice != instance))
            continue;
        if (n < size)
            found[n] = (nvmlProcessInfo_t){.pid = user, .gpuInstanceId = id, .computeInstanceId = instance ? 0 : NO_INSTANCE};
        n++;
    }
    *count = n;
    return n <= size ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}
