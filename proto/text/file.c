/* file.c: a file read whole into a buffer (buf.h). */
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

#include "proto/text/buf.h"

static enum err_code read_open(struct buf *o, FILE *f, const char *path, size_t max_bytes,
                               struct err *e)
{
    struct stat st;
    if (fstat(fileno(f), &st) != 0)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_INVALID, "%s: not a regular file", path);
    if ((unsigned long long)st.st_size > max_bytes)
        return err_set(e, ERR_LIMIT, "%s: %lld bytes: at most %zu", path, (long long)st.st_size,
                       max_bytes);
    size_t n = (size_t)st.st_size;
    enum err_code rc = buf_reserve(o, n, e);
    if (rc)
        return rc;
    size_t got = fread(o->p + o->n, 1, n, f);
    if (got != n)
        return err_set(e, ERR_IO, "%s: read %zu of %zu bytes", path, got, n);
    o->n += n;
    o->p[o->n] = '\0';
    return ERR_OK;
}

enum err_code buf_read_file(struct buf *o, const char *path, size_t max_bytes, struct err *e)
{
    FILE *f = fopen(path, "rbe");
    if (f == NULL)
        return err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: cannot be opened: %s",
                       path, strerror(errno));
    enum err_code rc = read_open(o, f, path, max_bytes, e);
    fclose(f);
    return rc;
}
