/* inspect.h: what the engine thread looks up for operators: which requests hold
 * which blocks.  Engine thread. */
#ifndef SERVER_ENGINE_INSPECT_H
#define SERVER_ENGINE_INSPECT_H

#include "server/engine/engine.h"

/* Fill the answer of m. */
void inspect_blocks(const struct kvpool *p, const struct sched *s, const struct kv_layout *lay,
                    struct engine_blocks *m);

#endif
