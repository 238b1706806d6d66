/* The history of the loss: what a crash leaves is cut off, what is missing is reported. */
#include "tern/train.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/support/temp.h"
#include "tests/support/test.h"

static void expect_file(const char *path, const char *text) {
    size_t bytes;
    unsigned char *data = temp_read(path, &bytes);
    assert_string_equal((char *)data, text);
    free(data);
}

PLAIN_TEST(test_new_and_on) {
    const char *path = temp_path("loss.csv");
    temp_write(path, "from before", 11);
    tn_history *h = tn_history_open(path, 0);
    assert_int_equal(tn_history_add(h, 2.5), TN_OK);
    assert_int_equal(tn_history_add(h, (double)0.1f), TN_OK);
    assert_int_equal(tn_history_add(h, NAN), TN_OK);
    assert_int_equal(tn_history_sync(h), TN_OK);
    assert_int_equal(tn_history_curve(h, "loss").count, 3);
    expect_file(path, "step,loss\n0,2.5\n1,0.100000001\n2,nan\n");
    tn_history_free(h);

    h = tn_history_open(path, 2);
    assert_int_equal(tn_history_curve(h, "loss").count, 2);
    expect_file(path, "step,loss\n0,2.5\n1,0.100000001\n");
    assert_int_equal(tn_history_add(h, -1e-30), TN_OK);
    expect_file(path, "step,loss\n0,2.5\n1,0.100000001\n2,-1e-30\n");
    tn_curve c = tn_history_curve(h, "loss");
    assert_int_equal(c.count, 3);
    assert_true((float)c.y[1] == 0.1f && c.x[2] == 2);
    c = tn_history_smooth(h, "mean", 3);
    assert_true(fabs(c.y[1] - 2.6 / 3) < 1e-6);
    c = tn_history_smooth(h, "mean", 2);
    assert_true(c.y[0] == 2.5 && fabs(c.y[1] - 1.3) < 1e-6 && fabs(c.y[2] - 0.05) < 1e-6);
    assert_true(tn_history_smooth(h, "mean", 1).y[0] == 2.5);
    assert_int_equal(tn_history_smooth(h, "mean", 0).count, 0);
    tn_history_free(h);
}

/* A loss that falls steeply, as at the start of training: its mean begins where it does and has no
 * kink; a straight line stays one up to its ends. */
PLAIN_TEST(test_smooth_ends) {
    enum { STEPS = 300, WINDOW = 50 };
    tn_history *steep = tn_history_open(temp_path("steep.csv"), 0);
    tn_history *straight = tn_history_open(temp_path("straight.csv"), 0);
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(tn_history_add(steep, 2 + 2.7 * exp(-i / 50.0)), TN_OK);
        assert_int_equal(tn_history_add(straight, 4 - 0.01 * i), TN_OK);
    }
    const double *mean = tn_history_smooth(steep, "mean", WINDOW).y;
    assert_true(fabs(mean[0] - 4.7) < 0.1);
    const int end = STEPS - WINDOW / 2 + 1; /* of whole windows */
    assert_int_equal(tn_history_smooth(steep, "mean", WINDOW).count, end);
    for (int i = 1; i + 1 < end; i++) { /* the curve's own bend is 0.0011 at most */
        assert_true(fabs(mean[i + 1] - 2 * mean[i] + mean[i - 1]) < 0.004);
    }
    for (int window = WINDOW; window <= WINDOW + 1; window++) {
        mean = tn_history_smooth(straight, "mean", window).y;
        double late = window % 2 ? 0 : 0.005;
        for (int i = 0; i < STEPS - window / 2; i++) {
            assert_true(fabs(mean[i] - (4 - 0.01 * i + late)) < 1e-9);
        }
    }
    tn_curve wide = tn_history_smooth(straight, "mean", 10 * STEPS); /* than the run */
    assert_int_equal(wide.count, STEPS / 2 + 1);
    assert_true(fabs(wide.y[0] - 4.005) < 1e-9 && fabs(wide.y[STEPS / 2] - 2.505) < 1e-9);
    /* a loss that no longer falls, with noise that happens to end high: the mean does not rise */
    for (int i = 0; i < STEPS; i++) {
        double noise = i < STEPS - 10 ? 0.1 * (i * 7 % 11 - 5) : 0.5;
        assert_int_equal(tn_history_add(straight, 1.01 + noise), TN_OK);
    }
    tn_curve flat = tn_history_smooth(straight, "mean", WINDOW);
    assert_true(fabs(flat.y[flat.count - 1] - 1.01) < 0.12);
    tn_history_free(steep);
    tn_history_free(straight);
}

/* Nine digits name every f32. */
PLAIN_TEST(test_exact_for_f32) {
    const char *path = temp_path("exact.csv");
    tn_history *h = tn_history_open(path, 0);
    float values[500];
    for (int i = 0; i < 500; i++) {
        uint32_t bits = tn_philox(1, 0, 0, (uint64_t)i).word[0] & 0xbfffffffu;
        memcpy(&values[i], &bits, 4);
        assert_int_equal(tn_history_add(h, (double)values[i]), TN_OK);
    }
    tn_history_free(h);
    h = tn_history_open(path, 500);
    tn_curve c = tn_history_curve(h, "loss");
    for (int i = 0; i < 500; i++) {
        assert_true((float)c.y[i] == values[i]);
    }
    tn_history_free(h);
}

/* Columns appear when they are first named, and are empty if nothing was measured. */
PLAIN_TEST(test_columns) {
    const char *path = temp_path("wide.csv");
    tn_history *h = tn_history_open(path, 0);
    assert_int_equal(tn_history_put(h, "lr", 0.5), TN_OK);
    assert_int_equal(tn_history_add(h, 4), TN_OK);
    assert_int_equal(tn_history_add(h, 3), TN_OK);
    expect_file(path, "step,loss,lr\n0,4,0.5\n1,3,\n");
    assert_int_equal(tn_history_put(h, "val/loss", 1), TN_OK);
    assert_int_equal(tn_history_put(h, "val/loss", NAN), TN_OK); /* the last one counts */
    assert_int_equal(tn_history_step(h), TN_OK);
    static const char whole[] = "step,loss,lr,val/loss\n0,4,0.5,\n1,3,,\n2,,,nan\n";
    expect_file(path, whole);
    assert_fails(tn_history_step(h), TN_ESTATE, "no value was put for step 3");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(tn_history_sync(h), TN_OK);
    expect_file(path, whole);
    tn_history_free(h);

    h = tn_history_open(path, 3);
    tn_curve loss = tn_history_curve(h, "loss"), val = tn_history_column(h, "val/loss", "val");
    assert_int_equal(loss.count, 2);
    assert_int_equal(val.count, 1);
    assert_true(val.x[0] == 2 && isnan(val.y[0]) && loss.y[1] == 3);
    assert_int_equal(tn_history_column(h, "none", "none").count, 0);
    assert_int_equal(tn_history_put(h, "lr", 0.25), TN_OK);
    assert_int_equal(tn_history_add(h, 2), TN_OK);
    expect_file(path, "step,loss,lr,val/loss\n0,4,0.5,\n1,3,,\n2,,,nan\n3,2,0.25,\n");
    tn_history_free(h);
}

/* An earlier run continues, and new measurements follow its rows. */
PLAIN_TEST(test_old_file) {
    const char *path = temp_path("old.csv");
    temp_write(path, "step,loss\n0,4\n1,3\n2,2.", 22);
    tn_history *h = tn_history_open(path, 2);
    expect_file(path, "step,loss\n0,4\n1,3\n");
    assert_int_equal(tn_history_put(h, "lr", 1), TN_OK);
    assert_int_equal(tn_history_add(h, 2), TN_OK);
    expect_file(path, "step,loss,lr\n0,4,\n1,3,\n2,2,1\n");
    tn_history_free(h);
}

PLAIN_TEST(test_names) {
    tn_history *h = tn_history_open(temp_path("names.csv"), 0);
    static const char *const bad[] = {"",     "step", "a,b",  "a b",
                                      "a\"b", "a\nb", "\x7f", "0123456789012345678901234567890123"};
    for (int i = 0; i < 8; i++) {
        assert_fails(tn_history_put(h, bad[i], 1), TN_EVALUE, "bad column");
    }
    char name[8];
    for (int i = 0; i < 63; i++) { /* next to the loss */
        snprintf(name, sizeof(name), "c%d", i);
        assert_int_equal(tn_history_put(h, name, -1.23456789e-300), TN_OK);
    }
    assert_fails(tn_history_put(h, "more", 1), TN_EVALUE, "at most 64");
    assert_int_equal(tn_history_add(h, 1), TN_OK);
    tn_history_free(h);
    h = tn_history_open(temp_path("names.csv"), 1);
    assert_true(tn_history_column(h, "c62", NULL).y[0] == -1.23456789e-300);
    tn_history_free(h);
}

PLAIN_TEST(test_what_is_missing) {
    const char *path = temp_path("loss.csv");
    static const char *const bad[] = {"",
                                      "step",
                                      "0,1\n1,1\n",
                                      "step,loss\n0,1\n",
                                      "step,loss\n0,1\n1,1",
                                      "step,loss\n0,1\n2,1\n",
                                      "step,loss\n0,1\n1\n",
                                      "step,loss\n0,1\n1,\n",
                                      "step,loss\n0,1\n1,x\n",
                                      "step,loss\n0,1\n\n1,1\n",
                                      "step,loss,\n0,1,1\n1,1,1\n",
                                      "step,loss,loss\n0,1,1\n1,1,1\n",
                                      "step,loss,lr\n0,1,1\n1,1,1",
                                      "step,loss,lr\n0,1,1\n1,1\n",
                                      "step,loss,lr\n0,1,1\n1,1, 1\n",
                                      "step,loss,lr\n0,1,1\n1,,\n",
                                      "step,loss,lr\n0,1,1\n1,1,1,1\n"};
    for (int i = 0; i < 17; i++) {
        temp_write(path, bad[i], strlen(bad[i]));
        assert_none(tn_history_open(path, 2), TN_EFORMAT, "and the run continues at step 2");
        expect_file(path, bad[i]);
    }
    assert_none(tn_history_open(temp_path("none.csv"), 2), TN_EIO, "No such file");
    assert_none(tn_history_open("/nowhere/at/all", 0), TN_EIO, "No such file");
    assert_null(tn_history_open(NULL, 0));
    tn_error_clear();
    assert_int_not_equal(tn_history_add(NULL, 1), TN_OK);
    tn_error_clear();
    assert_int_not_equal(tn_history_sync(NULL), TN_OK);
    tn_error_clear();
    tn_history_free(NULL);
}

/* After half a row nothing more is written, or the file would hold rubbish. */
PLAIN_TEST(test_full_disk) {
    const char *path = temp_path("loss.csv");
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 25;
    signal(SIGXFSZ, SIG_IGN);
    tn_history *h = tn_history_open(path, 0);
    setrlimit(RLIMIT_FSIZE, &small);
    int added = 0;
    while (added < 100 && tn_history_add(h, 0.125) == TN_OK) {
        added++;
    }
    setrlimit(RLIMIT_FSIZE, &before);
    assert_error(TN_EIO, "File too large");
    assert_int_equal(added, 1);
    assert_fails(tn_history_add(h, 0.125), TN_ESTATE, "");
    assert_fails(tn_history_sync(h), TN_ESTATE, "");
    tn_history_free(h);
    h = tn_history_open(path, 1);
    assert_int_equal(tn_history_add(h, 0.5), TN_OK);
    tn_history_free(h);
    expect_file(path, "step,loss\n0,0.125\n1,0.5\n");
}

/* Whatever happens to the file while the run continues, it ends up whole. */
PLAIN_TEST(test_file_taken_away) {
    static const char whole[] = "step,loss\n0,0.5\n1,0.100000001\n2,nan\n";
    const char *path = temp_path("loss.csv"), *other = temp_path("other.csv");
    for (int how = 0; how < 5; how++) {
        for (int before = 0; before < 4; before++) {
            static const float losses[] = {0.5f, 0.1f, NAN};
            tn_history *h = tn_history_open(path, 0);
            for (int i = 0; i <= 3; i++) {
                if (i == before && how == 0) {
                    assert_int_equal(unlink(path), 0);
                } else if (i == before && how == 1) {
                    assert_int_equal(truncate(path, 4), 0);
                } else if (i == before && how == 2) {
                    temp_write(path, "something longer than all that was written", 40);
                } else if (i == before && how == 3) {
                    assert_int_equal(rename(path, other), 0);
                } else if (i == before) {
                    temp_write(other, "step,loss\n", 10); /* the right size for the first */
                    assert_int_equal(rename(other, path), 0);
                }
                assert_int_equal(i < 3 ? tn_history_add(h, (double)losses[i]) : tn_history_sync(h),
                                 TN_OK);
            }
            expect_file(path, whole);
            tn_history_free(h);
            h = tn_history_open(path, 3); /* and the run continues */
            assert_non_null(h);
            tn_history_free(h);
        }
    }
    unlink(other);
}

PLAIN_TEST(test_folder_taken_away) {
    char path[700], moved[600];
    const char *folder = temp_path("folder");
    snprintf(path, sizeof(path), "%s/loss.csv", folder);
    snprintf(moved, sizeof(moved), "%s.moved", folder);
    assert_int_equal(mkdir(folder, 0777), 0);
    tn_history *h = tn_history_open(path, 0);
    assert_int_equal(tn_history_add(h, 1), TN_OK);
    assert_int_equal(rename(folder, moved), 0);
    assert_int_not_equal(tn_history_sync(h), TN_OK);
    assert_error(TN_EIO, "loss.csv.tmp: No such file or directory");
    assert_fails(tn_history_add(h, 2), TN_ESTATE, "");
    tn_history_free(h);
    snprintf(path, sizeof(path), "%s/loss.csv", moved);
    unlink(path);
    assert_int_equal(rmdir(moved), 0);
}

/* The program's folder may change while the run continues. */
PLAIN_TEST(test_relative_path) {
    const char *path = temp_path("here.csv");
    assert_int_equal(chdir(temp_folder), 0);
    tn_history *h = tn_history_open("here.csv", 0);
    assert_int_equal(tn_history_add(h, 1), TN_OK);
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(tn_history_add(h, 2), TN_OK);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(tn_history_sync(h), TN_OK);
    tn_history_free(h);
    expect_file(path, "step,loss\n0,1\n1,2\n");
}

/* `program | plot`: a pipe has no path that can be replaced. */
PLAIN_TEST(test_pipe) {
    char path[32], text[64] = {0};
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", ends[1]);
    tn_history *h = tn_history_open(path, 0);
    assert_non_null(h);
    assert_int_equal(tn_history_add(h, 0.5), TN_OK);
    assert_int_equal(tn_history_put(h, "lr", 1), TN_OK); /* rows already sent cannot be rewritten */
    assert_int_equal(tn_history_add(h, 0.5), TN_OK);
    assert_int_equal(tn_history_sync(h), TN_OK);
    tn_history_free(h);
    assert_true(read(ends[0], text, sizeof(text) - 1) > 0);
    assert_string_equal(text, "step,loss\n0,0.5\nstep,loss,lr\n1,0.5,1\n");
    close(ends[0]);
    close(ends[1]);
}

/* The target of a link may be any file, so links are refused. */
PLAIN_TEST(test_link) {
    const char *file = temp_path("file.csv");
    const char *link = temp_path("link.csv");
    temp_write(file, "step,loss\n0,1\n", 14);
    assert_int_equal(symlink(file, link), 0);
    for (int start = 0; start < 2; start++) {
        assert_none(tn_history_open(link, start), TN_EIO, "link.csv is a symbolic link to a file");
    }
    expect_file(file, "step,loss\n0,1\n");
    assert_int_equal(unlink(file), 0);
    assert_null(tn_history_open(link, 0)); /* nor is its target created */
    assert_error(TN_EIO, "link.csv is a symbolic link to a file");
    assert_int_equal(access(file, F_OK), -1);
}
