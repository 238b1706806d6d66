#include "core/image.h"

#include "core/descriptor.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* DWARF's numbers, as far as line tables need them. */
enum {
    FORM_DATA2 = 0x05,
    FORM_DATA4 = 0x06,
    FORM_DATA8 = 0x07,
    FORM_STRING = 0x08,
    FORM_BLOCK = 0x09,
    FORM_DATA1 = 0x0b,
    FORM_STRP = 0x0e,
    FORM_UDATA = 0x0f,
    FORM_DATA16 = 0x1e,
    FORM_LINE_STRP = 0x1f,
};
enum { CONTENT_PATH = 1, CONTENT_FOLDER = 2 };
enum {
    OP_EXTENDED = 0,
    OP_COPY = 1,
    OP_ADVANCE_ADDRESS = 2,
    OP_ADVANCE_LINE = 3,
    OP_SET_FILE = 4,
    OP_CONST_ADD = 8,
    OP_FIXED_ADD = 9,
};
enum { EXTENDED_END = 1, EXTENDED_SET_ADDRESS = 2 };

/* ---- Bytes ----------------------------------------------------------------------------------- */

/* A part of the file that is read from its beginning. Reading beyond its end gives zeros and makes
 * it bad. */
typedef struct span {
    const unsigned char *at, *end;
    bool bad;
} span;

static size_t span_left(const span *s) {
    return (size_t)(s->end - s->at);
}

/* A part that is not there. */
static span no_span(void) {
    static const unsigned char here[1];
    return (span){.at = here, .end = here, .bad = true};
}

/* The next `bytes` as a span of their own. */
static span span_take(span *s, uint64_t bytes) {
    if (bytes > span_left(s)) {
        s->bad = true;
        s->at = s->end;
        return no_span();
    }
    span part = {.at = s->at, .end = s->at + bytes};
    s->at += bytes;
    return part;
}

static uint64_t next_number(span *s, size_t bytes) {
    span part = span_take(s, bytes);
    uint64_t number = 0;
    if (part.bad) {
        return 0;
    }
    if (bytes == 1) {
        return part.at[0];
    }
    if (bytes == 2) {
        uint16_t half;
        memcpy(&half, part.at, 2);
        return half;
    }
    if (bytes == 4) {
        uint32_t word;
        memcpy(&word, part.at, 4);
        return word;
    }
    memcpy(&number, part.at, 8);
    return number;
}

/* LEB128; *sign, when it is asked for, is its last byte's sign bit spread above its bits. */
static uint64_t next_leb(span *s, uint64_t *sign) {
    uint64_t number = 0, byte;
    unsigned shift = 0;
    do {
        byte = next_number(s, 1);
        number |= shift < 64 ? (byte & 0x7f) << shift : 0;
        shift += 7;
    } while (byte & 0x80);
    if (sign) {
        *sign = byte & 0x40 && shift < 64 ? ~(uint64_t)0 << shift : 0;
    }
    return number;
}

static uint64_t next_unsigned(span *s) {
    return next_leb(s, NULL);
}

static int64_t next_signed(span *s) {
    uint64_t sign, number = next_leb(s, &sign);
    return (int64_t)(number | sign);
}

/* "" at a bad end. */
static const char *next_text(span *s) {
    const unsigned char *zero = span_left(s) ? memchr(s->at, 0, span_left(s)) : NULL;
    const char *text = (const char *)s->at;
    if (!zero) {
        s->bad = true;
        s->at = s->end;
        return "";
    }
    s->at = zero + 1;
    return text;
}

static const char *text_at(span s, uint64_t offset) {
    span_take(&s, offset);
    return next_text(&s);
}

/* ---- The file -------------------------------------------------------------------------------- */

bool tn__image_open(tn__image *m, const char *path) {
    static const unsigned char word = sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32;
    static const unsigned char order =
        __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB;
    *m = (tn__image){NULL, 0};
    int fd = tn__above_streams(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat about;
    if (fd >= 0 && fstat(fd, &about) == 0 && S_ISREG(about.st_mode) &&
        about.st_size >= (off_t)sizeof(ElfW(Ehdr))) {
        void *at = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (at != MAP_FAILED) {
            *m = (tn__image){at, (size_t)about.st_size};
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    if (m->at && (memcmp(m->at, ELFMAG, SELFMAG) != 0 || m->at[EI_CLASS] != word ||
                  m->at[EI_DATA] != order)) {
        tn__image_close(m);
    }
    return m->at != NULL;
}

void tn__image_close(tn__image *m) {
    if (m->at) {
        munmap((void *)(uintptr_t)m->at, m->bytes);
        m->at = NULL;
    }
}

bool tn__image_loaded(const tn__image *m, const void *start) {
    return memcmp(m->at, start, m->bytes < TN__IMAGE_PAGE ? m->bytes : TN__IMAGE_PAGE) == 0;
}

static span image_part(const tn__image *m, uint64_t offset, uint64_t bytes) {
    span all = {.at = m->at, .end = m->at + m->bytes};
    span_take(&all, offset);
    span part = span_take(&all, bytes);
    return part;
}

/* Section number `index`; false when there is none. */
static bool section_at(const tn__image *m, uint64_t index, ElfW(Shdr) * section) {
    ElfW(Ehdr) head;
    memcpy(&head, m->at, sizeof(head));
    if (head.e_shentsize != sizeof(*section) || head.e_shoff == 0 || index > m->bytes) {
        return false;
    }
    span s = image_part(m, head.e_shoff + index * sizeof(*section), sizeof(*section));
    if (!s.bad) {
        memcpy(section, s.at, sizeof(*section));
    }
    return !s.bad;
}

static span section_bytes(const tn__image *m, const ElfW(Shdr) * section) {
    if (section->sh_type == SHT_NOBITS || section->sh_flags & SHF_COMPRESSED) {
        return no_span();
    }
    return image_part(m, section->sh_offset, section->sh_size);
}

/* Numbers that do not fit the header stand in section 0. */
static uint64_t section_count(const tn__image *m, uint64_t *names) {
    ElfW(Ehdr) head;
    ElfW(Shdr) first;
    memcpy(&head, m->at, sizeof(head));
    if (!section_at(m, 0, &first)) {
        return 0;
    }
    *names = head.e_shstrndx == SHN_XINDEX ? first.sh_link : head.e_shstrndx;
    return head.e_shnum ? head.e_shnum : first.sh_size;
}

static bool is_text(span s, uint64_t offset, const char *text) {
    span_take(&s, offset);
    span part = span_take(&s, strlen(text) + 1);
    return !part.bad && memcmp(part.at, text, strlen(text) + 1) == 0;
}

/* The section with this name; a bad span when there is none that can be read. */
static span section_named(const tn__image *m, const char *name, ElfW(Shdr) * section) {
    ElfW(Shdr) table;
    uint64_t names = 0, count = section_count(m, &names);
    if (count && section_at(m, names, &table)) {
        span texts = section_bytes(m, &table);
        for (uint64_t i = 1; i < count && section_at(m, i, section); i++) {
            if (is_text(texts, section->sh_name, name)) {
                return section_bytes(m, section);
            }
        }
    }
    return no_span();
}

/* ---- A unit of the line table ---------------------------------------------------------------- */

typedef struct unit {
    span folders, files; /* from their counts and formats on */
    span program;
    span line_texts, texts; /* sections that names stand in */
    int version;
    size_t offset_bytes; /* 4, or 8 in the wide format */
    uint64_t min_length, range, first_special;
    int64_t line_base;
    const unsigned char *operands; /* [first_special - 1]: of each standard opcode */
} unit;

typedef struct entry {
    const char *name;
    uint64_t folder;
} entry;

/* One value of a form that line tables use. Others make the span bad. */
static void read_form(const unit *u, span *s, uint64_t form, const char **text, uint64_t *number) {
    switch (form) {
    case FORM_STRING:
        *text = next_text(s);
        break;
    case FORM_LINE_STRP:
        *text = text_at(u->line_texts, next_number(s, u->offset_bytes));
        break;
    case FORM_STRP:
        *text = text_at(u->texts, next_number(s, u->offset_bytes));
        break;
    case FORM_UDATA:
        *number = next_unsigned(s);
        break;
    case FORM_DATA1:
        *number = next_number(s, 1);
        break;
    case FORM_DATA2:
        *number = next_number(s, 2);
        break;
    case FORM_DATA4:
        *number = next_number(s, 4);
        break;
    case FORM_DATA8:
        *number = next_number(s, 8);
        break;
    case FORM_DATA16:
        span_take(s, 16);
        break;
    case FORM_BLOCK:
        span_take(s, next_unsigned(s));
        break;
    default:
        s->bad = true;
    }
}

/* Version 5: formats, count, entries. Entry `wanted` of the table that begins here, if it has one,
 * and steps over the table. */
static bool table_5(const unit *u, span *s, uint64_t wanted, entry *found) {
    uint64_t pairs = next_number(s, 1);
    span formats = *s;
    for (uint64_t i = 0; i < 2 * pairs; i++) {
        next_unsigned(s);
    }
    uint64_t count = next_unsigned(s);
    for (uint64_t i = 0; i < count && !s->bad && pairs; i++) {
        span format = formats;
        entry e = {.name = ""};
        for (uint64_t k = 0; k < pairs && !s->bad; k++) {
            uint64_t type = next_unsigned(&format), number = 0;
            const char *text = "";
            read_form(u, s, next_unsigned(&format), &text, &number);
            if (type == CONTENT_PATH) {
                e.name = text;
            } else if (type == CONTENT_FOLDER) {
                e.folder = number;
            }
        }
        if (i == wanted) {
            *found = e;
        }
    }
    return !s->bad && wanted < count && pairs;
}

/* Before version 5: texts, and three numbers behind each file, until an empty text. Counted from
 * 1. */
static bool table_4(span *s, bool files, uint64_t wanted, entry *found) {
    bool has = false;
    for (uint64_t i = 1; !s->bad; i++) {
        entry e = {.name = next_text(s)};
        if (!*e.name) {
            break;
        }
        if (files) {
            e.folder = next_unsigned(s);
            next_unsigned(s);
            next_unsigned(s);
        }
        if (i == wanted) {
            *found = e;
            has = true;
        }
    }
    return !s->bad && has;
}

static bool read_table(const unit *u, span *s, bool files, uint64_t wanted, entry *found) {
    return u->version >= 5 ? table_5(u, s, wanted, found) : table_4(s, files, wanted, found);
}

static bool file_of(const unit *u, uint64_t index, entry *found) {
    span s = u->files;
    return read_table(u, &s, true, index, found);
}

static bool folder_of(const unit *u, uint64_t index, entry *found) {
    span s = u->folders;
    return read_table(u, &s, false, index, found);
}

/* The next unit of the table, over which s steps. False when it is none that we know. */
static bool next_unit(span *s, unit *u) {
    uint64_t length = next_number(s, 4);
    u->offset_bytes = length == 0xffffffff ? 8 : 4;
    if (length == 0xffffffff) {
        length = next_number(s, 8);
    }
    span all = span_take(s, length);
    u->version = (int)next_number(&all, 2);
    if (u->version >= 5) {
        span_take(&all, 2); /* sizes of addresses and segments */
    }
    span head = span_take(&all, next_number(&all, u->offset_bytes));
    u->program = all;
    u->min_length = next_number(&head, 1);
    if (u->version >= 4) {
        next_number(&head, 1); /* operations per instruction: 1 on our machines */
    }
    next_number(&head, 1);
    u->line_base = (int8_t)next_number(&head, 1);
    u->range = next_number(&head, 1);
    u->first_special = next_number(&head, 1);
    u->operands = head.at;
    span_take(&head, u->first_special ? u->first_special - 1 : 0);
    u->folders = head;
    entry unused;
    read_table(u, &head, false, 0, &unused);
    u->files = head;
    return !head.bad && u->version >= 2 && u->version <= 5 && u->range && u->first_special;
}

/* ---- The program of a unit, which makes its rows --------------------------------------------- */

typedef struct row {
    uint64_t address, file;
    int64_t line;
    bool there, last; /* last: where the instructions end */
} row;

static void run_special(const unit *u, row *now, uint64_t opcode) {
    uint64_t step = opcode - u->first_special;
    now->address += step / u->range * u->min_length;
    now->line = (int64_t)((uint64_t)now->line + (uint64_t)u->line_base + step % u->range);
}

static void run_extended(span *s, row *now) {
    uint64_t bytes = next_unsigned(s);
    span operands = span_take(s, bytes);
    uint64_t opcode = next_number(&operands, 1);
    if (opcode == EXTENDED_END) {
        now->there = now->last = true;
    } else if (opcode == EXTENDED_SET_ADDRESS && (bytes == 5 || bytes == 9)) {
        now->address = next_number(&operands, bytes - 1);
    }
}

static void run_standard(const unit *u, span *s, row *now, uint64_t opcode) {
    switch (opcode) {
    case OP_COPY:
        now->there = true;
        break;
    case OP_ADVANCE_ADDRESS:
        now->address += next_unsigned(s) * u->min_length;
        break;
    case OP_ADVANCE_LINE:
        now->line = (int64_t)((uint64_t)now->line + (uint64_t)next_signed(s));
        break;
    case OP_SET_FILE:
        now->file = next_unsigned(s);
        break;
    case OP_CONST_ADD:
        now->address += (255 - u->first_special) / u->range * u->min_length;
        break;
    case OP_FIXED_ADD:
        now->address += next_number(s, 2);
        break;
    default:
        for (int i = 0; i < u->operands[opcode - 1]; i++) {
            next_unsigned(s);
        }
    }
}

/* The row of this instruction: the last one that does not begin behind it, in a sequence that goes
 * on behind it. A sequence at 0 is of code that the linker left out. */
static bool find_row(const unit *u, uint64_t address, row *found) {
    span s = u->program;
    row now = {.file = 1, .line = 1}, before = {0};
    uint64_t begin = 0;
    while (span_left(&s) && !s.bad) {
        uint64_t opcode = next_number(&s, 1);
        now.there = false;
        if (opcode >= u->first_special) {
            run_special(u, &now, opcode);
            now.there = true;
        } else if (opcode == OP_EXTENDED) {
            run_extended(&s, &now);
        } else {
            run_standard(u, &s, &now, opcode);
        }
        if (!now.there) {
            continue;
        }
        begin = before.there ? begin : now.address;
        if (before.there && begin && before.address <= address && address < now.address) {
            *found = before;
            return true;
        }
        before = now;
        if (now.last) {
            now = (row){.file = 1, .line = 1};
            before.there = false;
        }
    }
    return false;
}

/* The unit and row of an instruction. */
static bool find_line(const tn__image *m, uintptr_t address, unit *u, row *found) {
    ElfW(Shdr) section;
    span table = section_named(m, ".debug_line", &section);
    u->line_texts = section_named(m, ".debug_line_str", &section);
    u->texts = section_named(m, ".debug_str", &section);
    while (!table.bad && span_left(&table)) {
        if (next_unit(&table, u) && find_row(u, address, found)) {
            return true;
        }
    }
    return false;
}

/* ---- Questions ------------------------------------------------------------------------------- */

bool tn__image_line(const tn__image *m, uintptr_t address, const char **file, int *line) {
    unit u;
    row found;
    entry e;
    if (!find_line(m, address, &u, &found) || found.line <= 0 || found.line > INT32_MAX ||
        !file_of(&u, found.file, &e)) {
        return false;
    }
    const char *slash = strrchr(e.name, '/');
    *file = slash ? slash + 1 : e.name;
    *line = (int)found.line;
    return **file != 0;
}

bool tn__image_unit(const tn__image *m, uintptr_t address, char *path, size_t room) {
    unit u;
    row found;
    entry file, folder, first;
    if (!find_line(m, address, &u, &found) || !file_of(&u, u.version >= 5 ? 0 : 1, &file)) {
        return false;
    }
    bool has_folder = folder_of(&u, file.folder, &folder), has_first = folder_of(&u, 0, &first);
    const char *parts[] = {has_first ? first.name : "", has_folder ? folder.name : "", file.name};
    size_t used = 0;
    path[0] = 0;
    for (int i = 0; i < 3; i++) {
        if (parts[i][0] == '/') {
            used = 0; /* absolute: what stood before does not count */
        }
        bool given = parts[i][0] && !(i == 1 && strcmp(parts[0], parts[1]) == 0 && used);
        int put = given ? snprintf(path + used, room - used, "%s%s", used ? "/" : "", parts[i]) : 0;
        if (put < 0 || (size_t)put >= room - used) {
            return false;
        }
        used += (size_t)put;
    }
    return used > 0;
}

const char *tn__image_symbol(const tn__image *m, uintptr_t address, uintptr_t *start) {
    ElfW(Shdr) section, names;
    span s = section_named(m, ".symtab", &section);
    if (s.bad) {
        s = section_named(m, ".dynsym", &section);
    }
    if (s.bad || !section_at(m, section.sh_link, &names)) {
        return NULL;
    }
    span texts = section_bytes(m, &names);
    const char *best = NULL;
    while (span_left(&s) >= sizeof(ElfW(Sym))) {
        ElfW(Sym) symbol;
        memcpy(&symbol, span_take(&s, sizeof(symbol)).at, sizeof(symbol));
        int type = symbol.st_info & 0xf;
        if ((type == STT_FUNC || type == STT_GNU_IFUNC) && symbol.st_shndx != SHN_UNDEF &&
            symbol.st_value <= address && address - symbol.st_value < symbol.st_size &&
            (!best || symbol.st_value > *start)) {
            const char *name = text_at(texts, symbol.st_name);
            best = *name ? name : best;
            *start = *name ? symbol.st_value : *start;
        }
    }
    return best;
}
