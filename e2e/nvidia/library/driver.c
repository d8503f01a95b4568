/* The state file, handles, and what happens to every call. */
#include "driver.h"
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>

State *state;
int inits;
static char state_path[4096];

/* ---- the state file ---- */

/* A descriptor of its own for each lock: threads and forked processes keep each other out, too. */
int lock(void) {
    int file = open(state_path, O_RDWR | O_CLOEXEC);
    flock(file, LOCK_EX);
    return file;
}

Answer unlock(int file, Answer answer) {
    close(file);
    return answer;
}

/* The map stays until another file is named: a thread may still be waiting for events when its process is done with NVML. */
Answer init(void) {
    const char *path = getenv("TESSERA_STAND_IN_DRIVER");
    if (inits == 0 && path != NULL && strcmp(path, state_path)) {
        int file = open(path, O_RDWR | O_CLOEXEC);
        if (file < 0)
            return NVML_ERROR_DRIVER_NOT_LOADED;
        int fits = lseek(file, 0, SEEK_END) == sizeof(State);
        void *mapped = fits ? mmap(NULL, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
        close(file);
        if (mapped == MAP_FAILED)
            return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
        if (state != NULL)
            munmap(state, sizeof(State));
        snprintf(state_path, sizeof state_path, "%s", path);
        state = mapped;
    }
    if (state == NULL)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    inits++;
    return NVML_SUCCESS;
}

Answer nvmlInit(void) { return init(); }
Answer nvmlInit_v2(void) { return init(); }
Answer nvmlInitWithFlags(unsigned flags) { return (void)flags, init(); }

Answer nvmlShutdown(void) {
    if (inits == 0)
        return NVML_ERROR_UNINITIALIZED;
    inits--;
    return NVML_SUCCESS;
}

/* ---- handles: numbers that say where a thing is; the serial tells an instance from a later one at the same place ---- */

void *handle(Handle h) {
    return (void *)((uint64_t)h.kind << 56 | (uint64_t)h.serial << 24 | h.card << 16 | h.gi << 8 | h.ci);
}

Handle opened(const void *number) {
    uint64_t n = (uint64_t)(uintptr_t)number;
    return (Handle){.kind = n >> 56, .serial = n >> 24, .card = n >> 16 & 255, .gi = n >> 8 & 255, .ci = n & 255};
}

void *card_handle(unsigned card) { return handle((Handle){.kind = CARD, .card = card}); }
Card *card_at(Handle h) { return &state->card[h.card]; }

Instance *instance_at(Handle h) {
    Instance *found = &card_at(h)->instance[h.gi];
    return h.gi < INSTANCES && found->used && found->serial == h.serial ? found : NULL;
}

void *instance_handle(enum Kind kind, unsigned card, unsigned gi, unsigned ci) {
    return handle((Handle){kind, state->card[card].instance[gi].serial, card, gi, ci});
}

const Profile *profile_of(unsigned card, const Instance *instance) {
    return &state->card[card].product.profile[instance->profile];
}

int mig_device(unsigned card, unsigned index, Handle *found) {
    for (unsigned gi = 0; gi < INSTANCES; gi++)
        for (unsigned ci = 0; ci < COMPUTES; ci++) {
            const Instance *instance = &state->card[card].instance[gi];
            if (instance->used && instance->compute[ci].used && index-- == 0)
                return *found = (Handle){MIG, instance->serial, card, gi, ci}, 0;
        }
    return -1;
}

/* ---- every call: counted, written down, and perhaps made to fail ---- */

Answer apply_faults(const char *function, int card, int after) {
    for (int n = 0; n < FAULTS; n++) {
        Fault *fault = &state->fault[n];
        if (!fault->left || fault->after != (uint32_t)after || (fault->card >= 0 && fault->card != card)
            || fnmatch(fault->function, function, 0))
            continue;
        int file = lock();
        if (fault->skip || !fault->left) {
            fault->skip -= fault->skip > 0;
            unlock(file, NVML_SUCCESS);
            continue;
        }
        if (fault->action != HANG)
            fault->left -= fault->left != FOREVER;
        unlock(file, NVML_SUCCESS);
        if (fault->action == KILL)
            raise(SIGKILL);
        for (uint32_t serial = fault->serial; fault->action == HANG && fault->left && fault->serial == serial;)
            usleep(PAUSE);
        if (fault->action == ANSWER)
            return fault->answer;
    }
    return NVML_SUCCESS;
}

Answer called(const char *function, int card) {
    if (inits == 0)
        return NVML_ERROR_UNINITIALIZED;
    Call *call = &state->call[__atomic_fetch_add(&state->calls, 1, __ATOMIC_RELAXED) % CALLS];
    call->pid = getpid();
    call->card = card;
    snprintf(call->function, sizeof call->function, "%s", function);
    if (card >= (int)state->cards)
        return NVML_ERROR_INVALID_ARGUMENT;
    Answer answer = apply_faults(function, card, 0);
    return answer == NVML_SUCCESS && card >= 0 && state->card[card].lost ? NVML_ERROR_GPU_IS_LOST : answer;
}

const char *nvmlErrorString(Answer answer) {
    static const char *const words[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized",
        "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
        "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
        "GPU access blocked by the operating system", "Driver/library version mismatch", "In use by another client",
        "Insufficient Memory", "No data", "ECC not supported", "Insufficient Resources"};
    return answer < sizeof words / sizeof *words ? words[answer] : "Unknown Error";
}
