#include "distributed/parallel/flat.h"

int64_t tn__flat_line(tn_dtype dtype) {
    return 64 / (int64_t)tn_dtype_size(dtype);
}

static int64_t whole_lines(int64_t count, int64_t line) {
    return (count + line - 1) / line * line;
}

int64_t tn__flat_place(int64_t *total, int64_t count, int64_t line) {
    int64_t offset = *total;
    *total += whole_lines(count, line);
    return offset;
}

int64_t tn__flat_each(int64_t total, int ranks, int64_t line) {
    return whole_lines((total + ranks - 1) / ranks, line);
}

tn__flat_cut tn__flat_cut_of(int64_t offset, int64_t count, int64_t each, int rank) {
    int64_t first = rank * each, last = first + each;
    int64_t from = offset > first ? offset : first;
    int64_t to = offset + count < last ? offset + count : last;
    return from < to ? (tn__flat_cut){from - offset, to - from, from - first} : (tn__flat_cut){0};
}
