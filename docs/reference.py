#!/usr/bin/env python3
"""The reference: the public headers as pages that can be searched, one for each header.

reference.py FOLDER        writes FOLDER/index.html and the rest; exit status 1 after a warning
reference.py --check       only says what is wrong
reference.py --self-test   plants one fault of each kind in a small tree and checks that each is found
reference.py --searches    what people type must find first what they mean

A header is a comment, then what it is about, up to an empty line, and so on. A page keeps the header's order, with its comments as
text and its declarations as code, in which every name links to its contract. Next to a name are what PyTorch calls it
(docs/from_pytorch.md) and the examples that use it; search finds all of them.

Warnings
  - a public declaration without a contract: no comment on its line, above it in its paragraph, or below the heading of its section.
    A heading that says more than a title ("Elementwise: floats; broadcasting") is one. The fields of a struct are the contract of
    the function that returns its defaults; a name without a definition (typedef struct tn_optim tn_optim;) needs none.
  - a comment about nothing; a name in a comment that no header declares
"""
import collections
import html
import json
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(ROOT, "tests"))
import planted  # noqa: E402

ORDER = ("core.h", "tensor.h", "autograd.h", "ops.h", "module.h", "nn.h", "init.h", "layers.h", "transformer.h", "models.h", "optim.h",
         "data.h", "transforms.h", "io.h", "npy.h", "onnx.h", "train.h", "distributed.h", "parallel.h")  # then the rest, then sys/
NAME = re.compile(r"\b(?:tn|TN)_\w+")
# Words that people type for the same thing.
SAME = ("module model net network", "cat concat concatenate join", "gpu cuda device", "number count numel many", "augmentation augment transform",
        "matmul matrix multiplication", "std standard deviation", "clone copy", "profile profiler profiling", "op operation operator", "rand random", "lr rate",
        "print summary", "save write", "load read open", "checkpointing recompute")
HEADING = re.compile(r"/\* -{4} (.*?) -+ \*(/?)\s*")

Declaration = collections.namedtuple("Declaration", "line code names")
Group = collections.namedtuple("Group", "line text declarations")  # a comment, or None, and what it is about
Section = collections.namedtuple("Section", "title text paragraphs")  # each a list of groups
Header = collections.namedtuple("Header", "path intro sections")


# ---- Reading a header -------------------------------------------------------------------------------------------------


def for_c(text):
    """The lines with their numbers, as a C compiler sees them: without the parts for C++, includes and the guard."""
    kept, stack = [], []
    for number, line in enumerate(text.split("\n"), 1):
        word = re.match(r"#\s*(ifdef|ifndef|if|else|elif|endif|include|define)\b(.*)", line)
        kind = word.group(1) if word else ""
        if kind.startswith("if"):
            stack.append("__cplusplus" not in line or kind == "ifndef")
        elif kind in ("else", "elif"):
            stack[-1] = kind == "else" and not stack[-1]
        elif kind == "endif":
            stack.pop()
        elif kind != "include" and all(stack) and not re.fullmatch(r"#define \w+_H", line):
            kept.append((number, line))
    return kept


def plain(comment):
    """A comment's text without its marks."""
    text = re.sub(r"^/\*+ ?|\s*\*/$", "", comment.strip())
    return "\n".join(re.sub(r"^\s*\* ?", "", line) if i else line for i, line in enumerate(text.split("\n"))).strip("\n")


def declared_names(code):
    bare = re.sub(r"/\*.*?\*/", " ", code, flags=re.S)
    if bare.startswith("#"):
        return re.findall(r"#\s*define\s+(\w+)", bare)
    names = re.findall(r"\(\*(tn_\w+)\)\(|^(?:typedef )?(?:struct|enum|union) (tn_\w+)", bare, re.M) if "typedef" in bare or "{" in bare else []
    names = [a or b for a, b in names] + re.findall(r"^typedef \w[\w ]*\*?(tn_\w+)\(", bare)
    if bare.startswith("typedef"):
        names += re.findall(r"(\w+)\s*;\s*$", bare)
    elif not re.match(r"(?:enum|struct)\b[^(]*\{", bare):
        names += re.findall(r"\b(tn_\w+)\s*\(", bare)[:1] or re.findall(r"\b(tn_\w+)(?:\[\])?\s*;", bare)
    constants = re.search(r"enum[^{]*\{(.*)\}", bare, re.S)
    return list(dict.fromkeys(names + (re.findall(r"\b(TN_\w+)", constants.group(1)) if constants else [])))


def ends(code):
    """Whether a declaration is complete."""
    bare = re.sub(r"/\*.*?\*/", "", code, flags=re.S)
    if "/*" in bare:
        return False
    if bare.startswith("#"):
        return not bare.rstrip().endswith("\\")
    body = re.match(r"static inline[^;{]*\{", bare)
    return bare.count("{") == bare.count("}") and bare.rstrip().endswith("}" if body else ";")


def read_header(path, text):
    lines = for_c(text)
    intro, sections, at = None, [Section("", "", [])], 0
    fresh = True  # an empty line: the next group begins a paragraph
    while at < len(lines):
        number, line = lines[at]
        at += 1
        if not line.strip():
            fresh = True
            continue
        comment, code = line.startswith("/*"), line
        while at < len(lines) and not (re.search(r"\*/\s*$", code) if comment else ends(code)):
            code += "\n" + lines[at][1]
            at += 1
        if comment and HEADING.match(code):
            rest = plain("/*" + HEADING.sub("", code, count=1)) if HEADING.match(code).group(2) == "" else ""
            sections.append(Section(HEADING.match(code).group(1), rest, []))
        elif comment and intro is None:
            intro = plain(code)
        else:
            paragraphs = sections[-1].paragraphs
            if fresh or not paragraphs:
                paragraphs.append([])
            if comment or not paragraphs[-1]:
                paragraphs[-1].append(Group(number, plain(code) if comment else None, []))
            if not comment:
                paragraphs[-1][-1].declarations.append(Declaration(number, code, declared_names(code)))
        fresh = comment and bool(HEADING.match(code))
    return Header(path, intro or "", sections)


def read_headers(root):
    folder = os.path.join(root, "include/tern")
    paths = [os.path.relpath(os.path.join(at, f), folder) for at, _, files in os.walk(folder) for f in files if f.endswith(".h")]
    paths.sort(key=lambda p: (p.startswith("sys/"), ORDER.index(p) if p in ORDER else len(ORDER), p))
    headers = []
    for path in paths:
        with open(os.path.join(folder, path), encoding="utf-8") as f:
            headers.append(read_header(path, f.read()))
    return headers


def groups_of(header):
    for section in header.sections:
        for paragraph in section.paragraphs:
            for group in paragraph:
                yield section, paragraph, group


# ---- What is wrong ----------------------------------------------------------------------------------------------------


def is_told(section, paragraph, group, declaration):
    """Whether something describes a declaration: its line, a comment of its paragraph, its section."""
    return (re.search(r"_defaults\(void\);|^struct \w+;", declaration.code) or is_forward(declaration) or "/*" in declaration.code or any(g.text for g in paragraph) or bool(section.text) or ": " in section.title
            or group.text is not None)


def is_forward(declaration):
    """typedef struct tn_x tn_x; whose body may follow."""
    return re.match(r"typedef struct (\w+) \1;", declaration.code) is not None


def is_public(header, name):
    return not name.startswith(("tn__", "TN__")) or header.path.startswith("sys/")


def told_elsewhere(header, declaration):
    """A macro that C++ defines differently is at a header's end; an earlier comment describes it."""
    name = declaration.names[0]
    return declaration.code.startswith("#") and any(g.text and re.search(rf"\b{name}\b", g.text) for _, _, g in groups_of(header))


def faults(root):
    headers = read_headers(root)
    known = {name for h in headers for _, _, g in groups_of(h) for d in g.declarations for name in NAME.findall(d.code)}
    for header in headers:
        texts = [(1, header.intro)] + [(g.line, s.text) for s, p, g in groups_of(header) if g is p[0]]
        for section, paragraph, group in groups_of(header):
            texts.append((group.line, group.text or ""))
            if not group.declarations and len(paragraph) == 1 and NAME.search(group.text) is None and header.path != "tern.h":
                following = section.paragraphs[section.paragraphs.index(paragraph) + 1:]
                if not following:
                    yield f"include/tern/{header.path}:{group.line}: a comment about nothing"
            for d in group.declarations:
                if d.names and is_public(header, d.names[0]) and not (is_told(section, paragraph, group, d) or told_elsewhere(header, d)):
                    yield f"include/tern/{header.path}:{d.line}: {d.names[0]} has no contract"
                elif not d.names and not re.match(r"#|struct \w+;", d.code):
                    yield f"include/tern/{header.path}:{d.line}: what is declared here? {d.code.splitlines()[0]}"
        for line, text in texts:
            text = re.sub(r"\bTN_WITH\((tn_\w+)", r"\1_defaults", text)  # which it calls
            for match in NAME.finditer(text):
                private = match.group().startswith("tn__")
                if not private and match.group() not in known and not re.match(r"[*…<]|\w*…", text[match.end():]) and not match.group().endswith("_"):
                    yield f"include/tern/{header.path}:{line}: the comment names {match.group()}, which no header declares"


# ---- Pages ------------------------------------------------------------------------------------------------------------

class Writer:
    """Pages of the headers of one tree, to be written to `folder`."""

    def __init__(self, root, folder):
        self.root, self.folder, self.headers = root, folder, read_headers(root)
        self.places, self.definitions = {}, {}  # name -> page#name; name -> the declaration that links to it lead to
        for h in self.headers:
            for name, d in [(n, d) for _, _, g in groups_of(h) for d in g.declarations for n in d.names]:
                before = self.definitions.setdefault(name, d)
                if before is d or is_forward(before):
                    self.places[name], self.definitions[name] = f"{page_of(h)}#{name}", d
        self.torch, self.examples = self.read_torch(), self.read_examples()

    def read_torch(self):
        """{name: what PyTorch calls it}, where docs/from_pytorch.md answers with the name itself or a call of it."""
        names = {}
        path = os.path.join(self.root, "docs/from_pytorch.md")
        for line in open(path, encoding="utf-8") if os.path.exists(path) else ():
            cells = [re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[1:-1]]
            if len(cells) == 2 and "| not there" not in line:
                for name in (text.partition("(")[0] for text in cells[1] if re.fullmatch(r"(?:tn|TN)_\w+(?:\(.*)?", text)):
                    names.setdefault(name, []).extend(t for t in cells[0] if t not in names.get(name, []))
        return names

    def read_examples(self):
        uses, folder = {}, os.path.join(self.root, "examples")
        for file in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            if file.endswith(".c"):
                with open(os.path.join(folder, file), encoding="utf-8") as f:
                    for name in set(NAME.findall(f.read())):
                        uses.setdefault(name, []).append(file)
        return uses

    # A page's text: everything is escaped, and names, files and papers become links.

    def link(self, text):
        def place(match):
            name = match.group()
            return f'<a href="{self.places[name]}">{name}</a>' if name in self.places else name

        def file(match):
            path = match.group()
            if not os.path.isfile(os.path.join(self.root, path)):
                path = "include/tern/" + path if os.path.isfile(os.path.join(self.root, "include/tern", path)) else None
            header = path and re.match(r"include/tern/(.*\.h)", path)
            if header:
                return f'<a href="{header.group(1).replace("/", "_")[:-2]}.html">{match.group()}</a>'
            return f'<a href="{os.path.relpath(os.path.join(self.root, path), self.folder)}">{match.group()}</a>' if path else match.group()

        text = NAME.sub(place, html.escape(text, quote=False))
        text = re.sub(r"`([^`\n]+)`", r"<code>\1</code>", text)
        text = re.sub(r"(?<![\w/.\"#>])(?:\w+/)*\w+\.(?:c|h|md|py)\b", file, text)
        return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r'<a href="https://arxiv.org/abs/\1">arXiv:\1</a>', text)

    def prose(self, text):
        """Paragraphs; what is indented is an example."""
        parts = []
        for part in re.split(r"\n\s*\n", text):
            runs = re.split(r"(?m)((?:^ {4,}.*\n?)+)", part)
            for run in runs:
                if run.startswith("    "):
                    if parts and parts[-1].endswith("</pre>"):  # an empty line within an example
                        parts[-1] = parts[-1][:-6] + "\n\n" + self.link(undented(run)) + "</pre>"
                    else:
                        parts.append(f'<pre class="example">{self.link(undented(run))}</pre>')
                elif run.strip():
                    parts.append(f"<p>{self.link(' '.join(run.split()))}</p>")
        return "\n".join(parts)

    def code(self, declaration):
        """A declaration: its names are the targets of links; comments are faint."""
        out, own = [], {name for name in declaration.names if self.definitions[name] is declaration}
        for part in re.split(r"(/\*.*?\*/)", declaration.code, flags=re.S):
            if part.startswith("/*"):
                out.append(f'<span class="note">{self.link(part)}</span>')
                continue
            last = 0
            for match in NAME.finditer(part):
                name, before = match.group(), html.escape(part[last:match.start()])
                out.append(before.replace("TN_API ", ""))
                if name in own:
                    own.discard(name)
                    out.append(f'<span class="name" id="{name}">{name}</span>')
                elif name != "TN_API":
                    out.append(f'<a href="{self.places[name]}">{name}</a>' if name in self.places else name)
                last = match.end()
            out.append(html.escape(part[last:]))
        return re.sub(r"^ ", "", "".join(out))

    def also(self, group):
        names = [n for d in group.declarations for n in d.names]
        torch = list(dict.fromkeys(t for n in names for t in self.torch.get(n, []) if len(self.torch[n]) < 12))
        files = list(dict.fromkeys(f for n in names for f in self.examples.get(n, []) if len(self.examples[n]) < 12))
        parts = ["PyTorch: " + ", ".join(f"<code>{html.escape(t)}</code>" for t in torch[:10])] if torch else []
        up = os.path.relpath(self.root, self.folder)
        parts += ["in " + ", ".join(f'<a href="{up}/examples/{f}">{f}</a>' for f in files[:4])] if files else []
        return f'<p class="also">{" · ".join(parts)}</p>' if parts else ""

    def group(self, group):
        text = self.prose(group.text) if group.text else ""
        code = "\n".join(self.code(d) for d in group.declarations)
        return f'<div class="group">{text}{f"<pre>{code}</pre>" if code else ""}{self.also(group)}</div>\n'

    def body(self, header):
        out = [f"<h1>{header.path}</h1>", f"<p><code>#include &lt;tern/{header.path}&gt;</code></p>", self.prose(header.intro)]
        for number, section in enumerate(header.sections):
            if section.title:
                out.append(f'<h2 id="section-{number}">{html.escape(section.title)}</h2>')
            out.append(self.prose(section.text))
            out += [self.group(g) for paragraph in section.paragraphs for g in paragraph]
        return "\n".join(out)

    def menu(self, current):
        def entry(h):
            sections = [f'<li><a href="#section-{i}">{html.escape(s.title.split(":")[0])}</a></li>'
                        for i, s in enumerate(h.sections) if s.title] if h is current else []
            inner = f"<ul>{''.join(sections)}</ul>" if sections else ""
            return f'<li><a href="{page_of(h)}">{h.path}</a>{inner}</li>'

        programs = "".join(entry(h) for h in self.headers if not h.path.startswith("sys/"))
        system = "".join(entry(h) for h in self.headers if h.path.startswith("sys/"))
        return (f'<input id="search" placeholder="Search: / " aria-label="Search" autocomplete="off"><a href="index.html">Tern</a>'
                f"<ul>{programs}</ul>For implementers<ul>{system}</ul>")

    def page(self, title, body, current=None):
        return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
                '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="reference.css"></head><body>\n'
                f'<nav>{self.menu(current)}</nav><main><ul id="found"></ul><div id="page">\n{body}\n</div></main>\n'
                '<script src="names.js"></script><script src="reference.js"></script></body></html>\n')

    def index(self):
        """[name, place, PyTorch's names, a line about it, the other words of its contract] of every document, header and public name."""
        entries = self.documents()
        entries += [[h.path, page_of(h), "", first_sentence(h.intro), " ".join([h.intro] + [s.title for s in h.sections]).lower()] for h in self.headers]
        for header in self.headers:
            for section, paragraph, group in groups_of(header):
                for d in group.declarations:
                    beside = re.search(r"/\*(.*?)\*/\s*$", d.code, re.S)
                    above = group.text or next((g.text for g in paragraph if g.text), "") or section.title
                    about = " ".join((beside.group(1) if beside else above).replace("\n *", " ").split())
                    names = [n for n in d.names if self.definitions[n] is d]
                    words = set(re.findall(r"[^\W_]\w+", f"{above} {d.code}".lower())) - set(re.findall(r"\w+", shortened(about).lower()))
                    entries += [[n, self.places[n], " ".join(self.torch.get(n, [])), shortened(about), " ".join(sorted(words))]
                                for n in names if is_public(header, n)]
        return entries

    def names(self):
        return f"const INDEX = {json.dumps(self.index(), ensure_ascii=False)};\nconst SAME = {json.dumps(SAME)};\n"

    def documents(self):
        entries, folder, up = [], os.path.join(self.root, "docs"), os.path.relpath(self.root, self.folder)
        for file in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            if file.endswith(".md") and file not in ("coverage.md", "from_pytorch.md", "words.md"):
                with open(os.path.join(folder, file), encoding="utf-8") as f:
                    text = re.sub(r"(?ms)^```.*?^```", "", f.read())
                headings = re.findall(r"^#+ (.*)", text, re.M)
                entries.append([f"docs/{file}", f"{up}/docs/{file}", "", headings[0], " ".join(headings[1:]).lower()])
        return entries

    def front(self):
        rows = "".join(f'<tr><td><a href="{page_of(h)}">{h.path}</a></td><td>{self.link(first_sentence(h.intro))}</td></tr>'
                       for h in self.headers if h.path != "tern.h")
        return ("<h1>Tern</h1><p>Every public function, by header. Search finds names, PyTorch's names, and words of their contracts; "
                f"press <code>/</code> to search.</p><table>{rows}</table>")

    def write(self):
        os.makedirs(self.folder, exist_ok=True)
        for name in ("reference.css", "reference.js"):
            shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)), name), self.folder)
        files = {"names.js": self.names(),
                 "index.html": self.page("Tern", self.front())}
        files.update({page_of(h): self.page(h.path, self.body(h), h) for h in self.headers})
        for name, text in files.items():
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as f:
                f.write(text)


def page_of(header):
    return header.path.replace("/", "_")[:-2] + ".html"


def undented(text):
    lines = text.rstrip("\n").split("\n")
    least = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return "\n".join(line[least:] for line in lines)


def shortened(text):
    return text if len(text) <= 150 else text[:150].rpartition(" ")[0] + " …"


def first_sentence(text):
    return re.match(r"(.*?)(?:[.:] ?$|\. |$)", " ".join(text.split("\n\n")[0].split())).group(1)


# ---- Self-test --------------------------------------------------------------------------------------------------------

CLEAN = {"include/tern/a.h": "/* All of a. */\n#ifndef TERN_A_H\n#define TERN_A_H\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n"
                             "/* ---- Numbers ---- */\n\n/* Twice x; tn_both is for two. */\nTN_API int tn_twice(int x);\n"
                             "TN_API int tn_both(int x,\n                  int y);\n\nTN_API int tn_one(void); /* 1 */\n\n"
                             "/* ---- Colours: as numbers ---- */\n\ntypedef enum tn_colour { TN_RED, TN_BLUE } tn_colour;\n\n#endif\n"}
SEARCHES = {  # what is typed, and what may come first
    "save model": "tn_save", "concatenate": "tn_cat TN_CAT", "move to gpu": "tn_to tn_module_to", "gradient clipping": "tn_clip_grad_norm tn_optim_clip",
    "number of parameters": "tn_module_count", "print model": "tn_module_print", "eval mode": "tn_module_train", "custom op": "tn_op tn_apply",
    "data augmentation": "tn_transformed tn_transform transforms.h", "fine-tune": "docs/finetuning.md", "freeze": "tn_freeze",
    "weight decay": "tn_match_vectors tn_match", "argparse": "tn_options_parse", "conv2d": "tn_conv2d", "load weights": "tn_load tn_lm_load_weights",
    "learning rate": "tn_optim_set_lr tn_optim_lr", "mixed precision": "docs/mixed_precision.md tn_precision", "matrix multiplication": "tn_matmul",
    "cross entropy": "tn_cross_entropy", "dataloader": "tn_loader_new tn_loader", "random seed": "tn_seed", "number of threads": "tn_threads tn_set_threads",
    "distributed data parallel": "tn_ddp", "all reduce": "tn_all_reduce", "gradient checkpointing": "tn_recompute tn_module_set_recompute",
    "read csv": "tn_csv_dataset", "standard deviation": "tn_std", "clone": "tn_copy tn_detach", "top k": "tn_topk", "split dataset": "tn_random_split",
    "onnx export": "tn_onnx_export", "generate text": "tn_generate", "pretrained model": "tn_lm_load", "early stopping": "tn_run_stop_early",
    "zero gradients": "tn_optim_zero_grad tn_zero_grad tn_module_zero_grad",
    "tn_matmul": "tn_matmul", "MAX POOL 2d": "tn_max_pool2d", "xyzzy": ""}
PLANTED = {  # what, and what is replaced by what
    "a function without a contract": (" /* 1 */", ""),
    "a type without a contract": ("Colours: as numbers", "Colours"),
    "a comment that names nothing": ("tn_both is", "tn_booth is"),
    "a comment about nothing": ("tn_colour;\n", "tn_colour;\n\n/* And so on. */\n"),
}


def self_test():
    path, text = next(iter(CLEAN.items()))
    trees = {}
    for what, (old, new) in PLANTED.items():
        assert old in text, what
        trees[what] = {path: text.replace(old, new, 1)}
    return planted.self_test(CLEAN, trees, faults)


def try_searches():
    """Runs reference.js as a browser would, without its page. 77: nothing here runs JavaScript."""
    node = shutil.which("node") or shutil.which("nodejs")
    if not node:
        print("SKIPPED: there is no node, which runs the search of the pages")
        return 77
    with open(os.path.join(ROOT, "docs/reference.js"), encoding="utf-8") as f:
        program = f.read().partition("// ---- The page")[0]
    program = Writer(os.path.abspath(ROOT), ".").names() + program
    program += f"\nconsole.log(JSON.stringify({json.dumps(list(SEARCHES))}.map(text => (search(text)[0] || [''])[0])));\n"
    first = json.loads(subprocess.run([node, "-"], input=program, capture_output=True, text=True, check=True).stdout)
    missed = [f"{text!r} finds {name or 'nothing'} first, not {wanted or 'nothing'}" for (text, wanted), name in zip(SEARCHES.items(), first)
              if name not in (wanted.split() or [""])]
    print("\n".join(missed + [f"{len(SEARCHES) - len(missed)} of {len(SEARCHES)} searches find what is meant first"]))
    return 1 if missed else 0


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--self-test":
        return 1 if self_test() else 0
    if sys.argv[1] == "--searches":
        return try_searches()
    found = list(faults(ROOT))
    print("\n".join(found + [f"reference: {len(found)} warnings"]))
    if sys.argv[1] != "--check":
        Writer(os.path.abspath(ROOT), os.path.abspath(sys.argv[1])).write()
        print(f"file://{os.path.abspath(sys.argv[1])}/index.html")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
