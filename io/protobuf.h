/* Writing protocol buffers: a message that grows (protobuf.dev/programming-guides/encoding).
 *
 * Fields are written in any order, by their number. After a failure the calls do nothing; the
 * caller checks `failed` once, at the end.
 *
 *     tn__buffer value = {0}, event = {0};
 *     tn__message_text(&value, 1, "loss");
 *     tn__message_float(&value, 2, 0.5f);
 *     tn__message_put(&event, 5, &value);      // and value is empty again
 *     ... event.failed ? no memory : event.at, event.bytes ...
 *     tn__buffer_free(&event);
 */
#ifndef TERN_IO_PROTOBUF_H
#define TERN_IO_PROTOBUF_H

#include "core/buffer.h"

void tn__message_whole(tn__buffer *m, int field, uint64_t value);
void tn__message_double(tn__buffer *m, int field, double value);
void tn__message_float(tn__buffer *m, int field, float value);
void tn__message_bytes(tn__buffer *m, int field, const void *from, size_t bytes);
void tn__message_text(tn__buffer *m, int field, const char *text);
void tn__message_doubles(tn__buffer *m, int field, const double *values, int n); /* packed */

/* The head of a field whose `bytes` bytes the caller writes after it. */
void tn__message_ahead(tn__buffer *m, int field, size_t bytes);

/* Another message as a field; it is freed, and its failure becomes m's. */
void tn__message_put(tn__buffer *m, int field, tn__buffer *inner);
/* Appends the fields of another message to m; the rest as above. */
void tn__message_append(tn__buffer *m, tn__buffer *more);

#endif
