/* For test_numpy.py: reads every array of an archive, or the one of a .npy file, and writes it
 * back.
 *
 *     dump_numpy IN OUT [compressed]
 *     dump_numpy IN.npz OUT.npy NAME
 */
#include <tern/tern.h>

#include <string.h>

enum { MOST = 64 };

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    if (argc < 3) { return 2; }
    size_t length = strlen(argv[1]);
    if (strcmp(argv[1] + length - 4, ".npy") == 0) {
        return tn_npy_save(tn_npy_load(argv[1]), argv[2]);
    }
    tn_npz *f = tn_npz_open(argv[1]);
    if (argc > 3 && strcmp(argv[3], "compressed") != 0) {
        tn_tensor *one = tn_npz_get(f, argv[3]);
        tn_npz_close(f);
        return tn_npy_save(one, argv[2]);
    }
    const char *names[MOST];
    tn_tensor *tensors[MOST];
    int n = tn_npz_count(f);
    for (int i = 0; i < n && i < MOST; i++) {
        names[i] = tn_npz_name(f, i);
        tensors[i] = tn_npz_get(f, names[i]);
    }
    tn_status status = tn_npz_save(names, tensors, n, argv[2], argc > 3);
    tn_npz_close(f);
    return status;
}
