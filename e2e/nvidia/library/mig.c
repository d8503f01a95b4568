/* MIG: the mode, GPU instances, compute instances. */
#include "driver.h"

/* ---- MIG: the mode ---- */

static int has_instances(const Card *card) {
    for (int gi = 0; gi < INSTANCES; gi++)
        if (card->instance[gi].used)
            return 1;
    return 0;
}

Answer nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    BEGIN(device, CARD);
    return *current = card_at(h)->mig, *pending = card_at(h)->pending, NVML_SUCCESS;
}

Answer nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, Answer *status) {
    BEGIN(device, CARD);
    if (mode > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    int file = lock();
    Card *card = card_at(h);
    *status = NVML_SUCCESS;
    if (mode != card->mig && (card->user || has_instances(card)))
        *status = NVML_ERROR_IN_USE;
    else if (mode != card->mig && card->needs_reset)
        *status = NVML_ERROR_RESET_REQUIRED;
    else
        card->mig = mode;
    card->pending = mode;
    unlock(file, NVML_SUCCESS);
    return apply_faults(__func__, h.card, 1);
}

/* What `nvidia-smi -r` does: 0 if every card was reset. */
int standInReset(void) {
    int refused = 0, file;
    if (init() != NVML_SUCCESS)
        return 1;
    file = lock();
    for (unsigned n = 0; n < state->cards; n++) {
        Card *card = &state->card[n];
        int users = card->user || card->never_resets;
        for (int gi = 0; gi < INSTANCES; gi++)
            users |= card->instance[gi].used && card->instance[gi].user;
        if (users) {
            refused = 1;
            continue;
        }
        for (int gi = 0; gi < INSTANCES; gi++)
            card->instance[gi].used = 0;
        card->mig = card->pending;
    }
    unlock(file, NVML_SUCCESS);
    nvmlShutdown();
    return refused;
}

Answer nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is) {
    return *is = opened(device.handle).kind == MIG, NVML_SUCCESS;
}

ALWAYS(nvmlDeviceGetMaxMigDeviceCount, unsigned, card_at(h)->mig ? card_at(h)->product.slices : 0)

Answer nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *found) {
    BEGIN(device, CARD);
    Handle mig;
    if (!card_at(h)->mig || mig_device(h.card, index, &mig))
        return NVML_ERROR_NOT_FOUND;
    return found->handle = handle(mig), NVML_SUCCESS;
}

Answer nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *card) {
    BEGIN_INSTANCE(mig, MIG);
    return card->handle = card_handle(h.card), NVML_SUCCESS;
}

Answer nvmlDeviceGetGpuInstanceId(nvmlDevice_t mig, unsigned *id) {
    BEGIN_INSTANCE(mig, MIG);
    return *id = h.gi, NVML_SUCCESS;
}

Answer nvmlDeviceGetComputeInstanceId(nvmlDevice_t mig, unsigned *id) {
    BEGIN_INSTANCE(mig, MIG);
    return *id = h.ci, NVML_SUCCESS;
}

Answer nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *found) {
    BEGIN_DEVICE(device);
    if (slice == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    const Profile *profile = profile_of(h.card, slice);
    unsigned slices = slice->compute[h.ci].slices;
    *found = (nvmlDeviceAttributes_t){
        .multiprocessorCount = profile->multiprocessors * slices / profile->slices,
        .sharedCopyEngineCount = profile->slices,
        .sharedDecoderCount = profile->slices,
        .sharedJpegCount = profile->slices,
        .sharedOfaCount = profile->media,
        .gpuInstanceSliceCount = profile->slices,
        .computeInstanceSliceCount = slices,
        .memorySizeMB = profile->memory_mib,
    };
    return NVML_SUCCESS;
}

/* ---- MIG: GPU instances ---- */

static const Profile *find_profile(unsigned card, int kind, int id) {
    const Product *product = &state->card[card].product;
    for (unsigned n = 0; n < product->profiles; n++)
        if (kind == (int)product->profile[n].kind || id == (int)product->profile[n].id)
            return &product->profile[n];
    return NULL;
}

#define FILL_PROFILE(found, profile)                                                                                   \
    (found)->id = (profile)->id, (found)->sliceCount = (profile)->slices, (found)->instanceCount = (profile)->most,    \
    (found)->multiprocessorCount = (profile)->multiprocessors, (found)->copyEngineCount = (profile)->slices,           \
    (found)->decoderCount = (found)->jpegCount = (profile)->slices, (found)->encoderCount = 0,                         \
    (found)->ofaCount = (profile)->media, (found)->memorySizeMB = (profile)->memory_mib

Answer nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned kind, nvmlGpuInstanceProfileInfo_t *found) {
    BEGIN(device, CARD);
    const Profile *profile = find_profile(h.card, kind, -1);
    if (kind >= NVML_GPU_INSTANCE_PROFILE_COUNT || profile == NULL)
        return profile == NULL && kind < NVML_GPU_INSTANCE_PROFILE_COUNT ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
    memset(found, 0, sizeof *found);
    FILL_PROFILE(found, profile);
    return NVML_SUCCESS;
}

/* The caller's structure says in its version which one it is: v3 has a field more than v2 before the name. */
static Answer fill_versioned(const Profile *profile, nvmlGpuInstanceProfileInfo_v2_t *found) {
    nvmlGpuInstanceProfileInfo_v3_t *newer = (nvmlGpuInstanceProfileInfo_v3_t *)found;
    if (profile == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    if (found->version == nvmlGpuInstanceProfileInfo_v2) {
        FILL_PROFILE(found, profile), found->isP2pSupported = 0;
        snprintf(found->name, sizeof found->name, "MIG %s", profile->name);
    } else if (found->version == nvmlGpuInstanceProfileInfo_v3) {
        FILL_PROFILE(newer, profile), newer->capabilities = 0;
        snprintf(newer->name, sizeof newer->name, "MIG %s", profile->name);
    } else
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return NVML_SUCCESS;
}

Answer nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned kind, nvmlGpuInstanceProfileInfo_v2_t *found) {
    BEGIN(device, CARD);
    return kind < NVML_GPU_INSTANCE_PROFILE_COUNT ? fill_versioned(find_profile(h.card, kind, -1), found) : NVML_ERROR_INVALID_ARGUMENT;
}

Answer nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned id, nvmlGpuInstanceProfileInfo_v2_t *found) {
    BEGIN(device, CARD);
    return fill_versioned(find_profile(h.card, -1, id), found);
}

Answer nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned id, nvmlGpuInstancePlacement_t *found, unsigned *count) {
    BEGIN(device, CARD);
    const Profile *profile = find_profile(h.card, -1, id);
    if (profile == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    *count = 0;
    for (unsigned start = 0; start < 32; start++)
        if (profile->starts >> start & 1) {
            if (found)
                found[*count] = (nvmlGpuInstancePlacement_t){.start = start, .size = profile->size};
            ++*count;
        }
    return NVML_SUCCESS;
}

static int fits(const Card *card, const Profile *profile, unsigned start) {
    unsigned slices = profile->slices, media = profile->media_set, same = 0;
    for (int gi = 0; gi < INSTANCES; gi++) {
        const Instance *other = &card->instance[gi];
        if (!other->used)
            continue;
        const Profile *its = &card->product.profile[other->profile];
        slices += its->slices, media += its->media_set, same += its == profile;
        if (other->start < start + profile->size && start < other->start + its->size)
            return 0;
    }
    return slices <= card->product.slices && same < profile->most && media <= card->product.media_sets;
}

/* `wanted` is a start; -1: the driver's choice. */
static Answer create(Handle h, unsigned id, int wanted, nvmlGpuInstance_t *made) {
    const Profile *profile = find_profile(h.card, -1, id);
    if (profile == NULL || (wanted >= 0 && !(profile->starts >> wanted & 1)))
        return NVML_ERROR_INVALID_ARGUMENT;
    int file = lock();
    Card *card = card_at(h);
    if (!card->mig)
        return unlock(file, NVML_ERROR_NOT_SUPPORTED);
    for (int n = 0; n < 32; n++) {
        unsigned start = state->highest_first ? 31 - n : n;
        if (!(profile->starts >> start & 1) || (wanted >= 0 && (unsigned)wanted != start) || !fits(card, profile, start))
            continue;
        /* the whole card is 0, its halves are 1 and 2, its quarters 3 to 6, its eighths 7 to 14 */
        unsigned gi = card->product.memory_slices / profile->size - 1 + start / profile->size;
        Instance *instance = &card->instance[gi];
        *instance = (Instance){.serial = ++state->serials, .profile = profile - card->product.profile, .start = start};
        made->handle = instance_handle(GI, h.card, gi, 0);
        __atomic_store_n(&instance->used, 1, __ATOMIC_RELEASE);
        return unlock(file, NVML_SUCCESS);
    }
    return unlock(file, NVML_ERROR_INSUFFICIENT_RESOURCES);
}

Answer nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *made) {
    BEGIN(device, CARD);
    Answer answer = create(h, id, -1, made), fault = apply_faults(__func__, h.card, 1);
    return answer ? answer : fault;
}

Answer nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned id, const nvmlGpuInstancePlacement_t *place, nvmlGpuInstance_t *made) {
    BEGIN(device, CARD);
    if (place->start >= 32)
        return NVML_ERROR_INVALID_ARGUMENT;
    Answer answer = create(h, id, place->start, made), fault = apply_faults(__func__, h.card, 1);
    return answer ? answer : fault;
}

Answer nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned id, unsigned *count) {
    BEGIN(device, CARD);
    const Profile *profile = find_profile(h.card, -1, id);
    if (profile == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned same = 0, room = 0, end = 0;
    for (unsigned start = 0; start < 32; start++)
        if (start >= end && profile->starts >> start & 1 && fits(card_at(h), profile, start))
            room++, end = start + profile->size;
    for (int gi = 0; gi < INSTANCES; gi++)
        same += card_at(h)->instance[gi].used && profile_of(h.card, &card_at(h)->instance[gi]) == profile;
    *count = room < profile->most - same ? room : profile->most - same;
    return NVML_SUCCESS;
}

Answer nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *found, unsigned *count) {
    BEGIN(device, CARD);
    *count = 0;
    for (unsigned gi = 0; gi < INSTANCES; gi++)
        if (card_at(h)->instance[gi].used && profile_of(h.card, &card_at(h)->instance[gi])->id == id)
            found[(*count)++].handle = instance_handle(GI, h.card, gi, 0);
    return NVML_SUCCESS;
}

Answer nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *found) {
    BEGIN(device, CARD);
    if (id >= INSTANCES || !card_at(h)->instance[id].used)
        return NVML_ERROR_NOT_FOUND;
    return found->handle = instance_handle(GI, h.card, id, 0), NVML_SUCCESS;
}

Answer nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gpu_instance, nvmlGpuInstanceInfo_t *found) {
    BEGIN_INSTANCE(gpu_instance, GI);
    const Profile *profile = profile_of(h.card, instance);
    *found = (nvmlGpuInstanceInfo_t){.device.handle = card_handle(h.card), .id = h.gi, .profileId = profile->id};
    found->placement = (nvmlGpuInstancePlacement_t){.start = instance->start, .size = profile->size};
    return NVML_SUCCESS;
}

Answer nvmlGpuInstanceDestroy(nvmlGpuInstance_t gpu_instance) {
    BEGIN_INSTANCE(gpu_instance, GI);
    int file = lock();
    for (int ci = 0; ci < COMPUTES; ci++)
        if (instance->compute[ci].used || instance->user)
            return unlock(file, NVML_ERROR_IN_USE);
    __atomic_store_n(&instance->used, 0, __ATOMIC_RELEASE);
    unlock(file, NVML_SUCCESS);
    return apply_faults(__func__, h.card, 1);
}

/* ---- MIG: compute instances; a profile's id is its number in NVML's list ---- */

static unsigned slices_of(unsigned profile) {
    static const unsigned slices[] = {1, 2, 3, 4, 7};
    return profile < sizeof slices / sizeof *slices ? slices[profile] : 0;
}

static int offers(unsigned card, const Instance *instance, unsigned profile) {
    return slices_of(profile) > 0 && slices_of(profile) <= profile_of(card, instance)->slices;
}

Answer nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t gpu_instance, unsigned kind, unsigned engines, nvmlComputeInstanceProfileInfo_t *found) {
    BEGIN_INSTANCE(gpu_instance, GI);
    if (kind >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT || engines >= NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!offers(h.card, instance, kind))
        return NVML_ERROR_NOT_SUPPORTED;
    const Profile *profile = profile_of(h.card, instance);
    *found = (nvmlComputeInstanceProfileInfo_t){
        .id = kind,
        .sliceCount = slices_of(kind),
        .instanceCount = profile->slices / slices_of(kind),
        .multiprocessorCount = profile->multiprocessors * slices_of(kind) / profile->slices,
        .sharedCopyEngineCount = profile->slices,
        .sharedDecoderCount = profile->slices,
        .sharedJpegCount = profile->slices,
        .sharedOfaCount = profile->media,
    };
    return NVML_SUCCESS;
}

Answer nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gpu_instance, unsigned profile, nvmlComputeInstance_t *made) {
    BEGIN_INSTANCE(gpu_instance, GI);
    if (!offers(h.card, instance, profile))
        return NVML_ERROR_INVALID_ARGUMENT;
    int file = lock(), free_one = -1;
    unsigned taken = 0;
    for (int ci = COMPUTES - 1; ci >= 0; ci--) {
        if (instance->compute[ci].used)
            taken += instance->compute[ci].slices;
        else
            free_one = ci;
    }
    if (free_one < 0 || taken + slices_of(profile) > profile_of(h.card, instance)->slices)
        return unlock(file, NVML_ERROR_INSUFFICIENT_RESOURCES);
    Compute *compute = &instance->compute[free_one];
    *compute = (Compute){.profile = profile, .slices = slices_of(profile), .start = taken};
    made->handle = instance_handle(CI, h.card, h.gi, free_one);
    __atomic_store_n(&compute->used, 1, __ATOMIC_RELEASE);
    unlock(file, NVML_SUCCESS);
    return apply_faults(__func__, h.card, 1);
}

Answer nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gpu_instance, unsigned profile, nvmlComputeInstance_t *found, unsigned *count) {
    BEGIN_INSTANCE(gpu_instance, GI);
    *count = 0;
    for (unsigned ci = 0; ci < COMPUTES; ci++)
        if (instance->compute[ci].used && instance->compute[ci].profile == profile)
            found[(*count)++].handle = instance_handle(CI, h.card, h.gi, ci);
    return NVML_SUCCESS;
}

Answer nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gpu_instance, unsigned id, nvmlComputeInstance_t *found) {
    BEGIN_INSTANCE(gpu_instance, GI);
    if (id >= COMPUTES || !instance->compute[id].used)
        return NVML_ERROR_NOT_FOUND;
    return found->handle = instance_handle(CI, h.card, h.gi, id), NVML_SUCCESS;
}

Answer nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute_instance, nvmlComputeInstanceInfo_t *found) {
    BEGIN_INSTANCE(compute_instance, CI);
    const Compute *compute = &instance->compute[h.ci];
    *found = (nvmlComputeInstanceInfo_t){.device.handle = card_handle(h.card), .id = h.ci, .profileId = compute->profile};
    found->gpuInstance.handle = instance_handle(GI, h.card, h.gi, 0);
    found->placement = (nvmlComputeInstancePlacement_t){.start = compute->start, .size = compute->slices};
    return NVML_SUCCESS;
}

Answer nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute_instance) {
    BEGIN_INSTANCE(compute_instance, CI);
    int file = lock();
    if (instance->user)
        return unlock(file, NVML_ERROR_IN_USE);
    __atomic_store_n(&instance->compute[h.ci].used, 0, __ATOMIC_RELEASE);
    unlock(file, NVML_SUCCESS);
    return apply_faults(__func__, h.card, 1);
}
