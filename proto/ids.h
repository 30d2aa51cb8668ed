/* ids.h: the project's id types.  Plain integers; any thread. */
#ifndef PROTO_IDS_H
#define PROTO_IDS_H

#include <stdint.h>

typedef int32_t blk_id;  /* KV block in the global pool, 0..n_blocks-1; -1: none   */
typedef uint32_t seq_id; /* sequence known to kvpool; dense, reused after close    */
typedef uint64_t req_id; /* generation request; never reused while the daemon lives */

#define BLK_NONE ((blk_id) - 1)
#define SEQ_NONE ((seq_id) - 1)

#endif
