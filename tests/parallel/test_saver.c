/* Checkpoints in parts, on ranks that are threads: what is saved in one way is loaded in any other;
 * what is wrong on one rank is an error on all, and changes nothing. */
#include "tests/support/test.h"

#include "tests/parallel/parts_run.h"
#include "tests/support/temp.h"

static const lie ways[] = {LIES_WHOLE, LIES_FLAT, LIES_CUT, LIES_ODD};
enum { WAYS = sizeof(ways) / sizeof(*ways) };

/* ---- There and elsewhere --------------------------------------------------------------------- */

typedef struct leg {
    const char *folder;
    lie how;
    bool behind;
    int64_t load; /* the step that is expected; -1: none is loaded */
    int64_t save;
} leg;

static tn_saver_options patient(bool behind) {
    tn_saver_options o = tn_saver_defaults();
    o.behind = behind;
    o.timeout = 120;
    return o;
}

/* Loads what the leg before has saved, and saves the next. */
static void run_leg(tn_group *world, void *user) {
    const leg *l = user;
    parts_run r;
    parts_run_open(&r, world, l->how);
    tn_saver *saver = tn_saver_new(world, l->folder, patient(l->behind));
    must(saver != NULL);
    tn_checkpoint c = parts_run_checkpoint(&r);
    bool found = true;
    parts_run_values(&r, 999, false);
    must(tn_saver_load(saver, &c, &found) == TN_OK && found == (l->load >= 0));
    if (found) {
        must(c.step == l->load && strcmp(c.note, "noted") == 0);
        parts_run_values(&r, (uint64_t)l->load, true);
    }
    strcpy(c.note, "noted");
    for (c.step = l->save - 1; c.step <= l->save; c.step++) {
        parts_run_values(&r, (uint64_t)c.step, false);
        must(tn_saver_save(saver, &c) == TN_OK);
        parts_run_values(&r, 12345, false); /* what goes on is not what was saved */
    }
    must(tn_saver_wait(saver) == TN_OK);
    tn_saver_free(saver);
    parts_run_close(&r);
}

/* 4 -> 3 -> 2 -> 1 -> 4 ranks, from every way of lying to every other. */
static void any_way_onto_any_ranks(void **state) {
    (void)state;
    static const int ranks[] = {4, 3, 2, 1, 4};
    for (int i = 0; i < 2 * WAYS; i++) {
        char name[32];
        snprintf(name, sizeof(name), "run%d", i);
        const char *folder = temp_path(name);
        int64_t step = -1;
        for (int k = 0; k < 5; k++) {
            leg l = {.folder = folder,
                     .how = ways[(i + k * (1 + i / WAYS)) % WAYS],
                     .behind = (i + k) % 2,
                     .load = step,
                     .save = step + 10};
            assert_int_equal(tn_local_run(ranks[k], run_leg, &l), TN_OK);
            step = l.save;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {TEST(any_way_onto_any_ranks)};
    return cmocka_run_group_tests(tests, NULL, temp_clean);
}
