/* Shapes, creation, access, views, storages, versions; and that NULL, inert tensors and failed
 * allocations do no harm. */
#include "tern/sys/tensor.h"

#include <math.h>
#include <string.h>

#include "tests/support/fork.h"
#include "tests/support/no_memory.h"

static tn_tensor *arange_of(tn_dims dims) {
    float data[120];
    for (int i = 0; i < 120; i++) {
        data[i] = (float)i;
    }
    return tn_from_data(data, dims, TN_F32);
}

/* ---- Shapes ---------------------------------------------------------------------------------- */

TEST(test_dims) {
    assert_int_equal(tn_dims_count(TN_DIMS()), 1);
    assert_int_equal(tn_dims_count(TN_DIMS(2, 3, 4)), 24);
    assert_int_equal(tn_dims_count(TN_DIMS(2, 0, 4)), 0);
    assert_int_equal(tn_dims_count(TN_DIMS(0, 1ll << 40, 1ll << 40)), 0);
    assert_int_equal(tn_dims_count(TN_DIMS(1ll << 40, 1ll << 40)), INT64_MAX);
    assert_int_equal(tn_dims_count((tn_dims){.ndim = 9}), -1);
    assert_int_equal(tn_dims_count((tn_dims){.ndim = 1, .size = {-2}}), -1);
    int64_t sizes[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    assert_int_equal(tn_dims_from(9, sizes).ndim, -1);
    assert_int_equal(tn_dims_from(-1, sizes).ndim, -1);
    assert_int_equal(tn_dims_from(2, NULL).ndim, -1);
    assert_int_equal(tn_dims_from(8, sizes).ndim, 8);
    assert_true(tn_dims_equal(TN_DIMS(2, 3), TN_DIMS(2, 3)));
    assert_false(tn_dims_equal(TN_DIMS(2, 3), TN_DIMS(3, 2)));
    assert_false(tn_dims_equal(TN_DIMS(2, 3), TN_DIMS(2, 3, 1)));
}

TEST(test_broadcast) {
    static const struct {
        tn_dims a, b, out; /* out.ndim -1: they do not broadcast */
    } rows[] = {
        {{2, {2, 3}}, {2, {2, 3}}, {2, {2, 3}}}, {{2, {2, 3}}, {1, {3}}, {2, {2, 3}}},
        {{2, {2, 1}}, {2, {1, 3}}, {2, {2, 3}}}, {{0, {0}}, {3, {4, 5, 6}}, {3, {4, 5, 6}}},
        {{0, {0}}, {0, {0}}, {0, {0}}},          {{2, {0, 3}}, {2, {1, 1}}, {2, {0, 3}}},
        {{1, {1}}, {1, {0}}, {1, {0}}},          {{1, {2}}, {1, {0}}, {-1, {0}}},
        {{2, {2, 3}}, {2, {3, 2}}, {-1, {0}}},   {{3, {5, 1, 4}}, {2, {3, 1}}, {3, {5, 3, 4}}},
        {{2, {2, 3}}, {1, {2}}, {-1, {0}}},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (int swap = 0; swap < 2; swap++) {
            tn_dims out = TN_DIMS(77);
            bool fits =
                tn_dims_broadcast(swap ? rows[i].b : rows[i].a, swap ? rows[i].a : rows[i].b, &out);
            assert_int_equal(fits, rows[i].out.ndim >= 0);
            assert_true(tn_dims_equal(out, fits ? rows[i].out : TN_DIMS(77)));
        }
    }
    assert_true(tn_dims_broadcast(TN_DIMS(1), TN_DIMS(2), NULL));
    assert_false(tn_dims_broadcast((tn_dims){.ndim = -1}, TN_DIMS(2), NULL));
}

TEST(test_shape_text) {
    assert_string_equal(tn_shape_text(tn_empty(TN_DIMS(64, 20), TN_F32)), "[64, 20]");
    assert_string_equal(tn_shape_text(tn_empty(TN_DIMS(), TN_F32)), "[]");
    tn_tensor *wide = tn_empty(TN_DIMS(0, INT64_MAX / 8, 1, 1, 1, 1, 1, 1), TN_U8);
    assert_string_equal(tn_shape_text(wide), "[0, 1152921504606846975, 1, 1, 1, 1, 1, 1]");
    const char *first = tn_shape_text(tn_empty(TN_DIMS(1), TN_F32)),
               *second = tn_shape_text(tn_empty(TN_DIMS(2), TN_F32));
    assert_string_equal(first, "[1]"); /* buffers are taken in turn */
    assert_string_equal(second, "[2]");
}

/* ---- Creation and access --------------------------------------------------------------------- */

TEST(test_metadata) {
    tn_tensor *t = tn_empty(TN_DIMS(2, 3, 4), TN_F64);
    assert_false(tn_is_inert(t));
    assert_int_equal(tn_ndim(t), 3);
    assert_true(tn_dims_equal(tn_shape(t), TN_DIMS(2, 3, 4)));
    assert_int_equal(tn_size(t, 0), 2);
    assert_int_equal(tn_size(t, -1), 4);
    assert_int_equal(tn_stride(t, 0), 12);
    assert_int_equal(tn_stride(t, -2), 4);
    assert_int_equal(tn_count(t), 24);
    assert_int_equal(tn_dtype_of(t), TN_F64);
    assert_int_equal(tn_device_of(t).kind, TN_CPU);
    assert_true(tn_is_contiguous(t));
    assert_int_equal((uintptr_t)tn_data(t) % 64, 0);
    tn_tensor *like = tn_empty_like(t);
    assert_true(tn_dims_equal(tn_shape(like), tn_shape(t)));
    assert_int_equal(tn_dtype_of(like), TN_F64);
    assert_true(tn_shares_storage(t, t));
    assert_false(tn_shares_storage(t, like));
    tn_size(t, 3);
    assert_error(TN_EINDEX, "size: dimension 3 of a tensor with 3 dimensions ([2, 3, 4])");
    tn_stride(t, -4);
    assert_error(TN_EINDEX, "stride: dimension -4");
}

TEST(test_bad_shapes) {
    assert_inert(tn_empty(TN_DIMS(2, -3), TN_F32), TN_ESHAPE,
                 "empty: the shape is [2, -3] (no size may be negative)");
    assert_inert(tn_empty((tn_dims){.ndim = 12}, TN_F32), TN_ESHAPE,
                 "empty: the shape has more than 8 dimensions");
    assert_inert(tn_empty(TN_DIMS(2), (tn_dtype)17), TN_EDTYPE, "empty: 17 is not a dtype");
    assert_inert(tn_empty(TN_DIMS(1ll << 31, 1ll << 31, 2), TN_F32), TN_ENOMEM,
                 "empty: [2147483648, 2147483648, 2] elements of f32");
    assert_inert(tn__new(TN_DIMS(2), TN_F32, (tn_device){TN_CPU, 3}), TN_EDEVICE,
                 "empty: there is no device cpu:3: 1 device is here");
}

TEST(test_from_data) {
    int32_t x[] = {1, 2, 3, 4, 5, 6}, back[6];
    tn_tensor *t = TN_FROM(x, TN_DIMS(2, 3), TN_I32);
    x[4] = 50; /* t has a copy */
    assert_true(tn_at(t, TN_DIMS(1, 1)) == 5);
    assert_int_equal(tn_copy_out(t, back), TN_OK);
    assert_int_equal(back[5], 6);
    assert_inert(TN_FROM(x, TN_DIMS(2, 2), TN_I32), TN_ESHAPE,
                 "from: the array has 24 bytes but [2, 2] of i32 has 16");
    assert_inert(tn_from_data(NULL, TN_DIMS(2), TN_I32), TN_EVALUE,
                 "from_data: data is NULL but the shape is [2]");
    tn_tensor *none = tn_from_data(NULL, TN_DIMS(0, 2), TN_I32);
    assert_int_equal(tn_count(none), 0);
    assert_non_null(tn_data(none));
    assert_int_equal(tn_copy_out(none, NULL), TN_OK);
}

static int releases;
static void *released_data, *released_user;
static void note_release(void *data, void *user) {
    releases++;
    released_data = data;
    released_user = user;
}

TEST(test_from_memory) {
    static float x[4] = {1, 2, 3, 4};
    int user;
    releases = 0;
    {
        TN_SCOPE;
        tn_tensor *t = tn_from_memory(x, TN_DIMS(2, 2), TN_F32, note_release, &user);
        assert_ptr_equal(tn_data(t), x);
        x[3] = 40;
        assert_true(tn_at(t, TN_DIMS(1, 1)) == 40);
        tn_tensor *view = tn_keep(tn_alias(t, 2, TN_DIMS(2)));
        tn_drop(t);
        assert_int_equal(releases, 0);
        tn_release(view);
        tn_from_memory(x, TN_DIMS(4), TN_F32, NULL, NULL);
    }
    assert_int_equal(releases, 1);
    assert_ptr_equal(released_data, x);
    assert_ptr_equal(released_user, &user);
    assert_inert(tn_from_memory(NULL, TN_DIMS(2), TN_F32, note_release, NULL), TN_EVALUE,
                 "from_memory: data is NULL");
    assert_inert(tn_from_memory(x, TN_DIMS(-2), TN_F32, note_release, NULL), TN_ESHAPE,
                 "from_memory");
    assert_int_equal(releases, 1);
}

TEST(test_item_and_at) {
    int64_t big = 1ll << 40;
    uint8_t truth = 7, byte = 200;
    tn_bf16 b = tn_bf16_from_float(1.5f);
    tn_f16 h = tn_f16_from_float(-2.5f);
    double d = 0.1;
    assert_true(tn_item(tn_from_data(&big, TN_DIMS(1, 1), TN_I64)) == 0x1p40);
    assert_true(tn_item(tn_from_data(&truth, TN_DIMS(), TN_BOOL)) == 1);
    assert_true(tn_item(tn_from_data(&byte, TN_DIMS(), TN_U8)) == 200);
    assert_true(tn_item(tn_from_data(&b, TN_DIMS(), TN_BF16)) == 1.5);
    assert_true(tn_item(tn_from_data(&h, TN_DIMS(), TN_F16)) == -2.5);
    assert_true(tn_item(tn_from_data(&d, TN_DIMS(), TN_F64)) == 0.1);
    tn_tensor *t = arange_of(TN_DIMS(2, 3));
    assert_true(isnan(tn_item(t)));
    assert_error(TN_ESHAPE, "item: the tensor is [2, 3], which is 6 elements, not one");
    assert_true(isnan(tn_at(t, TN_DIMS(1, 3))));
    assert_error(TN_EINDEX, "at: index 3 at dimension 1 of [2, 3]");
    assert_true(isnan(tn_at(t, TN_DIMS(-1, 0))));
    assert_error(TN_EINDEX, "at: index -1 at dimension 0");
    assert_true(isnan(tn_at(t, TN_DIMS(1))));
    assert_error(TN_ESHAPE,
                 "at: the index is [1] but the tensor is [2, 3] (an index has one position for");
    assert_true(isnan(tn_at(t, TN_DIMS(1, 1, 0))));
    assert_error(TN_ESHAPE, "at: the index is [1, 1, 0] but the tensor is [2, 3]");
    assert_true(isnan(tn_at(tn_ones(TN_DIMS(), TN_F32), TN_DIMS(0))));
    assert_error(TN_ESHAPE, "at: the index is [0] but the tensor is []");
    assert_true(tn_at(tn_ones(TN_DIMS(), TN_F32), TN_DIMS()) == 1);
    assert_true(isnan(tn_at(t, TN_DIMS(0, 0, 0, 0, 0, 0, 0, 0, 0))));
    assert_error(TN_ESHAPE, "at: the index is [more than 8] but the tensor is [2, 3]");
    assert_int_equal(tn_copy_out(t, NULL), TN_EVALUE);
    assert_error(TN_EVALUE, "copy_out: the destination is NULL");
}

/* ---- Views, versions, storages --------------------------------------------------------------- */

TEST(test_views) {
    tn_tensor *t = arange_of(TN_DIMS(2, 3, 4));
    /* axes permuted, every second row */
    tn_tensor *v = tn__view(t, TN_DIMS(4, 2, 2), (int64_t[]){1, 12, 8}, 0);
    float out[16];
    assert_false(tn_is_contiguous(v));
    assert_int_equal(tn_copy_out(v, out), TN_OK);
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 2; j++) {
            for (int k = 0; k < 2; k++) {
                assert_true(out[(i * 2 + j) * 2 + k] == (float)(i + 12 * j + 8 * k));
                assert_true(tn_at(v, TN_DIMS(i, j, k)) == i + 12 * j + 8 * k);
            }
        }
    }
    tn_tensor *repeated = tn__view(t, TN_DIMS(3, 2), (int64_t[]){0, 1}, 5);
    assert_int_equal(tn_copy_out(repeated, out), TN_OK);
    for (int i = 0; i < 6; i++) {
        assert_true(out[i] == (float)(5 + i % 2));
    }
    /* a size of 1 has any stride */
    assert_true(tn_is_contiguous(tn__view(t, TN_DIMS(1, 4), (int64_t[]){99, 1}, 20)));
    assert_true(tn_is_contiguous(tn__view(t, TN_DIMS(0, 4), (int64_t[]){7, 7}, 0)));

    assert_inert(tn__view(t, TN_DIMS(2, 3), (int64_t[]){12, 6}, 0), TN_EINDEX,
                 "view: [2, 3] at offset 0 does not fit into a storage of 24 elements");
    assert_inert(tn__view(t, TN_DIMS(2), (int64_t[]){1}, 23), TN_EINDEX, "offset 23");
    assert_inert(tn__view(t, TN_DIMS(2), (int64_t[]){1}, -1), TN_EINDEX, "offset -1");
    assert_inert(tn__view(t, TN_DIMS(3, 3), (int64_t[]){INT64_MAX, INT64_MAX}, 0), TN_EINDEX,
                 "view");
}

TEST(test_versions) {
    tn_tensor *flat = arange_of(TN_DIMS(10));
    tn_tensor *a = tn_alias(flat, 0, TN_DIMS(2, 2)), *b = tn_alias(flat, 4, TN_DIMS(6));
    tn_tensor *half_of_b = tn__view(b, TN_DIMS(3), (int64_t[]){1}, 4),
              *of_flat = tn__view(flat, TN_DIMS(3), (int64_t[]){1}, 0);
    uint32_t before_flat = flat->version->value, before_a = a->version->value,
             before_b = b->version->value;
    tn__touch(a);
    assert_int_equal(a->version->value, before_a + 1);
    assert_int_equal(b->version->value, before_b);
    assert_int_equal(flat->version->value, before_flat);
    tn__touch(half_of_b); /* a view shares */
    assert_int_equal(b->version->value, before_b + 1);
    tn__touch(of_flat);
    assert_int_equal(flat->version->value, before_flat + 1);
    assert_int_equal(a->version->value, before_a + 1);
    assert_true(tn_shares_storage(a, b) && tn_shares_storage(a, flat));
    assert_true(tn_at(b, TN_DIMS(1)) == 5);
    tn_tensor *kept = tn_keep(half_of_b);
    tn_drop(b);
    tn_drop(half_of_b);
    tn__touch(kept); /* the counter is still alive */
    assert_int_equal(kept->version->value, before_b + 2);
    tn_release(kept);
    assert_inert(tn_alias(flat, 5, TN_DIMS(6)), TN_EINDEX,
                 "alias: [6] at offset 5 does not fit into a storage of 10 elements");
    assert_inert(tn_alias(flat, 0, TN_DIMS(-1)), TN_ESHAPE, "alias");
}

TEST(test_storage_empty_and_refill) {
    tn_tensor *t = tn_empty(TN_DIMS(1000, 10), TN_F32), *v = tn_alias(t, 10, TN_DIMS(5));
    uint32_t version = t->version->value;
    int64_t allocated = tn_memory().allocated;
    assert_false(tn_storage_is_empty(t));
    assert_int_equal(tn_storage_empty(t), TN_OK);
    assert_int_equal(tn_memory().allocated, allocated - 40000);
    assert_true(tn_storage_is_empty(v));
    assert_int_equal(tn_storage_empty(v), TN_OK); /* again: nothing to do */
    assert_int_equal(tn_size(t, 0), 1000);
    assert_true(isnan(tn_at(v, TN_DIMS(0))));
    assert_error(TN_ESTATE, "at: the storage of [5] is empty");
    assert_non_null(tn_data(t));
    assert_error(TN_ESTATE, "data: the storage of [1000, 10] is empty");
    assert_false(tn__usable(v, "matmul"));
    assert_error(TN_ESTATE, "matmul: ");
    tn_tensor *w = tn_alias(t, 0, TN_DIMS(3)); /* views of an empty storage can be made */
    assert_false(tn_is_inert(w));

    assert_int_equal(tn_storage_refill(v), TN_OK);
    assert_int_equal(tn_storage_refill(v), TN_OK);
    assert_false(tn_storage_is_empty(t));
    memset(tn_data_mut(t), 0, 40000);
    assert_true(tn_at(w, TN_DIMS(2)) == 0);
    assert_int_equal(t->version->value, version);
    assert_int_equal(tn_memory().allocated, allocated);

    tn_storage_empty(t);
    tn__alloc_fail_at(0);
    assert_int_equal(tn_storage_refill(t), TN_ENOMEM);
    assert_error(TN_ENOMEM, "storage_refill: no memory for 40000 bytes");
    assert_true(tn_storage_is_empty(t));
    tn_raise(TN_EVALUE, "pending");
    assert_int_equal(tn_storage_refill(t), TN_EVALUE); /* no effect while an error is pending */
    assert_true(tn_storage_is_empty(t));
    tn_error_clear();
}

TEST(test_foreign_memory_is_released_when_emptied) {
    static float x[3] = {1, 2, 3};
    releases = 0;
    {
        TN_SCOPE;
        tn_tensor *t = tn_from_memory(x, TN_DIMS(3), TN_F32, note_release, NULL);
        assert_int_equal(tn_storage_empty(t), TN_OK);
        assert_int_equal(releases, 1);
        assert_int_equal(tn_storage_refill(t), TN_OK);
        assert_ptr_not_equal(tn_data(t), x);
    }
    assert_int_equal(releases, 1);
}

static void write_shared(void *user) {
    tn_tensor *t = user;
    child_assert(tn_at(t, TN_DIMS(2)) == 3);
    tn_fill_(t, 7);
}

TEST(test_storage_shared_with_children) {
    int64_t allocated = tn_memory().allocated;
    tn_tensor *t = tn_from_data((float[]){1, 2, 3}, TN_DIMS(3), TN_F32);
    tn_tensor *v = tn_alias(t, 1, TN_DIMS(2));
    assert_child(write_shared, t);
    assert_true(tn_at(t, TN_DIMS(2)) == 3); /* it was the child's own */
    assert_int_equal(tn_storage_share(v), TN_OK);
    assert_int_equal(tn_memory().allocated, allocated);
    const void *data = tn_data(t);
    assert_int_equal(tn_storage_share(t), TN_OK); /* again: nothing to do */
    assert_ptr_equal(tn_data(t), data);
    assert_child(write_shared, t);
    assert_true(tn_at(t, TN_DIMS(0)) == 7 && tn_at(v, TN_DIMS(1)) == 7);

    assert_int_equal(tn_storage_share(tn_empty(TN_DIMS(0), TN_F32)), TN_OK);
    assert_int_equal(tn_storage_empty(t), TN_OK);
    assert_int_equal(tn_storage_share(t), TN_ESTATE);
    assert_error(TN_ESTATE, "storage_share: the storage of [3] is empty");
}

/* ---- Calls that cannot work do no harm ------------------------------------------------------- */

TEST(test_inert) {
    tn_tensor *t = tn_inert();
    char out[8] = "before";
    assert_true(tn_is_inert(t));
    assert_int_equal(tn_ndim(t), 0);
    assert_int_equal(tn_shape(t).ndim, 0);
    assert_int_equal(tn_size(t, 0), 0);
    assert_int_equal(tn_stride(t, 5), 0);
    assert_int_equal(tn_count(t), 1);
    tn_dtype_of(t);
    tn_device_of(t);
    assert_true(tn_is_contiguous(t));
    assert_false(tn_shares_storage(t, t));
    assert_true(isnan(tn_item(t)));
    assert_true(isnan(tn_at(t, TN_DIMS(0))));
    const char *zeros = tn_data(t);
    for (int i = 0; i < 65536; i++) {
        assert_int_equal(zeros[i], 0);
    }
    memset(tn_data_mut(t), 0xff, 65536);
    assert_int_equal(zeros[0], 0);
    assert_int_equal(tn_copy_out(t, out), TN_ESTATE);
    assert_string_equal(out, "before");
    assert_string_equal(tn_shape_text(t), "[]");
    assert_int_equal(tn_storage_empty(t), TN_ESTATE);
    assert_int_equal(tn_storage_refill(t), TN_ESTATE);
    assert_false(tn_storage_is_empty(t));
    assert_true(tn_is_inert(tn_alias(t, 0, TN_DIMS(1))));
    assert_true(tn_is_inert(tn_empty_like(t)));
    assert_false(tn__usable(t, "add"));
    assert_int_equal(tn_error(), TN_OK); /* inert in, inert out: no new error */
    tn_raise(TN_ESHAPE, "pending");
    assert_int_equal(tn_copy_out(t, out), TN_ESHAPE);
    assert_int_equal(tn_storage_empty(t), TN_ESHAPE);
    tn_error_clear();
}

static void make_some(void) {
    TN_SCOPE;
    static float memory[2] = {1, 2};
    float x[6] = {1, 2, 3, 4, 5, 6};
    int64_t allocated = tn_memory().allocated;
    bool taken;
    releases = 0;
    {
        TN_SCOPE;
        tn_tensor *t = TN_FROM(x, TN_DIMS(2, 3), TN_F32);
        tn_tensor *a = tn_alias(t, 2, TN_DIMS(1)), *like = tn_empty_like(a);
        tn_tensor *m = tn_from_memory(memory, TN_DIMS(2), TN_F32, note_release, NULL);
        taken = !tn_is_inert(m);
        tn_copy_out(t, x);
        tn_shares_storage(m, like);
        if (tn_storage_empty(t) == TN_OK && tn_storage_refill(t) == TN_OK) { tn_item(a); }
    }
    assert_int_equal(tn_memory().allocated, allocated);
    assert_int_equal(releases, taken);
}

/* The caller's memory is freed only if the tensor took it. */
TEST(test_every_allocation_fails) {
    assert_true(every_allocation(make_some) > 8);
}
