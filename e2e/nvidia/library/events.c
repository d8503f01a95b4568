/* Events: a set reads the ring from where it was made, and is told of the cards that were registered. */
#include "driver.h"

typedef struct { uint64_t next; uint32_t cards; } Set;

Answer nvmlEventSetCreate(nvmlEventSet_t *set) {
    BEGIN_SYSTEM();
    Set *made = calloc(1, sizeof *made);
    made->next = state->events;
    return set->handle = (void *)made, NVML_SUCCESS;
}

Answer nvmlEventSetFree(nvmlEventSet_t set) { return free(set.handle), NVML_SUCCESS; }

Answer nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    BEGIN_DEVICE(device);
    if (slice != NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    return ((Set *)set.handle)->cards |= 1u << h.card, (void)types, NVML_SUCCESS;
}

Answer nvmlEventSetWait_v2(nvmlEventSet_t handle_of_set, nvmlEventData_t *found, unsigned milliseconds) {
    BEGIN_SYSTEM();
    Set *set = (Set *)handle_of_set.handle;
    for (uint64_t waited = 0; inits > 0; waited += PAUSE) {
        while (set->next < __atomic_load_n(&state->events, __ATOMIC_ACQUIRE)) {
            Event event = state->event[set->next++ % EVENTS];
            if (!(set->cards >> event.card & 1))
                continue;
            *found = (nvmlEventData_t){.eventType = nvmlEventTypeXidCriticalError, .eventData = event.xid};
            found->device.handle = card_handle(event.card);
            found->gpuInstanceId = event.instance;
            found->computeInstanceId = event.instance == NO_INSTANCE ? NO_INSTANCE : 0;
            return NVML_SUCCESS;
        }
        if (waited >= (uint64_t)milliseconds * 1000)
            return NVML_ERROR_TIMEOUT;
        usleep(PAUSE);
    }
    return NVML_ERROR_UNINITIALIZED;
}
