/* Records as TensorFlow frames them, which TensorBoard reads:
 *
 *     length (8 bytes, little-endian), its check, `length` bytes, their check
 *
 * A check is CRC-32C, rotated and offset, so that a check over bytes that contain a check is not
 * trivial.
 */
#ifndef TERN_IO_TENSORBOARD_RECORD_H
#define TERN_IO_TENSORBOARD_RECORD_H

#include "tern/core.h"

/* CRC-32C (Castagnoli): 0xe3069283 of "123456789". */
TN_API uint32_t tn__crc32c(const void *data, size_t bytes);

enum { TN__RECORD_BEFORE = 12, TN__RECORD_AFTER = 4 };

/* Makes the frame's parts before and after these bytes. */
void tn__record_frame(const void *data, size_t bytes, unsigned char before[TN__RECORD_BEFORE],
                      unsigned char after[TN__RECORD_AFTER]);

#endif
