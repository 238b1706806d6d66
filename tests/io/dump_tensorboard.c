/* Event files for test_pypi_tensorboard.py.
 *
 *     dump_tensorboard FOLDER           a file with something of each kind
 *     dump_tensorboard FOLDER forever   scalars, "added N" after each, until it is killed
 */
#include <tern/tern.h>

#include <stdio.h>

static void add_all(tn_summary_writer *w) {
    TN_SCOPE;
    tn_seed(3);
    tn_tensor *normal = tn_randn(TN_DIMS(1000), TN_F32);
    for (int step = 0; step < 5; step++) {
        tn_summary_add_scalar(w, "loss/train", 1.0 / (step + 1), step);
    }
    tn_summary_add_scalar(w, "far", 1e30, ((int64_t)1 << 40) + 1);
    tn_summary_add_histogram(w, "normal", normal, 1);
    tn_summary_add_histogram(w, "few", tn_arange(-3, 4, 1, TN_I64), 2);
    tn_summary_add_text(w, "note", "# a head\nand \xc3\xa9", 0);
    tn_summary_add_image(w, "grey", tn_reshape(tn_arange(0, 6, 1, TN_U8), TN_DIMS(2, 3)), 0);
    tn_tensor *red = tn_zeros(TN_DIMS(3, 4, 5), TN_F32);
    tn_fill_(tn_select(red, 0, 0), 2);
    tn_summary_add_image(w, "red", red, 0);
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    tn_summary_writer *w = tn_summary_writer_new(argv[1], -1);
    bool endless = argc > 2; /* until it is killed */
    if (!endless) {
        add_all(w);
        tn_summary_writer_free(w);
        w = tn_summary_writer_new(argv[1], 3); /* continues at step 3 */
        tn_summary_add_scalar(w, "loss/train", -1, 3);
    }
    int step = 0;
    while (endless) {
        tn_summary_add_scalar(w, "loss", step, step);
        printf("added %d\n", step++);
        fflush(stdout);
    }
    tn_summary_writer_free(w);
    return 0;
}
