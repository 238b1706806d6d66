/* Prints every array of an .npz file, each followed by a 0: as it is, and as a transposed view with
 * gaps in memory, which must look the same. */
#include <stdio.h>
#include <stdlib.h>

#include <tern/tern.h>

/* The elements of t in a view of twice the memory, the first dimension innermost. */
static tn_tensor *spread_elements(tn_tensor *t) {
    int n = tn_ndim(t);
    tn_dims wide = {.ndim = n + 1}, order = {.ndim = n};
    for (int i = 0; i < n; i++) {
        wide.size[i] = tn_size(t, n - 1 - i);
        order.size[i] = n - 1 - i;
    }
    wide.size[n] = 2;
    tn_tensor *view = tn_select(tn_empty(wide, tn_dtype_of(t)), n, 1);
    return tn_copy_(tn_permute(view, order), t);
}

static void print_text(const tn_tensor *t) {
    size_t length = tn_format(t, NULL, 0);
    char *text = malloc(length + 1);
    tn_format(t, text, length + 1);
    fwrite(text, 1, length + 1, stdout);
    free(text);
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    tn_npz *file = tn_npz_open(argc == 2 ? argv[1] : "");
    for (int i = 0; i < tn_npz_count(file); i++) {
        TN_SCOPE;
        tn_tensor *t = tn_npz_get(file, tn_npz_name(file, i));
        print_text(t);
        print_text(spread_elements(t));
    }
    tn_npz_close(file);
    return 0;
}
