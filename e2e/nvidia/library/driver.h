/* A stand-in for NVIDIA's driver: libnvidia-ml.so.1 with cards that can be cut, and with faults on demand.
 *
 * Cards, their products and how they are cut are one file, which every process maps: the environment's TESSERA_STAND_IN_DRIVER
 * names it. `driver.py` makes the file and changes it while programs run. `state.py` has its layout, from which state.h is made.
 * A change is made under a lock on the file, which the kernel undoes when a process dies; the last store of each change is the
 * one that makes it count, so a process that is killed leaves a whole state. Every call is counted and written down.
 *
 * Functions that are not here answer "not supported" (`build` adds them): NVIDIA's programs bind what they need by name and end
 * where a name is missing.
 *
 * What no card has told us, because MIG was never on where we could look, is a guess here:
 *  - which place nvmlDeviceCreateGpuInstance takes by itself (the lowest one; `highest_first` turns it round),
 *  - how GPU instances are numbered (by size and place),
 *  - whether a slice that is made again at the same place has the same UUID (it has not; `stable_uuids` turns it round),
 *  - the greatest number of MIG devices (the card's compute slices), and that their indices have no gaps,
 *  - what nvmlDeviceSetMigMode says of a card that has instances (it succeeds, is pending, and tells "in use"),
 *  - engines and multiprocessors of products other than H200.
 * A profile's places and counts are Tessera's own tables: this library cannot prove them.
 */
#pragma once
#define _GNU_SOURCE
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include "nvml.h"
#include "state.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#pragma GCC visibility push(hidden)

typedef nvmlReturn_t Answer;
enum { NO_INSTANCE = 0xFFFFFFFFu, PAUSE = 10000 /* microseconds */ };

extern State *state;
extern int inits; /* how often NVML was initialized and not shut down */
Answer init(void);
int lock(void);
Answer unlock(int file, Answer answer);

/* Handles are numbers that say where a thing is; the serial tells an instance from a later one at the same place. */
enum Kind { CARD = 1, MIG, GI, CI };
typedef struct { unsigned kind, serial, card, gi, ci; } Handle;
void *handle(Handle h);
Handle opened(const void *number);
void *card_handle(unsigned card);
void *instance_handle(enum Kind kind, unsigned card, unsigned gi, unsigned ci);
Card *card_at(Handle h);
Instance *instance_at(Handle h);                                            /* NULL: it is gone */
int mig_device(unsigned card, unsigned index, Handle *found);               /* the card's MIG device with this index; -1: none */
const Profile *profile_of(unsigned card, const Instance *instance);

/* Every call is counted, written down, and perhaps made to fail; `card` is -1 for those that concern none. */
Answer called(const char *function, int card);
Answer apply_faults(const char *function, int card, int after);

#pragma GCC visibility pop

/* What a function begins with: `h` is its handle; one of another kind, or of a thing that is gone, is refused. */
#define BEGIN(argument, wanted)                                                                                        \
    Handle h = opened((argument).handle);                                                                              \
    do {                                                                                                               \
        Answer refused = h.kind == 0 ? NVML_ERROR_INVALID_ARGUMENT : called(__func__, h.card);                         \
        if (refused != NVML_SUCCESS)                                                                                   \
            return refused;                                                                                            \
        if (h.kind != (wanted))                                                                                        \
            return NVML_ERROR_INVALID_ARGUMENT;                                                                        \
    } while (0)
#define BEGIN_INSTANCE(argument, wanted)                                                                               \
    BEGIN(argument, wanted);                                                                                           \
    Instance *instance = instance_at(h);                                                                               \
    if (instance == NULL || (h.kind != GI && !instance->compute[h.ci].used))                                           \
        return h.kind == MIG ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT;
#define BEGIN_SYSTEM()                                                                                                 \
    do {                                                                                                               \
        Answer refused = called(__func__, -1);                                                                         \
        if (refused != NVML_SUCCESS)                                                                                   \
            return refused;                                                                                            \
    } while (0)
/* A card or a MIG device of it: `slice` is NULL for a card. */
#define BEGIN_DEVICE(argument)                                                                                         \
    BEGIN(argument, h.kind == MIG ? MIG : CARD);                                                                       \
    const Instance *slice = h.kind == MIG ? instance_at(h) : NULL;                                                     \
    if (h.kind == MIG && (slice == NULL || !slice->compute[h.ci].used))                                                \
        return NVML_ERROR_NOT_FOUND;
/* Questions with one answer for every card. */
#define ALWAYS(function, type, value)                                                                                  \
    Answer function(nvmlDevice_t device, type *found) { BEGIN(device, CARD); return *found = (value), NVML_SUCCESS; }
