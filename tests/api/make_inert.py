#!/usr/bin/python3
"""Calls the public functions with senseless arguments, derived from the headers.

    make_inert.py OUT [DEPFILE]     writes OUT, C code that test_inert.c includes

Each function is called with one argument wrong after another, while the others are valid as far as a valid one can be named
by its type (`valid` in test_inert.c has those that must be made):

  - a pointer is NULL. That is an error, for the first one TN_EVALUE, except for the parameters in OPTIONAL
  - a tensor is NULL or inert. If it is the first of a function that makes one, the result is inert
  - a module is NULL, all zeros or finished, which is always an error
  - options are all zeros, which is an error that says how they are made; then each of their members is as below
  - a number is at the extremes of its type and beyond 0; an enum is -1 and 99; dimensions are strange
  - a struct is all zeros

What the result must be follows from its type: inert.h. A destructor takes NULL, and that is no error. Functions in BY_HAND are
not called here; check_complete.py asks for them in test_inert_by_hand.c.
"""
import glob
import os
import re
import sys

ROOT = os.environ.get("TERN_ROOT") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")

# An ordinary value of a type, and the name of the array of wrong ones.
NUMBERS = {
    "int": ("1", "ints"),
    "int64_t": ("1", "longs"),
    "int32_t": ("1", "ints"),
    "uint32_t": ("1", "ints"),
    "uint64_t": ("1", "longs"),
    "tn_hook": ("1", "longs"),
    "size_t": ("1", "longs"),
    "double": ("0.5", "reals"),
    "float": ("0.5f", "reals"),
    "bool": ("true", "bools"),
    "tn_dims": ("TN_DIMS(1)", "strange"),
    "tn_dtype": ("TN_F32", "dtypes"),
    "tn_device": ("tn_cpu()", "devices"),
}
# Structs that are valid only with something in them.
FILLED = {
    "tn_values": "(tn_values){1, {v->x}}",
    "tn_batch": "(tn_batch){.x = v->x, .y = v->x}",
    "tn_sampler": "tn_sequential_sampler()",
}
# The same, by type and name of the parameter.
NAMED = {
    "double timeout": ("0.01", "short_times"),
    "tn_ids * out": ("&v->ids", None),
    "tn_tensor ** field": ("&v->fields[v->next++]", None),
    "double seconds": ("0.01", "short_times"),
}
GROUPS = ("tn_group *", "const tn_group *")  # NULL: one rank
# Parameters that name files; nothing is written where the others point.
PATHS = ("path", "folder", "pattern", "file", "out", "x_path", "y_path")
# Functions whose module is a language model.
LANGUAGE = re.compile("tn_(lm|generate|cache|evaluate)(_|$)")
# Members of options without which the model is large.
SMALL = {
    "tn_gpt": ".vocab = 8, .context = 8, .layers = 1, .heads = 1, .width = 4",
    "tn_llama": ".vocab = 8, .context = 8, .layers = 1, .heads = 1, .kv_heads = 1, .width = 4, .hidden = 4",
}
# Made by `valid` of test_inert.c, under this name without tn_.
MADE = {"tn_optim", "tn_dataset", "tn_loader", "tn_store", "tn_metrics", "tn_scaler", "tn_average", "tn_charset",
        "tn_progress", "tn_search", "tn_safetensors_writer", "tn_tokenizer", "tn_history", "tn_rpc", "tn_npz", "tn_safetensors"}
# Without tn_: functions that take NULL for the thing itself, since there is nothing to do or to say.
QUIET = set("""
    average_updates backend_named cache_end charset_size corpus_where dataset_keep ddp_statistics deepspeed_batch
    deepspeed_checkpoint deepspeed_due deepspeed_lr deepspeed_norm desc_of drop flight_dump flight_mark
    fsdp_statistics function_new function_new_with generated_free history_column history_curve history_smooth
    is_leaf loader_batches loader_dataset loader_has loader_next loader_options_of loader_sampler loader_where
    local_sgd_statistics match_vectors
    metrics_accuracy metrics_count metrics_f1 metrics_loss metrics_perplexity metrics_precision metrics_print
    metrics_recall metrics_reset metrics_top no_sync_begin npz_count npz_name op_input_name op_named optim_each
    optim_groups optim_kind optim_lr optim_set_lr optim_set_steps optim_steps optim_zero_grad parameters
    pipeline_alive pipeline_parts pipeline_stage plot_text profile_region_begin progress_clear progress_median_ms
    progress_note progress_resume progress_step progress_utilisation release remove_hook requires_grad
    rpc_done run_board run_count run_done run_draw run_log run_next run_step run_stop
    run_utilisation run_validates run_value safetensors_count safetensors_has safetensors_metadata safetensors_name
    sample_add scaler_skipped scaler_where search_best search_folder search_report
    search_steps search_trial sequential_of setup_finish setup_flops shards_writer_shards shards_writer_tokens
    store_server_port tokenizer_size tokenizer_special work_done zero_grad
""".split())
# NULL for the thing itself is TN_EVALUE, but for these, which complain of something else.
NO_EVALUE = set("""
    _from_array charset_text desc_swap device_named evaluate_choices evaluate_perplexity history_add history_put history_step
    history_sync lm_targets load loader_seek tokenizer_bytes tokenizer_decode
""".split())
# Parameters of which NULL means none.
OPTIONAL = set("""
    _device_failed.operation _dim.operation _usable.operation add_rms_norm.weight batch_norm_share.total bce.weight
    deepspeed_optim.d dims_broadcast.result format.text from_memory.release function_init.kind group_abort.reason
    history_column.column history_column.name history_curve.name history_smooth.name image_normalize.mean
    image_normalize.std linear_gelu.bias linear_op.bias lm_parts.parts lm_specials_of.tokenizer
    metrics_print.file metrics_print.names module_buffer.tensor module_init.kind module_init_values.kind
    module_param.tensor module_print.file module_scratch.tensor optim_each.f plot_text.file progress_new.unit
    progress_note.text recompute.free_user recompute.params rms_norm_op.weight
    run_draw.file run_log.name run_steps.l run_value.name safetensors_has.name safetensors_metadata.key
    sample_add.sample sequence_dataset.y setup_scaler.s sort.index store_add.result store_compare_set.expected
    store_compare_set.is_set store_delete.existed summary_add_histogram.tag summary_add_histogram.values
    summary_add_histogram.w summary_add_image.pixels summary_add_image.tag summary_add_image.w
    summary_add_scalar.tag summary_add_scalar.w summary_add_text.tag summary_add_text.text summary_add_text.w
    summary_flush.w tensor_dataset.y tokenizer_bytes.bytes tokenizer_decode.bytes tokenizer_encode_rows.lengths
    tokenizer_special.text topk.index unique.counts unique.inverse values_of.b work_wait.w
""".split())
# These change settings that the calls after them would have, ...
BY_HAND = set("""
    tn_error_clear tn_error_take tn_error_give tn_on_error tn_on_error_thread tn_log_to tn_scope_begin tn_scope_end
    tn_set_threads tn_memory_set_limit tn_set_anomaly tn_grad_mode_begin tn_defer_init_begin tn_set_deterministic
    tn_set_matmul_tf32 tn_set_conv_tf32 tn_backend_use tn_stop_on_signals
""".split())
# ... print, start, connect or measure something, ...
BY_HAND |= set("""
    tn_print tn_error_exit tn_dist_init tn_local_run tn_local_run_on tn_profiler_start tn_store_serve tn_tcp_store
    tn_run_new
""".split())
# ... have a count before its array, free what is not made by a function of this type, give what errors give, ...
BY_HAND |= set("""
    tn_options_parse tn_mesh_new tn_dims_from tn__reduce_all tn_module_free tn_module_finish tn_inert
""".split())
# ... or trust their caller with the memory, which is the library itself but for two.
BY_HAND |= set("""
    tn_utf8_put tn_utf8_end tn__contiguous_strides tn__copy_bytes tn__nccl_is_there tn__view tn_engine_new
    tn_op_float tn_op_give tn_op_gradient_dtype tn_op_index tn_op_input_device tn_op_input_dims tn_op_input_dtype
    tn_op_out tn_op_out_broadcast tn_op_out_like tn_op_out_on tn_op_pending tn_op_same_dtype tn_op_saved_input
    tn_op_saved_output tn_op_shapes tn_op_view
""".split())
# How a result is freed if not by its type's _free.
FREES = {"tn_local_sgd *": "tn_module_free", "tn_search *": "tn_search_end", "tn_npz *": "tn_npz_close", "char *": "tn_text_free",
         "tn_safetensors *": "tn_safetensors_close"}
# What these return is there already.
FOUND = {"tn_world", "tn_dist_store", "tn_dataset_keep", "tn_deepspeed_optim", "tn_run_best"}
# These return something harmless after an error.
DUMMY = {"tn_data", "tn_data_mut", "tn_optim_group"}
# Members and parameters that any number suits, or of which it is refused only when it is used.
ANY_NUMBER = set("""
    tn_pool.divisor_override tn_batch_norm.momentum tn_loader.prefetch tn_loader.x_pad tn_loader.y_pad
    tn_search.seed tn_rows.pad tn_tokenizer_train.min_count tn_flatten_init.first tn_flatten_init.last tn_flatten_new.first
    tn_flatten_new.last tn_unflatten_init.dim tn_unflatten_new.dim tn_function_new_with.number
    tn__device_failed.device tn_progress_new.start tn_progress_new.total tn_sequential_of.n
""".split())
# Members that start as many threads.
SKIPPED = {"tn_loader.threads", "tn_tokens.threads", "tn_rpc.threads_most"}


def headers():
    return sorted(glob.glob(os.path.join(ROOT, "include/tern/*.h")) + glob.glob(os.path.join(ROOT, "include/tern/sys/*.h")))


def texts():
    return [open(path, encoding="utf-8").read() for path in headers()]


def without_comments(text):
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$|/\*.*?\*/", " ", text, flags=re.M | re.S)


def split(text):
    """At the commas outside brackets."""
    parts, depth = [""], 0
    for c in " ".join(text.split()):
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts]


def type_and_name(declaration):
    """("const char *", "path"), and ("void (*)(void *user)", "f") for a pointer to a function."""
    function = re.match(r"(.*\(\*)(\w+)(\)\(.*)$", declaration)
    if function:
        return function[1] + function[3], function[2]
    found = re.match(r"(.*?)\s*(\w+)(\[[^\]]*\])?$", declaration)
    return found[1] + (" *" if found[3] else ""), found[2]


def element(array, kind):
    """An element of an array of wrong values, as that type."""
    return array + "[turn]" if kind in ("tn_dims", "tn_device") else "(%s)%s[turn]" % (kind, array)


class Headers:
    """What the headers declare."""

    def __init__(self, contents):
        text = without_comments("\n".join(contents))
        self.functions = {}  # name: (result, [(type, name)])
        for result, name, arguments in re.findall(
                r"\bTN_API\b([^;{}()]*?)\b(tn_\w+)\s*\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)", text):
            listed = [] if arguments.strip() == "void" else split(arguments)
            self.functions[name] = (result.strip(), [("...", "") if p == "..." else type_and_name(p) for p in listed])
        bodies = re.findall(r"typedef (?:struct|union) \w+ \{(.*?)\n\} (\w+);", text, re.S)
        self.structs = {name: body for body, name in bodies}
        self.enums = set(re.findall(r"typedef enum \w* ?\{[^}]*\} (\w+);", text))
        self.aliases = dict((b, a) for a, b in re.findall(r"typedef (tn_\w+) (tn_\w+);", text))
        self.callbacks = dict((name, (result.strip(), arguments)) for result, name, arguments in re.findall(
            r"typedef ([\w *]+)\(\*(\w+)\)\(([^;]*)\);", text))

    def struct(self, kind):
        """The body of a struct whose members are known, or None."""
        return self.structs.get(self.aliases.get(kind, kind))

    def maker(self, kind):
        """tn_x for options that tn_x_defaults() makes, or None."""
        what = kind.replace("_options", "")
        return what if self.functions.get(what + "_defaults") == (kind, []) else None

    def members(self, kind):
        """(type, name) of the members of options that are no pointers."""
        for line in re.findall(r"([^;]+);", self.struct(kind) or ""):
            found = re.match(r"\s*(\w+) (\w+(?:, \w+)*)$", " ".join(line.split()))
            for name in found[2].split(", ") if found else []:
                if name != "from_defaults":
                    yield found[1], name

    def wrong(self, kind, name, before=None):
        """The name of an array of wrong values of a type that is no pointer, or None. A number after a pointer is its length."""
        if before and before.endswith("*") and kind in ("int", "int64_t", "size_t") and self.known(before) and \
                not (before in ("const char *", "char *") and kind != "size_t"):
            return {"int": "few_ints", "int64_t": "few_longs", "size_t": None}[kind]
        if kind == "int" and name.endswith("_count"):  # of an array beside it
            return "few_ints"
        if kind in self.enums and kind not in NUMBERS:
            return "enums"
        return (NAMED.get(kind + " " + name) or NUMBERS.get(kind, (None, None)))[1]

    def known(self, pointer):
        """Whether zeros can be made for a pointer to it."""
        base = pointer.replace("const ", "")[:-1].strip()
        return base in NUMBERS or base in ("char", "void") or base.endswith(("*", "*const")) or bool(self.struct(base))


class Function:
    def __init__(self, found, name):
        self.headers, self.name = found, name
        self.result, self.parameters = found.functions[name]

    def valid(self, i):
        """A valid argument for a parameter, as C."""
        kind, name = self.parameters[i]
        plain = kind.replace("const ", "")
        base = plain[:-1].strip() if plain.endswith("*") else ""
        if not i and self.made():
            return "&made"
        if (kind + " " + name) in NAMED or kind in NUMBERS:
            return (NAMED.get(kind + " " + name) or NUMBERS[kind])[0]
        if kind in self.headers.enums:
            return "(%s)0" % kind
        if "(*)" in kind or kind in self.headers.callbacks:
            return "stub_%s" % (kind if kind in self.headers.callbacks else self.name + "_" + name)
        if plain == "tn_tensor *":
            return "v->o" if i else "v->x"
        if plain == "void *" and name == "child":
            return "new_child()"
        if plain == "void *" and name == "m":
            return "v->lm" if LANGUAGE.match(self.name) else "v->m"
        if plain == "void *":
            return "NULL" if name in ("user", "context", "args", "parameters") else "v->bytes"
        if kind == "const char *":
            return '"/dev/null/a"' if name in PATHS else '"a"'
        if base == "char":
            return "v->bytes"
        if kind == "const char *const *":
            return '(const char *[]){"/dev/null/a", "/dev/null/b"}'
        if kind == "FILE *":
            return "v->file"
        if kind == "tn_tensor *const *":
            return "(tn_tensor *[]){v->x, v->x}"
        if base in MADE:
            return "v->" + base[3:]
        if base and self.headers.maker(base):
            return "(%s[]){%s_defaults()}" % (base, self.headers.maker(base))
        if base and self.headers.known(kind):
            return "(%s[16]){0}" % kind[:-1].strip()
        if base:
            return "NULL"
        if self.headers.maker(kind):
            what = self.headers.maker(kind)
            return "TN_WITH(%s, %s)" % (what, SMALL[what]) if what in SMALL else what + "_defaults()"
        return FILLED.get(kind, "(%s){0}" % kind)

    def call(self, changed, argument):
        return "%s(%s)" % (self.name, ", ".join(argument if i == changed else self.valid(i) for i in range(len(self.parameters))))

    def must(self, i):
        """Whether NULL must be an error."""
        kind, name = self.parameters[i]
        optional = kind == "tn_generator *" or name in ("user", "context")
        return "MAY" if optional or self.name[3:] + "." + name in OPTIONAL or (not i and self.name[3:] in QUIET) else "MUST" if i or self.name[3:] in NO_EVALUE else "EVALUE"

    def wrong(self, i):
        """(expectation, array, argument): an argument for each place of the array (or just once)."""
        kind, name = self.parameters[i]
        plain = kind.replace("const ", "")
        before = self.parameters[i - 1][0] if i else None
        if kind in GROUPS:
            return
        if not i and self.made():
            yield "EVALUE", None, "NULL"
        elif plain == "void *" and name in ("m", "child"):
            yield self.must(i), None, "NULL"
            yield "MUST" if self.must(i) != "MAY" else "MAY", "v->modules", "v->modules[turn]"
        elif kind in ("tn_tensor *", "const tn_tensor *"):
            yield self.must(i), None, "NULL"
            yield "INERT" if not i and self.result == "tn_tensor *" else "ANY", None, "tn_inert()"
        elif kind == "tn_tensor *const *":
            yield self.must(i), None, "NULL"
            yield self.must(i), None, "(tn_tensor *[]){NULL, v->x}"
            yield "INERT" if not i and self.result == "tn_tensor *" else "ANY", None, "(tn_tensor *[]){tn_inert(), v->x}"
        elif kind == "const char *":
            yield self.must(i), None, "NULL"
            if name not in PATHS:
                yield "MAY", "texts", "texts[turn]"
        elif kind.endswith("*") or "(*)" in kind or kind in self.headers.callbacks:
            yield self.must(i), None, "NULL"
            if kind.endswith("*") and self.headers.maker(plain[:-1].strip()):
                yield "ZEROS" if self.must(i) != "MAY" else "MAY", None, "(%s){0}" % plain.replace(" *", "[1]")
        elif kind == "tn_values":
            for wrong in "{0}", "{-1, {v->x}}", "{99, {v->x}}", "{1, {NULL}}", "{2, {v->x, tn_inert()}}":
                yield "MAY" if wrong == "{0}" else "ANY", None, "(tn_values)" + wrong
        elif self.headers.maker(kind):
            what = self.headers.maker(kind)
            yield "ZEROS", None, "(%s){0}" % kind
            small = SMALL[what] + ", " if what in SMALL else ""
            for member, named in self.headers.members(kind):
                array = self.headers.wrong(member, named)
                if array and what + "." + named not in SKIPPED:
                    argument = "TN_WITH(%s, %s.%s = %s)" % (what, small, named, element(array, member))
                    yield self.first(i, array, "(%s.%s)" % (what, named)), array, argument
        elif self.headers.wrong(kind, name, before):
            array = self.headers.wrong(kind, name, before)
            yield self.first(i, array), array, element(array, kind)
        elif kind not in NUMBERS:
            yield "MAY", None, "(%s){0}" % kind

    def made(self):
        """The type of the module that the function initialises in the caller's memory, or None."""
        if re.search("_init(_values)?$", self.name) and self.parameters[0][0].endswith("*") and self.result == "void":
            return self.parameters[0][0][:-1].strip().replace("void", "tn_module")
        return None

    def form(self):
        """The macro of inert.h for the result, and its further arguments."""
        plain = {"tn_tensor *": "TENSOR", "tn_status": "STATUS", "tn_values": "VALUES"}.get(self.result)
        if plain:
            return plain, ""
        if self.name.endswith("_defaults") and self.headers.maker(self.result):
            return "OPTIONS", ""
        if self.made():
            return "MADE", ", " + self.made()
        functions = self.headers.functions
        if re.sub("_(new|of)(_with|_values)?$", "_init", self.name) in functions.keys() - {self.name}:
            return "MODULE", ""
        free = FREES.get(self.result) or self.result[:-1].strip() + "_free"
        if self.result.endswith("*") and free in functions and self.name not in FOUND:
            return "NEW", ", " + free
        if self.name == "tn_parameters":
            return "NEW", ", tn_parameters_free"
        return "FOUND" if self.result.endswith("*") and self.result != "const char *" and self.name not in DUMMY else "OTHER", ""

    def first(self, i, array, what=None):
        """What is expected of an array of wrong values, perhaps for tn_x.member: the first ones are refused, if numbers have
        a range."""
        form, what = self.form()[0], what or self.name + "." + self.parameters[i][1]
        if array in ("dtypes", "devices", "enums") and form not in ("OTHER", "FOUND") and what.strip("()") not in ANY_NUMBER:
            return "FIRST(%d)" % (4 if array == "devices" else 2)
        ranged = "(" in what or form in ("MODULE", "MADE", "NEW")
        if array in ("reals", "ints", "longs", "few_ints") and ranged and what.strip("()") not in ANY_NUMBER:
            return "FIRST(1)"
        return "MAY"

    def statements(self):
        form, more = self.form()
        if all(kind in GROUPS for kind, _ in self.parameters):
            yield "%s(MAY, %s%s);" % (form, self.call(None, None), more)
        for i in range(len(self.parameters)):
            for expected, array, argument in self.wrong(i):
                if re.search("_(free|end|close)$", self.name) and len(self.parameters) == 1 and argument == "NULL":
                    expected = "ALLOWED"
                loop = "EACH(%s) " % array if array else ""
                if expected == "ZEROS":
                    kind = self.parameters[i][0].replace("const ", "").replace(" *", "")
                    yield 'form = "TN_WITH(%s, .";' % self.headers.maker(kind)
                yield "%s%s(%s, %s%s);" % (loop, form, expected, self.call(i, argument), more)


def stubs(found):
    """Functions that do nothing and return zeros, for the parameters that are functions."""
    wanted = {name: callback for name, callback in found.callbacks.items()}
    for function, (_, parameters) in found.functions.items():
        for kind, name in parameters:
            if "(*)" in kind:
                result, arguments = re.match(r"(.*)\(\*\)\((.*)\)$", kind).groups()
                wanted[function + "_" + name] = (result.strip(), arguments)
    for name, (result, arguments) in wanted.items():
        end = "" if result == "void" else " return (%s){0}; " % result
        yield "__attribute__((unused)) static %s stub_%s(%s) {%s}" % (result, name, arguments, end)


def derived(found):
    return [name for name, (_, parameters) in found.functions.items()
            if name not in BY_HAND and all(kind != "..." for kind, _ in parameters)]


def program(found):
    lines = ["/* Made by make_inert.py from the public headers. */", *stubs(found)]
    rows = []
    for name in derived(found):
        body = list(Function(found, name).statements())
        lines += ["static void inert_%s(valid *v) {" % name, *("    " + s for s in body), "}"]
        rows.append('    {"%s", inert_%s, %s},' % (name, name, "true" if "v->o" in " ".join(body) else "false"))
    lines += ["static const struct {", "    const char *name;", "    void (*call)(valid *v);", "    bool others; /* v->o */"]
    return "\n".join(lines + ["} derived[] = {"] + rows + ["};", ""])


def unknown(found):
    """What the tables above name that no header has."""
    parameters = {name + "." + p for name, (_, listed) in found.functions.items() for _, p in listed}
    members = {what[:-len("_defaults")] + "." + m for what, (kind, _) in found.functions.items()
               if what.endswith("_defaults") for _, m in found.members(kind)}
    named = BY_HAND | FOUND | DUMMY | {"tn_" + name for name in QUIET}
    return sorted((named - found.functions.keys()) | ({"tn_" + p for p in OPTIONAL} - parameters) |
                  ((ANY_NUMBER | SKIPPED) - parameters - members))


def self_test():
    found = Headers(["""
        typedef enum tn_kind { TN_A } tn_kind;
        typedef struct tn_two_options {
            double rate, other;
            bool from_defaults;
        } tn_two_options;
        TN_API tn_tensor *tn_one(tn_tensor *x, /* which */ int dim);
        TN_API tn_two_options tn_two_defaults(void);
        TN_API tn_status tn_two(tn_kind kind, tn_two_options o, int (*f)(int, int));
        TN_API void tn_three(const char *format, ...) TN_PRINTF(1, 2);
    """.replace("\n        ", "\n")])
    assert found.functions["tn_two"][1] == [("tn_kind", "kind"), ("tn_two_options", "o"), ("int (*)(int, int)", "f")]
    assert derived(found) == ["tn_one", "tn_two_defaults", "tn_two"]
    one, two = (" ".join(Function(found, name).statements()) for name in ("tn_one", "tn_two"))
    assert "TENSOR(EVALUE, tn_one(NULL, 1)); TENSOR(INERT, tn_one(tn_inert(), 1)); EACH(ints)" in one
    assert "EACH(enums) STATUS(FIRST(2), tn_two((tn_kind)enums[turn], tn_two_defaults(), stub_tn_two_f));" in two
    assert "STATUS(ZEROS, tn_two((tn_kind)0, (tn_two_options){0}, stub_tn_two_f));" in two
    assert "STATUS(FIRST(1), tn_two((tn_kind)0, TN_WITH(tn_two, .other = (double)reals[turn]), stub_tn_two_f));" in two
    assert "STATUS(MUST, tn_two((tn_kind)0, tn_two_defaults(), NULL));" in two


def covered():
    """The names of the functions that are called."""
    self_test()
    found = Headers(texts())
    assert not unknown(found), unknown(found)
    return {name for name in derived(found) if any(name + "(" in s for s in Function(found, name).statements())}


def main():
    out = sys.argv[1]
    with open(out, "w", encoding="utf-8") as file:
        file.write(program(Headers(texts())))
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            file.write("%s: %s\n" % (out, " ".join(os.path.abspath(h).replace(" ", "\\ ") for h in headers())))


if __name__ == "__main__":
    main()
