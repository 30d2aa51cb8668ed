/* cores.h: how many physical cores this process may use.  Any thread. */
#ifndef MODEL_CPU_CORES_H
#define MODEL_CPU_CORES_H

#include <stdint.h>

/* Distinct cores among the CPUs of the calling thread's affinity mask: two
 * hardware threads of one core share its multipliers, so counting them twice
 * gains nothing.  All CPUs where the system does not tell; at least 1. */
uint32_t model_cpu_physical_cores(void);

#endif
