/* Checkpoints in parts, on ranks that are threads: what is saved in one layout is loaded in any
 * other. */
#include "tests/support/test.h"

#include "tests/parallel/parts_run.h"
#include "tests/support/temp.h"

/* ---- From one layout to another -------------------------------------------------------------- */

typedef struct leg {
    const char *folder;
    lie how;
    bool behind;
    int64_t load; /* the step that is expected; -1: none */
    int64_t save;
} leg;

/* Loads what the previous leg saved, and saves two more steps. */
static void run_leg(tn_group *world, void *user) {
    const leg *l = user;
    parts_run r;
    parts_run_open(&r, world, l->how);
    parts_run_saver(&r, l->folder, patient_options(l->behind));
    bool found = true;
    parts_run_values(&r, 999, false);
    must(tn_saver_load(r.saver, &r.c, &found) == TN_OK && found == (l->load >= 0));
    if (found) {
        must(r.c.step == l->load && strcmp(r.c.note, "noted") == 0);
        parts_run_values(&r, (uint64_t)l->load, true);
    }
    strcpy(r.c.note, "noted");
    for (r.c.step = l->save - 1; r.c.step <= l->save; r.c.step++) {
        parts_run_values(&r, (uint64_t)r.c.step, false);
        must(tn_saver_save(r.saver, &r.c) == TN_OK);
        parts_run_values(&r, 12345, false); /* training continues while the step is saved */
    }
    must(tn_saver_wait(r.saver) == TN_OK);
    parts_run_close(&r);
}

/* 4 -> 3 -> 2 -> 1 -> 4 ranks, from every layout to every other. */
TEST(any_way_onto_any_ranks) {
    static const int ranks[] = {4, 3, 2, 1, 4};
    for (int i = 0; i < 2 * WAYS; i++) {
        char name[32];
        snprintf(name, sizeof(name), "run%d", i);
        const char *folder = temp_path(name);
        int64_t step = -1;
        for (int k = 0; k < 5; k++) {
            leg l = {.folder = folder,
                     .how = (lie)((i + k * (1 + i / WAYS)) % WAYS),
                     .behind = (i + k) % 2,
                     .load = step,
                     .save = step + 10};
            run_ok(ranks[k], run_leg, &l);
            step = l.save;
        }
    }
}

/* Pieces that are read in several chunks, and runs that continue from one chunk to the next. */
TEST(large_pieces) {
    const char *folder = temp_path("large");
    parts_width = 600;
    leg l = {.folder = folder, .how = LIES_CUT, .load = -1, .save = 1};
    run_ok(2, run_leg, &l);
    l = (leg){.folder = folder, .how = LIES_ODD, .load = 1, .save = 3};
    run_ok(3, run_leg, &l);
    parts_width = 6;
}

/* What all ranks have is distributed over them for writing. */
TEST(whole_parameters_are_dealt_out) {
    const char *folder = temp_path("dealt");
    parts_width = 60;
    leg l = {.folder = folder, .how = LIES_WHOLE, .load = -1, .save = 1};
    run_ok(3, run_leg, &l);
    parts_width = 6;
    size_t bytes[3], all = 0;
    for (int rank = 0; rank < 3; rank++) {
        char name[64];
        snprintf(name, sizeof(name), "dealt/step-000001/rank-%05d.safetensors", rank);
        free(temp_read(temp_path(name), &bytes[rank]));
        all += bytes[rank];
    }
    for (int rank = 0; rank < 3; rank++) {
        assert_in_range(bytes[rank], all / 4, all / 2);
    }
}

/* ---- Saving different things ----------------------------------------------------------------- */

static void save_changing(tn_group *world, void *user) {
    parts_run r;
    parts_run_open(&r, world, LIES_FLAT);
    tn_saver *saver = tn_saver_new(world, user, patient_options(true));
    tn_checkpoint all = r.c, nothing = {.note = "nothing"};
    for (int64_t step = 1; step <= 4; step += 2) {
        bool found;
        parts_run_values(&r, (uint64_t)step, false);
        all.step = step;
        must(tn_saver_save(saver, &all) == TN_OK);
        must(tn_saver_load(saver, &all, &found) == TN_OK && found && all.step == step);
        parts_run_values(&r, (uint64_t)step, true);
        nothing.step = step + 1;
        must(tn_saver_save(saver, &nothing) == TN_OK);
        must(tn_saver_load(saver, &nothing, &found) == TN_OK && found && nothing.step == step + 1);
    }
    tn_saver_free(saver);
    parts_run_close(&r);
}

/* A save contains what it was given and no more, whatever the previous save contained. */
TEST(what_is_saved_changes) {
    run_ok(2, save_changing, temp_path("changing"));
}
