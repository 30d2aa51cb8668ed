/* safetensors.h: one mapped .safetensors file: where its tensors lie.
 *
 * The header is hostile input: every length, shape and offset is checked
 * against the file before anything is allocated or read, and the tensors must
 * tile the data exactly (no gap, no overlap, nothing past the end).
 * Immutable after open; any thread. */
#ifndef MODEL_LOAD_SAFETENSORS_H
#define MODEL_LOAD_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

enum st_dtype {
    ST_BF16,
    ST_F16,
    ST_F32,
    ST_F64,
    ST_U8,
    ST_I8,
    ST_BOOL,
    ST_I16,
    ST_U16,
    ST_I32,
    ST_U32,
    ST_I64,
    ST_U64,
    ST_F8_E4M3,
    ST_F8_E5M2,
    ST_F8_E8M0,
    ST_DTYPES
};

enum { ST_MAX_DIMS = 8 };

struct st_tensor {
    const char *name; /* borrowed until close: n_name bytes and a NUL */
    uint32_t n_name;
    enum st_dtype dtype;
    uint32_t n_dims;
    uint64_t shape[ST_MAX_DIMS];
    uint64_t n_elements, n_bytes;
    const unsigned char *data; /* unaligned; borrowed until close */
};

struct st_file;

/* Map and check a file.  ERR_IO when it cannot be read, ERR_INVALID when it is
 * not a well-formed safetensors file. */
MUST_USE enum err_code model_st_open(struct st_file **out, const char *path, struct err *e);

/* The same over bytes in memory, borrowed until close; `name` is used in messages. */
MUST_USE enum err_code model_st_open_bytes(struct st_file **out, const char *name,
                                           const void *bytes, size_t n_bytes, struct err *e);
void model_st_close(struct st_file *f);

/* Tensors sorted by name. */
size_t model_st_n_tensors(const struct st_file *f);
const struct st_tensor *model_st_tensor_at(const struct st_file *f, size_t i);

/* NULL when there is none of that name. */
const struct st_tensor *model_st_find(const struct st_file *f, const char *name);

const char *model_st_dtype_name(enum st_dtype d);
uint32_t model_st_dtype_bytes(enum st_dtype d);

#endif
