/* cores.c: see cores.h.  Reads sysfs once per call. */
#include "model/cpu/cores.h"

#include <sched.h>
#include <stdio.h>

enum { CPUS = CPU_SETSIZE };

/* A topology value of a CPU, or -1. */
static int topology(int cpu, const char *what)
{
    char path[96];
    int v = -1;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, what);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return -1;
    if (fscanf(f, "%d", &v) != 1)
        v = -1;
    fclose(f);
    return v;
}

uint32_t model_cpu_physical_cores(void)
{
    static const int unknown = -1;
    int core[CPUS], package[CPUS];
    uint32_t n = 0;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    for (int cpu = 0; cpu < CPUS; cpu++) {
        if (!CPU_ISSET(cpu, &set))
            continue;
        int c = topology(cpu, "core_id"), p = topology(cpu, "physical_package_id");
        uint32_t i = 0;
        while (i < n && (c == unknown || core[i] != c || package[i] != p))
            i++;
        if (i < n)
            continue;
        core[n] = c;
        package[n++] = p;
    }
    return n > 0 ? n : 1;
}
